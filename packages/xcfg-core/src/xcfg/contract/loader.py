"""Load a packaged numerical contract by source and version; nothing outside the package can be loaded."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from importlib.resources import files
from typing import Any

from xcfg.errors import ConfigError, did_you_mean
from xcfg.schema.codec import convert, digest, parse_strict
from xcfg.schema.contract import CONTRACT_SCHEMA, Contract, Tolerance

CURRENT = {"ws1": "ws1-c1-v2"}
"""Which packaged version `current` means, per source."""


def available() -> tuple[tuple[str, str], ...]:
    """Return every packaged (source, version), sorted; `current` is an alias of one version per source."""
    return tuple(sorted((document["source"], document["version"]) for document in _documents()))


def load_contract(source: str = "ws1", version: str = "current") -> Contract:
    """Return the packaged contract `source`, `version`; its digest is over the canonical JSON of the file.

    Raises ConfigError, naming what exists, for an unknown source or version.
    """
    resolved = CURRENT.get(source, version) if version == "current" else version
    for document in _documents():
        if document["source"] == source and document["version"] == resolved:
            return _decode(document)
    known = [f"{name} {number}" for name, number in available()]
    raise ConfigError(
        f"there is no numerical contract {source!r} version {version!r}",
        path="$.contract_source" if source not in CURRENT else "$.contract_version",
        hint=did_you_mean(f"{source} {version}", known) + f" Packaged: {', '.join(known)}; `current` is the newest.",
    )


@lru_cache(maxsize=1)
def _documents() -> tuple[dict[str, Any], ...]:
    folder = files("xcfg.contract")
    names = sorted(item.name for item in folder.iterdir() if item.name.endswith(".json"))
    return tuple(parse_strict((folder / name).read_bytes(), source=name) for name in names)


def _decode(document: dict[str, Any]) -> Contract:
    """Return the checked Contract of a parsed file; an unknown or missing field is a ConfigError."""
    name = f"{document.get('version')}.json"
    if "digest" in document:
        raise ConfigError("a contract file does not state its own digest", source=name, path="$.digest")
    contract = convert({**document, "digest": digest(document)}, Contract, source=name)
    faults = list(_faults(contract))
    if faults:
        raise ConfigError("; ".join(faults), source=name, hint="The packaged file is damaged; install xcfg-core again.")
    return contract


def _faults(contract: Contract) -> Iterator[str]:
    if contract.schema_version != CONTRACT_SCHEMA:
        yield f"unknown schema_version {contract.schema_version!r}"
    logprob = contract.accuracy.default.get("logprob", {})
    if not logprob:
        yield "accuracy.default.logprob is missing"
    for dtype, entry in logprob.items():
        if not _usable(entry) or entry.atol == 0 or entry.rtol != 0:
            yield f"accuracy.default.logprob.{dtype} must have a positive atol and rtol 0"
    for classes in (contract.accuracy.default, contract.accuracy.gradients):
        for name, entries in classes.items():
            if not all(_usable(entry) for entry in entries.values()):
                yield f"{name} has a tolerance that is negative or not finite"
    if not 0 < contract.clip_range.low < 1 < contract.clip_range.high < math.inf:
        yield "clip_range must enclose 1"
    rule = contract.assessment
    if not (rule.ratio > 1 and 0 < rule.bias < rule.ratio and 0 < rule.level < 1):
        yield "assessment needs ratio > 1, 0 < bias < ratio, 0 < level < 1"
    if rule.resamples < 1 or rule.min_sequences < 2:
        yield "assessment needs at least 1 resample and 2 sequences"
    edges = contract.descriptive.probability_edges
    if not edges or list(edges) != sorted(set(edges)) or not all(0 < edge < 1 for edge in edges):
        yield "descriptive.probability_edges must rise within (0, 1)"


def _usable(entry: Tolerance) -> bool:
    return all(math.isfinite(value) and value >= 0 for value in (entry.atol, entry.rtol))
