"""Real runs of the embedded runtime on the tiny model, each made once per session."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "quickstart"
CONTROLS = {"repeats": 1, "fresh_processes": 2, "shuffled": 1, "cold": 1, "at_end": 1}
"""cold: the embedded runtime has no cache that outlives a request, so it has to end UNSUPPORTED and be said."""
GRID = {
    "experiment_id": "grid",
    "strategy": "pairwise",
    "pairwise_paths": [["training.compute_dtype", "training.attention_backend"]],
    "interventions": [
        {"path": "training.compute_dtype", "values": ["float32"]},
        {"path": "training.attention_backend", "values": ["eager"]},
        {"path": "batch.size", "values": [2]},
        {"path": "operators.selected_logprob.training", "values": ["reference"]},
    ],
    "controls": CONTROLS,
    "slices": {"precise": {"training.compute_dtype": ["float32"]}},
}


def write_experiment(folder: Path, **changes: object) -> Path:
    """Write the tiny example with `changes` into `folder`, its frozen rollout beside it; return the file."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copytree(EXAMPLE / "tiny-rollout", folder / "tiny-rollout", dirs_exist_ok=True)
    document = json.loads((EXAMPLE / "tiny.json").read_text(encoding="utf-8")) | changes
    file = folder / f"{document['experiment_id']}.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    return file


PLANTED = Path(__file__).with_name("data") / "planted_operators"
"""A distribution on disk whose backends of selected_logprob have known faults."""
NOISE = 0.01
NOISY = {
    "experiment_id": "noisy",
    "interventions": [{"path": "training.attention_backend", "values": ["eager"]}],
    "operators": {"selected_logprob": {"training": {"backend": "planted.noise", "options": {"rms": NOISE}}}},
    "controls": {"repeats": 2, "fresh_processes": 2, "reference": False},
}
TEMPERED = {
    "experiment_id": "tempered",
    "interventions": [
        {"path": "training.attention_backend", "values": ["eager"]},
        {"path": "batch.size", "values": [2]},
    ],
    "operators": {"selected_logprob": {"training": {"backend": "planted.tempered", "options": {"temperature": 0.7}}}},
    "controls": {"repeats": 1},
}
CURED = {"path": "operators.selected_logprob.training", "values": ["native"]}
"""The intervention that takes the fault of TEMPERED away."""

OPPOSED = {
    "experiment_id": "opposed",
    "strategy": "pairwise",
    "pairwise_paths": [["operators.selected_logprob.training", "operators.selected_logprob.rollout"]],
    "interventions": [
        {"path": "operators.selected_logprob.training", "values": ["native"]},
        {"path": "operators.selected_logprob.rollout", "values": ["native"]},
        {"path": "batch.size", "values": [2]},
    ],
    "operators": {
        "selected_logprob": {
            "training": {"backend": "planted.tempered", "options": {"temperature": 0.7}},
            "rollout": {"backend": "planted.tempered", "options": {"temperature": 1.4}},
        }
    },
    "controls": {"repeats": 1},
}
"""A fault on each side, in opposite directions: neither cure is enough alone, both together are."""
