"""Planning 256 cases against the least that any planner does: parse the JSON, hash 256 documents.

The floor reads the same experiment file and takes SHA-256 over 256 documents as large as what xcfg hashes into a
case id. Both in one process; the plugins are loaded before the clock starts, as in a program that plans often.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import xcfg
from _ratio import alternate, arguments, report, timed
from xcfg.identity.rollout import make_rollout, write_rollout
from xcfg.schema.identity import CheckpointRef

AXES: dict[str, list[Any]] = {
    "batch.size": [8, 16, 32, 64],
    "rollout.dtype": ["bfloat16", "float32"],
    "training.compute_dtype": ["bfloat16", "float32"],
    "training.attention_backend": ["sdpa", "eager"],
    "rollout.attention_backend": ["sdpa", "eager"],
    "batch.padding_side": ["right", "left"],
    "training.sharding": ["unsharded", "fsdp"],
}
"""4 x 2^6 = 256 cells."""


def write_experiment(folder: Path) -> Path:
    """Write an experiment of 256 cases beside a rollout of two short sequences; return the file."""
    ids = np.arange(8)
    rollout = make_rollout(
        {
            "token_ids": ids,
            "offsets": np.asarray([0, 4, 8]),
            "active_mask": np.asarray([0, 0, 1, 1] * 2),
            "attention_mask": np.ones(8),
            "position_ids": ids % 4,
            "selected_token_ids": ids,
            "segment": np.zeros(8),
            "weight_version": np.zeros(8),
        },
        checkpoint=CheckpointRef(uri="builtin:tiny-qwen3-512", digest="0" * 64),
    )
    write_rollout(rollout, folder / "rollout")
    document = {
        "schema_version": "cross_config.experiment_config.v2",
        "experiment_id": "plan-256",
        "scenario_id": "benchmark",
        "strategy": "product",
        "identity": {"rollout": {"path": "rollout", "sha256": rollout.sha256}},
        "baseline": {path: values[0] for path, values in AXES.items()},
        "interventions": [{"path": path, "values": values[1:]} for path, values in AXES.items()],
    }
    file = folder / "experiment.json"
    file.write_text(json.dumps(document, indent=1))
    return file


def main() -> None:
    given = arguments(__doc__, 15).parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        file = write_experiment(Path(scratch))
        manager = xcfg.load_plugins()
        cases = xcfg.load(file, plugins=manager).plan.cases
        identity = {"rollout": "0" * 64, "checkpoint": "0" * 64, "tokenizer": "0" * 64, "sampling": "0" * 64}
        documents = [
            {"knobs": case.knobs, "identity": identity, "role": case.role, "index": case.index} for case in cases
        ]

        def floor() -> None:
            json.loads(file.read_bytes())
            for document in documents:
                text = json.dumps(document, sort_keys=True, separators=(",", ":"))
                hashlib.sha256(text.encode()).hexdigest()

        ratio = alternate(timed(lambda: xcfg.plan(file, plugins=manager)), timed(floor), given.rounds)
    report(
        "plan_256", ratio, as_json=given.json, cases=len(cases), seconds_per_case=min(ratio.wall.subject) / len(cases)
    )


if __name__ == "__main__":
    main()
