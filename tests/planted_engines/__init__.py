"""Causes that were planted in real engines, and what `xcfg analyze` says of each."""
