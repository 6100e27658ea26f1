"""Case ids: 20 hex digits of a SHA-256 over what a case means (contract, section 1, "Ids").

Not in an id: experiment_id, strategy, installed plugins, runtimes, devices and paths. So an equal case of a
changed file, or of another experiment, has the same id.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from xcfg.schema._base import Value
from xcfg.schema.codec import canonical_json
from xcfg.schema.experiment import Experiment
from xcfg.schema.identity import IdentityDigests
from xcfg.schema.operators import OperatorChoice

PREFIX = "case-"
HEX_DIGITS = 20


class CaseIds:
    """Makes the ids of one experiment's cases; what all cases share is put into canonical form once."""

    def __init__(self, experiment: Experiment, identity: IdentityDigests) -> None:
        """Take what does not change from case to case."""
        self._shared = _canonical(
            {
                "runtime_options": experiment.runtime_options,
                "identity": identity,
                "contract": {"version": experiment.contract.version, "digest": experiment.contract.digest},
                "scenario_id": experiment.scenario_id,
                "scenario": experiment.scenario,
                "strict_fallback": experiment.strict_fallback,
            }
        )

    def case_id(
        self,
        knobs: Mapping[str, Value],
        operators: Mapping[str, Mapping[str, OperatorChoice]],
        role: str,
        index: int,
    ) -> str:
        """Return `case-` and 20 hex digits for one case, from its knobs and operators as written down."""
        own = _canonical({"knobs": knobs, "operators": operators, "role": role, "index": index})
        members = sorted((self._shared | own).items())
        # Canonical JSON of an object is its members' canonical JSON in key order.
        text = b"{" + b",".join(b'"' + key.encode() + b'":' + value for key, value in members) + b"}"
        return PREFIX + hashlib.sha256(text).hexdigest()[:HEX_DIGITS]


def _canonical(members: dict[str, Any]) -> dict[str, bytes]:
    return {key: canonical_json(value) for key, value in members.items()}
