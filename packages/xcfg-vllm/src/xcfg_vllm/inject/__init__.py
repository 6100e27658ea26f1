"""Operators put into vLLM in place of its own: registry.py is the way in, one module for each kind of place."""
