"""A stand-in: see utils."""
