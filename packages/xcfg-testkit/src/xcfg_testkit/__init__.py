"""The conformance kit that authors of xcfg plugins run; a pytest plugin."""
