from __future__ import annotations

import pytest
from xcfg.errors import ConfigError

FAULTS = [
    ("$.identity.token_ids", "token_ids", []),
    ("$.identity.token_ids", "token_ids", [[]]),
    ("$.identity.selected_token_ids", "selected_token_ids", [[5, 6, 7]]),
    ("$.identity.active_mask[1]", "active_mask", [[False, True, True], [False, True]]),
    ("$.identity.attention_mask", "attention_mask", []),
    ("$.identity.attention_mask[0][0]", "attention_mask", [[1, 1, 1], [1, 1, 1]]),
    ("$.identity.token_ids[0][1]", "token_ids", [[5, True, 7], [8, 9, 10]]),
    ("$.identity.token_ids[0][1]", "token_ids", [[5, 6.0, 7], [8, 9, 10]]),
    ("$.identity.token_ids[0][1]", "token_ids", [[5, "6", 7], [8, 9, 10]]),
    ("$.identity.token_ids[0][1]", "token_ids", [[5, -1, 7], [8, 9, 10]]),
    ("$.identity.token_ids[1]", "token_ids", [[5, 6, 7], [8, 9, 10, 11]]),
    ("$.identity.position_ids", "position_ids", [[0, 1, 2]]),
    ("$.identity.active_mask[0][1]", "active_mask", [[False, 1, True], [False, False, True]]),
    ("$.identity.checkpoint_id", "checkpoint_id", " "),
    ("$.identity.tokenizer_id", "tokenizer_id", 3),
    ("$.identity.cache_metadata", "cache_metadata", []),
    ("$.identity", "extra", 1),
]


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize(("path", "key", "value"), FAULTS)
def test_a_fault_is_named_by_its_cell(version, path, key, value, request, parse):
    document = request.getfixturevalue(version)
    document["identity"][key] = value
    with pytest.raises(ConfigError) as error:
        parse(document)
    assert error.value.path == path


@pytest.mark.parametrize(
    "key",
    [
        "checkpoint_id",
        "model_version",
        "tokenizer_policy",
        "token_ids",
        "selected_token_ids",
        "active_mask",
        "pre_update_state",
        "attention_mask",
    ],
)
def test_each_required_key_is_required(key, v2, parse):
    del v2["identity"][key]
    with pytest.raises(ConfigError, match=key):
        parse(v2)


def test_v1_has_no_frozen_rollout(v1, parse):
    with pytest.raises(ConfigError, match="needs v2") as error:
        parse(v1 | {"identity": {"rollout": {"path": "r", "sha256": "0" * 64}}})
    assert error.value.path == "$.identity.rollout"


@pytest.mark.parametrize(
    ("path", "rollout"),
    [
        ("$.identity.rollout.sha256", {"path": "r", "sha256": "0" * 63}),
        ("$.identity.rollout.sha256", {"path": "r", "sha256": "A" * 64}),
        ("$.identity.rollout.path", {"path": "", "sha256": "0" * 64}),
        ("$.identity.rollout.path", {"path": "a\0", "sha256": "0" * 64}),
        ("$.identity.rollout", {"path": "r"}),
        ("$.identity.rollout", "r"),
    ],
)
def test_a_frozen_rollout_is_a_path_and_a_digest(path, rollout, v2, parse):
    with pytest.raises(ConfigError) as error:
        parse(v2 | {"identity": {"rollout": rollout}})
    assert error.value.path == path


def test_a_frozen_rollout_and_matrices_do_not_mix(v2, parse):
    v2["identity"]["rollout"] = {"path": "r", "sha256": "0" * 64}
    with pytest.raises(ConfigError, match="unknown field"):
        parse(v2)
