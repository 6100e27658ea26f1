"""Minimal sufficient alignment: the smallest set of align entries under which a named objective is met."""
