"""Digests by lifecycle. Two scores may share a living worker only when all of them are equal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xcfg.schema._base import Value
from xcfg.schema.codec import digest
from xcfg.schema.knobs import KnobDefinition
from xcfg.schema.names import Lifecycle
from xcfg.schema.operators import OperatorBinding
from xcfg.schema.runtime import Fingerprints, Placement


def fingerprints(
    *,
    runtime: str,
    side: str,
    knobs: Mapping[str, Value],
    definitions: Mapping[str, KnobDefinition],
    options: Mapping[str, Any],
    checkpoint: str,
    placement: Placement,
    bindings: Mapping[str, OperatorBinding],
) -> Fingerprints:
    """Return the fingerprints of one side; request-lifecycle knobs enter none of them."""

    def of(lifecycle: Lifecycle) -> dict[str, Value]:
        return {path: value for path, value in knobs.items() if definitions[path].lifecycle is lifecycle}

    spread = {path: value for path, value in knobs.items() if definitions[path].distributed}
    return Fingerprints(
        construction=digest(
            {
                "runtime": runtime,
                "side": side,
                "knobs": of(Lifecycle.ENGINE_CONSTRUCTION),
                "options": options,
                "checkpoint": checkpoint,
            }
        ),
        distributed=digest({"world_size": placement.world_size, "processes": placement.processes, "knobs": spread}),
        process=digest(
            {
                "knobs": of(Lifecycle.PROCESS_START),
                "env": placement.env,
                "command": placement.command,
                "devices": placement.devices,
            }
        ),
        build=digest({"knobs": of(Lifecycle.BUILD)}),
        bindings=digest({name: binding_facts(binding) for name, binding in bindings.items()}),
    )


def binding_facts(binding: OperatorBinding) -> dict[str, Any]:
    """Return what of a binding decides numbers: exact id, options, versions and sources; not the trace."""
    return {
        "backend_id": binding.backend_id,
        "options": binding.options,
        "version": binding.version,
        "distribution_version": binding.distribution_version,
        "build_fingerprint": binding.build_fingerprint,
        "source_digest": binding.source_digest,
    }
