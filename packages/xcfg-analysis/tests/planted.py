"""Faults planted on real scores, their look-alikes, and noise. Read by the tests and by tools/gen_signatures.py.

A `Draw` is some sequences of tests/data/natural.safetensors: SmolLM2-135M in bfloat16, eager attention as the training
side, sdpa as the rollout side, so that natural drift lies under everything. A plant changes one side by the exact
transformation; `size` 1, 0.5 or 0.25 is its strength, in the unit that the plant names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from xcfg.dumps import DumpTable, collect

DATA = Path(__file__).with_name("data") / "natural.safetensors"
COLUMNS = {"selected_logit": "logit", "logsumexp": "lse", "entropy": "entropy", "token_rank": "rank"}
SIZES = (1.0, 0.5, 0.25)
HIGHEST = 0.5
"""Nats; noise can carry a value above 0, and what lies above this is no log probability to any reader."""


@cache
def stored() -> dict[str, np.ndarray]:
    """Return every tensor of the data file."""
    with safe_open(DATA, framework="numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - safe_open is no mapping


def sets() -> tuple[str, ...]:
    """Return the names of the sets that the data file holds."""
    return tuple(name for name in ("short", "long") if f"{name}.sequence" in stored())


def mirrored(logp: np.ndarray) -> np.ndarray:
    """Return `logp` with what lies above HIGHEST mirrored at it: a limit would make one value of many."""
    return np.where(logp > HIGHEST, 2 * HIGHEST - logp, logp)


@dataclass
class Draw:
    """N tokens of whole sequences. train, roll: float64 [N], nats. place: 0 ... S - 1 per token."""

    of: str
    row: np.ndarray
    place: np.ndarray
    rng: np.random.Generator
    train: np.ndarray
    roll: np.ndarray
    active: np.ndarray
    token_id: np.ndarray
    extra: dict[str, np.ndarray] = field(default_factory=dict)
    without: tuple[str, ...] = ()

    def side(self, side: str, column: str) -> np.ndarray:
        """Return a stored column of these tokens as float64 (bool stays bool)."""
        values = stored()[f"{self.of}.{side}.{column}"][self.row]
        return values if values.dtype == bool else values.astype(np.float64)

    @property
    def position(self) -> np.ndarray:
        return stored()[f"{self.of}.position"][self.row].astype(np.int64)

    @property
    def natural(self) -> np.ndarray:
        """The drift that was there before anything was planted."""
        return self.side("training", "logp") - self.side("rollout", "logp")

    @property
    def last(self) -> np.ndarray:
        return np.append(self.place[1:] != self.place[:-1], True)

    @property
    def first(self) -> np.ndarray:
        return np.append(True, self.place[1:] != self.place[:-1])

    def share(self, size: float) -> np.ndarray:
        """Return the tokens, bool [N], of a `size` share of the sequences, at least three."""
        count = int(self.place[-1]) + 1
        return self.place < max(3, round(size * count))

    def stretch(self, factor: np.ndarray | float) -> None:
        """Make the drift larger by `factor` per token."""
        self.roll = self.train - (self.train - self.roll) * factor

    def table(self) -> DumpTable:
        """Return the draw as a dump with all optional columns but `without`, and no value above HIGHEST."""
        batch: dict[str, Any] = {
            "sample_id": self.place,
            "position": self.position,
            "token_id": self.token_id,
            "active": self.active,
            "logp_train": mirrored(self.train).astype(np.float32),
            "logp_rollout": mirrored(self.roll).astype(np.float32),
        }
        for name, column in COLUMNS.items():
            values = stored()[f"{self.of}.training.{column}"][self.row]
            batch[name] = values if values.dtype.kind == "i" else values.astype(np.float32)
        batch |= {"kept_mass": np.ones(len(self.row), np.float32), "rank": self.place % 4}
        batch |= {"weight_version": (self.place // 2) % 4} | self.extra
        return collect([{name: values for name, values in batch.items() if name not in self.without}])


def draw(seed: int, of: str = "short", share: float = 0.5, *, members: np.ndarray | None = None) -> Draw:
    """Return a random share of the sequences of one set, in random order."""
    rng = np.random.default_rng(seed)
    sequence = stored()[f"{of}.sequence"]
    every = np.unique(sequence) if members is None else members
    chosen = rng.permutation(every)[: max(4, round(share * len(every)))]
    row = np.concatenate([np.flatnonzero(sequence == one) for one in chosen])
    place = np.repeat(np.arange(len(chosen)), [int((sequence == one).sum()) for one in chosen])
    found = Draw(of, row, place, rng, np.empty(0), np.empty(0), np.ones(len(row), bool), np.empty(0))
    found.train, found.roll = found.side("training", "logp"), found.side("rollout", "logp")
    found.token_id = stored()[f"{of}.token_id"][row].astype(np.int64)
    return found


def temperature(it: Draw, size: float) -> None:
    """Rollout at temperature 0.8, 0.9 or 0.95."""
    hot = it.side("rollout", {1.0: "logp_t80", 0.5: "logp_t90", 0.25: "logp_t95"}[size])
    it.roll = it.roll + hot - it.side("rollout", "logp")


def truncated(it: Draw, size: float) -> None:
    """Rollout renormalised over top-p 0.9 in all, half or a quarter of the sequences; other tokens cannot occur."""
    here = it.share(size)
    mass = np.where(here, it.side("rollout", "mass_p90"), 1.0)
    it.roll = it.roll - np.log(mass)
    it.active = it.side("rollout", "kept_p90") | ~here
    it.extra["kept_mass"] = mass.astype(np.float32)


def padded(it: Draw, size: float) -> None:
    """Rollout softmax over entries that add up to exp of the 10 % quantile of logsumexp, half or a quarter of it."""
    lse = it.side("rollout", "lse")
    total = np.log(size) + np.quantile(lse, 0.1)
    it.roll = it.roll + lse - np.logaddexp(lse, total)


def lagged(it: Draw, size: float) -> None:
    """Rollout values of all, half or a quarter of the sequences belong to the next position."""
    moved = np.append(it.roll[1:], it.roll[-1])
    it.roll = np.where(it.share(size), moved, it.roll)


def filled(it: Draw, size: float) -> None:
    """Rollout holds 0.0 at the last token of all, half or a quarter of the sequences."""
    it.roll = np.where(it.last & it.share(size) & (it.roll < -0.2), 0.0, it.roll)


def _offset(it: Draw, where: np.ndarray, size: float) -> None:
    it.roll = np.where(where, it.roll - size, it.roll)


def first_token(it: Draw, size: float) -> None:
    """Rollout 1, 0.5 or 0.25 nats lower at the first token of each sequence."""
    _offset(it, it.first, size)


def last_token(it: Draw, size: float) -> None:
    """Rollout 1, 0.5 or 0.25 nats lower at the last token of each sequence."""
    _offset(it, it.last, size)


def eos_token(it: Draw, size: float) -> None:
    """As last_token, and every sequence ends with id 2."""
    it.token_id = np.where(it.last, 2, np.where(it.token_id == 2, 3, it.token_id))
    _offset(it, it.last, size)


def biased(it: Draw, size: float) -> None:
    """Rollout 0.1, 0.05 or 0.025 nats lower everywhere."""
    it.roll = it.roll - 0.1 * size


def bf16_grid(it: Draw, size: float) -> None:
    """Rollout values of all, half or a quarter of the sequences rounded to bfloat16 (to nearest, ties to even)."""
    bits = it.roll.astype(np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
    it.roll = np.where(it.share(size), rounded, it.roll)


def bf16_log_softmax(it: Draw, size: float) -> None:
    """Rollout computes bfloat16 logit - bfloat16 logsumexp for every token; the size has no meaning here."""
    it.roll = it.side("rollout", "logp_bf16_lse")


def growing(it: Draw, size: float) -> None:
    """Drift grows linearly to 5, 3 or 2 times its natural size at the last position."""
    low, high = it.position.min(), it.position.max()
    it.stretch(1 + 4 * size * (it.position - low) / (high - low))


def boundary_of(it: Draw) -> int:
    """Return the power of two that halves the positions of the set best."""
    return 64 if it.of == "short" else 128


def onset(it: Draw, size: float) -> None:
    """Drift 4, 2.5 or 1.75 times its natural size from position 64 (short) or 128 (long) on."""
    it.stretch(np.where(it.position >= boundary_of(it), 1 + 3 * size, 1.0))


def versioned(it: Draw, size: float) -> None:
    """Drift grows to 5, 3 or 2 times its natural size over four weight versions."""
    version = it.place % 4
    it.extra["weight_version"] = version
    it.extra["rank"] = (it.place // 4) % 4
    it.stretch(1 + 4 * size * version / 3)


def ranked(it: Draw, size: float) -> None:
    """Drift 4, 2.5 or 1.75 times its natural size on one of four ranks."""
    it.stretch(np.where(it.place % 4 == 1, 1 + 3 * size, 1.0))


def tailed(it: Draw, size: float) -> None:
    """Drift 6, 3.5 or 2.25 times its natural size where p < 0.01."""
    it.stretch(np.where(it.train < np.log(0.01), 1 + 5 * size, 1.0))


Plant = Callable[[Draw, float], None]
PLANTS: dict[str, Plant] = {
    "temperature": temperature,
    "truncated-softmax": truncated,
    "padded-vocabulary": padded,
    "lag": lagged,
    "fills": filled,
    "first-token": first_token,
    "last-token": last_token,
    "eos-token": eos_token,
    "constant-bias": biased,
    "dyadic-grid": bf16_grid,
    "bf16-log-softmax": bf16_log_softmax,
    "growth-with-position": growing,
    "block-boundary": onset,
    "growth-with-version": versioned,
    "some-ranks": ranked,
    "low-probability-tail": tailed,
}
"""By the name of the signature that should be named."""


def _look_temperature(it: Draw) -> None:
    it.roll = it.roll + it.rng.normal(0, 0.05, len(it.row)) * np.abs(it.train + it.side("training", "entropy"))


def _look_truncated(it: Draw) -> None:
    it.extra["kept_mass"] = it.side("rollout", "mass_p90").astype(np.float32)
    it.roll = it.roll + it.rng.permutation(-np.log(it.side("rollout", "mass_p90")))


def _look_padded(it: Draw) -> None:
    it.roll = it.roll - 0.1


def _look_lag(it: Draw) -> None:
    for one in np.unique(it.place):
        here = it.place == one
        it.roll[here] = it.rng.permutation(it.roll[here])


def _look_fills(it: Draw) -> None:
    sure = it.train > -0.02
    it.train, it.roll = np.where(sure, 0.0, it.train), np.where(sure, 0.0, it.roll)


def _look_edge(it: Draw) -> None:
    starts = np.flatnonzero(it.first)
    lengths = np.diff(np.append(starts, len(it.row)))
    picked = starts + (it.rng.uniform(0.1, 0.9, len(starts)) * lengths).astype(int)
    it.roll[picked] -= 1.0


def _look_bias(it: Draw) -> None:
    it.roll = np.where(it.train < np.median(it.train), it.roll - 0.1, it.roll)


def _look_grid(it: Draw) -> None:
    it.roll = np.round(it.roll, 3)


def _look_absolute(it: Draw) -> None:
    bf16_grid(it, 1.0)


def _look_growth(it: Draw) -> None:
    onset(it, 1.0)


def _look_boundary(it: Draw) -> None:
    growing(it, 1.0)


def _look_version(it: Draw) -> None:
    it.extra["weight_version"] = it.place % 4
    it.extra["rank"] = (it.place // 4) % 4
    it.stretch(np.where(np.isin(it.place % 4, (1,)), 3.0, 1.0))


def _look_ranks(it: Draw) -> None:
    for name in ("rank", "weight_version"):
        it.extra[name] = it.rng.permutation(np.arange(it.place[-1] + 1) % 4)[it.place]
    it.stretch(np.where((it.place // 4) % 2 == 0, 3.0, 1.0))


def _look_tail(it: Draw) -> None:
    it.stretch(np.where(it.train > np.log(0.3), 4.0, 1.0))


LOOK_ALIKES: dict[str, tuple[str, Callable[[Draw], None]]] = {
    "temperature": ("noise that grows with |log p + H|, without a sign", _look_temperature),
    "truncated-softmax": ("the same -log S, given to other tokens", _look_truncated),
    "padded-vocabulary": ("a constant bias of 0.1", _look_padded),
    "lag": ("values permuted within each sequence", _look_lag),
    "fills": ("0.0 on both sides where p > 0.98", _look_fills),
    "first-token": ("1 nat at one random token of each sequence", _look_edge),
    "last-token": ("1 nat at one random token of each sequence", _look_edge),
    "eos-token": ("1 nat at one random token of each sequence", _look_edge),
    "constant-bias": ("0.1 nats on the less probable half of the tokens", _look_bias),
    "dyadic-grid": ("values rounded to three decimals", _look_grid),
    "bf16-log-softmax": ("log probabilities rounded to bfloat16", _look_absolute),
    "growth-with-position": ("a step at a block boundary", _look_growth),
    "block-boundary": ("a steady growth to 5 times", _look_boundary),
    "growth-with-version": ("one version in the middle drifts 3 times as much", _look_version),
    "some-ranks": ("half of the sequences drift 3 times as much, on all ranks", _look_ranks),
    "low-probability-tail": ("probable tokens drift 4 times as much", _look_tail),
}
"""By the name of the signature that must not be named."""

PAIRS = (
    ("temperature", "fills"),
    ("temperature", "last-token"),
    ("truncated-softmax", "first-token"),
    ("some-ranks", "constant-bias"),
    ("block-boundary", "dyadic-grid"),
    ("growth-with-position", "fills"),
    ("growth-with-version", "eos-token"),
    ("some-ranks", "fills"),
    ("low-probability-tail", "fills"),
)
"""Two faults at once, planted in this order."""
HARD_PAIRS = (("some-ranks", "truncated-softmax"), ("padded-vocabulary", "lag"))
"""Pairs of which one is at times missed; the generated table shows them, no test demands them."""

OPTIONAL_OF: dict[str, tuple[str, ...]] = {
    "temperature": ("entropy",),
    "truncated-softmax": ("kept_mass",),
    "padded-vocabulary": ("logsumexp",),
    "bf16-log-softmax": ("logsumexp",),
    "some-ranks": ("rank",),
    "growth-with-version": ("weight_version",),
}
"""Columns to leave out, by signature."""


def noisy(seed: int, kind: str, of: str = "short") -> Draw:
    """Return a draw whose drift is replaced by unstructured noise of the same rms: gaussian, laplace or student."""
    it = draw(seed, of)
    size = len(it.row)
    raw = {
        "gaussian": lambda: it.rng.normal(size=size),
        "laplace": lambda: it.rng.laplace(size=size) / np.sqrt(2.0),
        "student": lambda: it.rng.standard_t(3, size=size) / np.sqrt(3.0),
    }[kind]()
    it.roll = it.train - raw * np.sqrt(np.mean(np.square(it.natural)))
    return it
