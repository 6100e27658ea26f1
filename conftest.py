"""Property tests draw the same examples in every run, so that the gate says the same of the same code.

XCFG_EXPLORE=1 draws new ones, and more of them where a test states no number, for a person who looks for more.
"""

from __future__ import annotations

import os

try:
    from hypothesis import settings
except ImportError:  # a package in an environment of its own may have no property test
    pass
else:
    settings.register_profile("gate", deadline=None, derandomize=True)
    settings.register_profile("explore", deadline=None, max_examples=1000)
    settings.load_profile("explore" if os.environ.get("XCFG_EXPLORE") else "gate")
