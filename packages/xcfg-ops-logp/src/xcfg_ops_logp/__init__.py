"""Selected log probability for xcfg: the operator contract, its references and vocab-parallel backends."""
