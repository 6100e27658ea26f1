"""Engines in processes of their own: the worker side, supervisor, pool (protocol: schema/worker.py)."""

from __future__ import annotations
