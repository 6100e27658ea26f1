"""Readers of foreign log probability dumps for xcfg."""
