"""An example of a third-party operator backend for xcfg."""
