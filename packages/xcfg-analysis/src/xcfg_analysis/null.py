"""What natural bfloat16 drift looks like to each signature: data made by tools/calibrate_signatures.py.

profile: rms of d by log probability, relative to its value at p = 0.5. nulls: per signature the largest shares of the
squared drift that its form removed from draws of clean drift, in falling order, and how many draws there were.
"""

from __future__ import annotations

import functools
import importlib.resources
from dataclasses import dataclass

import numpy as np
from xcfg.schema import Record
from xcfg.schema.codec import decode_json

from xcfg_analysis.tokens import Float

FILE = "null.json"


class Null(Record):
    """Clean draws of one signature."""

    draws: int
    largest: tuple[float, ...]


class NullData(Record):
    """The packaged calibration."""

    schema_version: str
    provenance: str
    profile_logp: tuple[float, ...]
    profile_size: tuple[float, ...]
    nulls: dict[str, Null]


@dataclass(frozen=True)
class Rarity:
    """How an explained share compares with clean draws. chance: probability of at least this share without a fault."""

    chance: float
    largest: float


@functools.cache
def load() -> NullData:
    """Return the packaged calibration."""
    data = importlib.resources.files(__package__).joinpath(FILE).read_bytes()
    return decode_json(data, NullData, source=FILE)


def natural_profile(logp: Float) -> Float:
    """Return the size that natural drift has at `logp`, float64 [N] > 0, relative to p = 0.5."""
    data = load()
    size: Float = np.exp(np.interp(logp, data.profile_logp, np.log(data.profile_size)))
    return size


def rarity(name: str, explained: float) -> Rarity:
    """Return how rare `explained` is among clean draws; a signature without calibration is judged by its test alone."""
    null = load().nulls.get(name)
    if null is None:
        return Rarity(0.0, 0.0)
    above = sum(value >= explained for value in null.largest)
    return Rarity((1 + above) / (1 + null.draws), max(null.largest, default=0.0))
