"""Whether a value lies in a declared domain, as the contracts understand it: with its exact type."""

from __future__ import annotations

import re
from typing import Any

from xcfg.schema.knobs import Choice, Domain, FloatRange, IntRange


def admits(domain: Domain, value: Any) -> bool:
    """Return whether `value` lies in `domain`; True is no 1, and 1 is no 1.0 except where a range of floats is."""
    if isinstance(domain, Choice):
        return (type(value), value) in [(type(member), member) for member in domain.values]
    if isinstance(domain, IntRange):
        upper = value if domain.maximum is None else domain.maximum
        return type(value) is int and domain.minimum <= value <= upper
    if isinstance(domain, FloatRange):
        return domain.admits(value)
    return type(value) is str and re.fullmatch(domain.pattern, value) is not None
