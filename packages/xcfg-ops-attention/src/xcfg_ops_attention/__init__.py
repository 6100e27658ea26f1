"""Attention operators for xcfg."""
