"""The pluggy markers, and the number of the plugin interface."""

from __future__ import annotations

import pluggy

PROJECT = "xcfg"
API_VERSION = 1
"""Raised when a hook or a record changes so that an old plugin would be misread."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
