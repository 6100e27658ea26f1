"""What causes are planted with: operators whose options are wrong on purpose, and engines that can be changed.

An engine is changed in two ways. `runtime_options.<side>.model_overrides` of the runtimes `lab-torch` and
`lab-megatron` stands in the experiment, like the options of any engine. The environment variable of `hidden` stands
nowhere: neither the experiment nor anything that an engine reports tells of it.
"""

from __future__ import annotations

import json
import os
from typing import Any

VARIABLE = "LAB_HIDDEN"


def hidden(side: str) -> dict[str, Any]:
    """Return what is changed on `side` without a word."""
    found: dict[str, Any] = json.loads(os.environ.get(VARIABLE, "{}")).get(side, {})
    return found
