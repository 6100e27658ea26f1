"""Profiles A0 to A5, the rules by which their results are read, the alignment ladder, and the downstream series."""
