"""The two keys: under which a side score and a case may be reused, and what to say when one differs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xcfg.runtime.environment import package_digest, version_of
from xcfg.runtime.fingerprints import binding_facts
from xcfg.schema._base import Value
from xcfg.schema.codec import canonical_json, digest
from xcfg.schema.operators import OperatorBinding
from xcfg.schema.runtime import Placement

COMPARATOR_ROOMS = ("binding", "comparison", "contract", "schema/result.py")


def score_facts(
    *,
    runtime: str,
    side: str,
    arm: str,
    role: str,
    index: int,
    knobs: Mapping[str, Value],
    options: Mapping[str, Any],
    bindings: Mapping[str, OperatorBinding],
    checkpoint: str,
    rollout: str,
    placement: Placement,
    columns: tuple[str, ...],
    environment: Mapping[str, str],
) -> dict[str, Any]:
    """Return everything that a side score depends on; its digest is the key, its fields explain a difference."""
    return {
        "runtime": runtime,
        "side": side,
        "arm": arm,
        "role": role,
        "index": index,
        "knobs": dict(knobs),
        "options": dict(options),
        "operators": {name: binding_facts(binding) for name, binding in bindings.items()},
        "checkpoint": checkpoint,
        "rollout": rollout,
        "world_size": placement.world_size,
        "processes": placement.processes,
        "command": list(placement.command),
        "devices": sorted({device.split(":")[0] for device in placement.devices}),
        "process_env": placement.env,
        "columns": list(columns),
        "environment": dict(environment),
    }


def score_key(facts: Mapping[str, Any]) -> str:
    """Return the key of a side score: 40 hex digits."""
    return digest(facts)[:40]


def case_scoring_key(scores: Mapping[str, str], extra: Mapping[str, Any]) -> str:
    """Return the scoring key of a case: over its side scores by arm, and what else decides its status."""
    return digest({"scores": dict(scores), "extra": dict(extra)})


def comparison_key(contract: str) -> str:
    """Return the comparison key: comparator and contract sources, contract digest, numpy."""
    return digest(
        {
            "comparator": package_digest("xcfg", COMPARATOR_ROOMS),
            "contract": contract,
            "numpy": version_of("numpy"),
        }
    )


def differences(stored: Mapping[str, Any], current: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return the dotted names of fields that differ in canonical JSON, sorted; nested mappings are entered."""
    found = []
    for name in sorted(set(stored) | set(current)):
        old, new = stored.get(name), current.get(name)
        if (name in stored) == (name in current) and canonical_json(old) == canonical_json(new):
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += differences(old, new, f"{prefix}{name}.")
        else:
            found.append(f"{prefix}{name}")
    return found
