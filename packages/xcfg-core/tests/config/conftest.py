from __future__ import annotations

import copy
import json

import pytest
from xcfg.config import parse_experiment

IDENTITY = {
    "checkpoint_id": "builtin:tiny",
    "model_version": "1",
    "tokenizer_policy": "token-ids-only",
    "token_ids": [[5, 6, 7], [8, 9, 10]],
    "selected_token_ids": [[5, 6, 7], [8, 9, 10]],
    "active_mask": [[False, True, True], [False, False, True]],
    "attention_mask": [[True, True, True], [True, True, True]],
    "pre_update_state": "pre-update",
}
BASELINE = {
    "batch": {"size": 8},
    "rollout": {
        "tensor_parallel_size": 1,
        "context_parallel_size": 1,
        "dtype": "bfloat16",
        "enable_prefix_caching": False,
        "enforce_eager": True,
    },
    "training": {"attention_backend": "sdpa", "compute_dtype": "bfloat16", "sharding": "unsharded"},
    "logp": {"backend": "native"},
}


def base(version: str) -> dict:
    return copy.deepcopy(
        {
            "schema_version": f"cross_config.experiment_config.{version}",
            "experiment_id": "exp-1",
            "scenario_id": "tiny",
            "identity": IDENTITY,
            "baseline": BASELINE,
            "interventions": [{"path": "batch.size", "values": [1]}],
        }
    )


@pytest.fixture
def v1():
    return base("v1")


@pytest.fixture
def v2():
    return base("v2")


@pytest.fixture
def parse(tmp_path):
    def parsed(document):
        return parse_experiment(document, source="e.json", base_dir=str(tmp_path))

    return parsed


@pytest.fixture
def write(tmp_path):
    def written(document, name="e.json"):
        file = tmp_path / name
        file.write_text(document if isinstance(document, str) else json.dumps(document))
        return file

    return written
