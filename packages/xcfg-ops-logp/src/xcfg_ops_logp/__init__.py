"""Selected log probability for xcfg: the operator contract and its reference backend."""
