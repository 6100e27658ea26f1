"""Reports and viewers for xcfg."""
