"""Whether a case that claims determinism ran under one set of determinism flags, as its workers read them.

A claim is a knob or a runtime option that says so. Without one nothing here binds: flags that differ are then part of
what the two sides are. With one, the flags of the libraries that run on both sides must be known and mean the same,
and a flag that contradicts the claim of its own side refutes it. A claim that the case itself varies is the declared
difference, and the flags that follow from it are measured; they must be known and must not contradict it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from xcfg.binding.compare import Difference, Stated, same
from xcfg.binding.determinism import CLAIMS, CUBLAS, KEY, NVTE, TORCH, DeterminismSpec
from xcfg.binding.marks import fields_of
from xcfg.binding.verdict import bind
from xcfg.errors import ConfigError
from xcfg.schema._base import Value
from xcfg.schema.codec import convert, plain
from xcfg.schema.names import Tier
from xcfg.schema.worker import ScoreReport

PATH = f"mechanism.{KEY}"
SIDES = ("training", "rollout")
KEPT: dict[str, tuple[tuple[str, str, tuple[Value, ...]], ...]] = {
    "deterministic_algorithms": (
        ("deterministic_algorithms", TORCH, (True,)),
        ("deterministic_warn_only", TORCH, (False,)),
        ("CUBLAS_WORKSPACE_CONFIG", CUBLAS, (":4096:8", ":16:8")),
    ),
    "deterministic_mode": (("NVTE_ALLOW_NONDETERMINISTIC_ALGO", NVTE, ("off",)),),
}
"""Claim -> (flag, library, values under which the claim can hold). The workspace sizes are those that cuBLAS names."""


def claims_of(knobs: Mapping[str, Value], options: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return side -> claim -> what makes it (`the knob training.deterministic_mode`); only what is asked to be true."""
    found: dict[str, dict[str, str]] = {side: {} for side in SIDES}
    for key, value in knobs.items():
        path, _, only = key.partition("@")
        owner, _, word = path.rpartition(".")
        if word in CLAIMS and value is True:
            sides = [side for side in SIDES if side in (only, owner.partition(".")[0])] or list(SIDES)
            for side in sides:
                found[side][word] = f"the knob {key}"
    for side in SIDES:
        asked = options.get(side) or {}
        for name, value in asked.items() if isinstance(asked, Mapping) else ():
            word = str(name).replace("-", "_")
            if word in CLAIMS and value is True:
                found[side].setdefault(word, f"runtime_options.{side}.{name}")
    return found


def determinism_differences(
    reports: Mapping[str, Sequence[ScoreReport]],
    knobs: Mapping[str, Value],
    options: Mapping[str, Any],
    delta: Collection[str] = (),
) -> list[dict[str, Any]]:
    """Return what refutes the case's claim of determinism: side -> value, path, tier, and why; empty without a claim.

    reports: side -> the score reports of its ranks in the arm that decides. delta: the paths that the case varies.
    """
    claims = claims_of(knobs, options)
    if not any(claims.values()):
        return []
    held = {side: _read(reports.get(side, ())) for side in SIDES}
    silent = [side for side in SIDES if held[side] is None]
    if silent:
        return [_unread(silent, claims)]
    ranks = {side: read or [] for side, read in held.items()}
    found = [item for side in SIDES for item in _refuted(side, ranks[side], claims[side])]
    held_still = {key: value for key, value in knobs.items() if key not in delta and key.partition("@")[0] not in delta}
    claims = claims_of(held_still, options)
    if not any(claims.values()):
        return found
    seen: set[str] = set()
    for first in ranks["training"]:
        for second in ranks["rollout"]:
            for item in _unequal(first, second, claims):
                if item.path not in seen:
                    seen.add(item.path)
                    found.append(_row(item, claims))
    return found


@dataclass(frozen=True)
class _Probe:
    """The flags and libraries of one rank."""

    rank: int
    spec: DeterminismSpec
    libraries: frozenset[str]

    def stated(self, side: str) -> Stated:
        return Stated(self.spec, holder=side, origin=f"read in the worker of rank {self.rank}")


def _read(reports: Sequence[ScoreReport]) -> list[_Probe] | None:
    """Return the probes of all ranks of a side; None where a rank has none, or one that cannot be read."""
    found = []
    for report in reports:
        said = report.mechanism.get(KEY)
        if not isinstance(said, dict) or not isinstance(said.get("libraries"), (list, tuple)):
            return None
        try:
            spec = convert(said.get("flags") or {}, DeterminismSpec)
        except ConfigError:
            return None
        found.append(_Probe(report.rank, spec, frozenset(map(str, said["libraries"]))))
    return found or None


def _unread(sides: Sequence[str], claims: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    values = {side: "not read" if side in sides else "read" for side in SIDES}
    why = (
        f"{_claimed(claims)} claims determinism, and a rank of {' and '.join(sides)} did not report {PATH}: a worker "
        "that serves through xcfg.serve does; another program puts xcfg.read_determinism() there"
    )
    return {"path": PATH, **values, "tier": Tier.SEMANTIC.value, "reason": why}


def _refuted(side: str, ranks: Sequence[_Probe], claims: Mapping[str, str]) -> list[dict[str, Any]]:
    leaves = {item.path: item for item in fields_of(DeterminismSpec)}
    found = []
    for claim, source in claims.items():
        for flag, library, allowed in KEPT.get(claim, ()):
            for probe in ranks:
                value = leaves[flag].of(probe.spec)
                spell = leaves[flag].spell
                seen = value if spell is None or value is None else spell(value)
                if library in probe.libraries and not any(same(seen, item) for item in allowed):
                    needed = " or ".join(repr(item) for item in allowed)
                    why = (
                        f"{source} claims determinism of {side}, and {flag} is {value!r} in the worker of rank "
                        f"{probe.rank}, where {library} runs: it takes {needed}"
                    )
                    row = {"path": f"{PATH}.{flag}", side: value, "tier": Tier.SEMANTIC.value, "reason": why}
                    found.append({**dict.fromkeys(SIDES, ""), **row})
                    break
    return found


def _unequal(first: _Probe, second: _Probe, claims: Mapping[str, Mapping[str, str]]) -> tuple[Difference, ...]:
    """Return the refusals between two ranks; a switch that only one side claims is declared by that claim."""
    alone = {word for word in CLAIMS if sum(word in claims[side] for side in SIDES) == 1}
    declared = [item.path for item in fields_of(DeterminismSpec) if item.path in alone]
    bound = bind(
        first.stated("training"),
        second.stated("rollout"),
        declared=declared,
        active=first.libraries & second.libraries,
    )
    return bound.refusals


def _row(item: Difference, claims: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    why = f"{_claimed(claims)} claims determinism: {item.explain()}"
    return {
        "path": f"{PATH}.{item.path}",
        "training": plain(item.first),
        "rollout": plain(item.second),
        "tier": item.tier.value,
        "reason": why,
    }


def _claimed(claims: Mapping[str, Mapping[str, str]]) -> str:
    return " and ".join(source for side in SIDES for source in claims[side].values())
