"""Settings that hold for every test of the core."""

from __future__ import annotations

from hypothesis import settings

# What an example returns is tested, not how long a busy machine took over it.
settings.register_profile("xcfg", deadline=None)
settings.load_profile("xcfg")
