"""Compact columns that lose no bit, redaction that changes no figure, and dumps that become frozen rollouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from xcfg.contract import load_contract
from xcfg.dumps import Rows, collect_rows, frozen_rollout, redact, table_of
from xcfg.dumps.rows import compact
from xcfg.errors import ArtifactError, UsageError
from xcfg.flow.compare import judge_dump
from xcfg.identity.rollout import read_rollout, write_rollout
from xcfg.schema.identity import CheckpointRef

NONE = CheckpointRef(uri="builtin:none")


def test_scores_become_narrow_only_where_that_is_exact() -> None:
    exact = np.array([-0.5, np.nan, -0.0, -np.inf, np.float64(np.float32(-0.1))])
    narrow = compact("logp_train", exact)
    assert narrow.dtype == np.float32 and narrow.astype(np.float64).tobytes() == exact.tobytes()
    for value in (-0.1, -1e300, 1 + 2**-30):
        kept = compact("logp_train", np.array([value, np.nan]))
        assert kept.dtype == np.float64 and kept[0] == value


def test_batches_of_mixed_precision_keep_every_value(columns: Any) -> None:
    first = {name: values[:3] for name, values in columns.items()}
    second = {name: values[3:] for name, values in columns.items()}
    second["logp_train"] = np.array([np.nan, -0.1])
    rows = collect_rows([first, second])
    assert rows.columns["logp_train"].dtype == np.float64
    assert rows.columns["logp_train"].tolist()[-1] == -0.1
    assert rows.columns["logp_train"].tolist()[1] == -1.25


@pytest.mark.parametrize("value", [1.5, True, None, (1,)])
def test_ids_are_text_or_integers(columns: Any, value: Any) -> None:
    ids = np.empty(5, dtype=object)
    ids[:] = [value] * 5
    with pytest.raises(ArtifactError, match="neither text nor an integer"):
        collect_rows([columns | {"sample_id": ids}])


def redacted(columns: Any, salt: bytes = b"") -> tuple[Rows, Rows]:
    rows = collect_rows([columns], source="secret-project.npz", dtypes={"training": "bfloat16"})
    return rows, redact(rows, salt)


def test_redaction_changes_no_figure_and_no_mask(columns: Any) -> None:
    columns["token_id"][:] = [1, 2, 3, 4, 2]
    plain, hidden = (table_of(rows) for rows in redacted(columns))
    contract = load_contract()
    first, second = (judge_dump(table, contract) for table in (plain, hidden))
    for name in ("max_abs", "mean_abs", "rms", "approx_kl0", "active_tokens", "mismatches"):
        assert getattr(first.edges["training_vs_rollout"], name) == getattr(second.edges["training_vs_rollout"], name)
    np.testing.assert_array_equal(plain.active, hidden.active)
    assert hidden.token_ids[1] == hidden.token_ids[4] != hidden.token_ids[2]  # equal tokens stay equal
    assert not set(plain.token_ids.tolist()) & set(hidden.token_ids.tolist())
    assert not set(plain.sample_ids) & set(hidden.sample_ids)
    assert all(len(name) == 16 for name in hidden.sample_ids)
    assert "secret" not in repr(hidden)


def test_every_redaction_has_a_salt_of_its_own(columns: Any) -> None:
    once, again = redacted(columns)[1], redacted(columns)[1]
    assert once.sample_ids != again.sample_ids
    assert once.columns["token_id"].tolist() != again.columns["token_id"].tolist()
    assert redacted(columns, b"x" * 32)[1].sample_ids == redacted(columns, b"x" * 32)[1].sample_ids


def test_a_dump_becomes_a_frozen_rollout_with_both_scores(columns: Any, tmp_path: Any) -> None:
    rollout = frozen_rollout(collect_rows([columns]), checkpoint=NONE)
    write_rollout(rollout, tmp_path / "frozen")
    back = read_rollout(tmp_path / "frozen", sha256=rollout.sha256)
    assert back.token_ids.tolist() == [1, 2, 3, 4, 5]
    assert back.active.tolist() == [False, True, True, False, True]
    assert [item.request_id for item in back.manifest.sequences] == ["7", "3"]
    np.testing.assert_array_equal(back.tensors["recorded_logprob"], columns["logp_rollout"])
    np.testing.assert_array_equal(back.tensors["recorded_training_logprob"], columns["logp_train"])
    assert back.manifest.attesters["token_ids"] == "manifest"


def test_segments_are_prompt_generated_and_observation(columns: Any) -> None:
    columns |= {
        "sample_id": np.array([7] * 5),
        "position": np.arange(5),
        "active": np.array([False, False, True, False, True]),
        "logp_train": np.full(5, -1.0),
        "logp_rollout": np.full(5, -1.0),
    }
    assert frozen_rollout(collect_rows([columns]), checkpoint=NONE).tensors["segment"].tolist() == [0, 0, 1, 2, 1]


def test_a_dump_without_its_prompt_cannot_be_frozen(columns: Any) -> None:
    columns["position"] += 4
    with pytest.raises(ArtifactError, match="sample '7' of 'the dump' has no row at position 0") as caught:
        frozen_rollout(collect_rows([columns]), checkpoint=NONE)
    assert "prompt" in caught.value.hint


def test_tokens_of_another_weight_version_are_inactive_and_counted(columns: Any) -> None:
    columns["weight_version"] = np.array([3, 3, 4, 4, 4])
    rows = collect_rows([columns])
    with pytest.raises(UsageError, match="several weight versions: 3, 4"):
        frozen_rollout(rows, checkpoint=NONE)
    kept = frozen_rollout(rows, checkpoint=NONE, weight_version=4)
    assert kept.active.tolist() == [False, False, True, False, True]
    assert kept.manifest.inactive_other_version == 1
    with pytest.raises(ArtifactError, match="no active token of weight version 9"):
        frozen_rollout(rows, checkpoint=NONE, weight_version=9)


def test_nothing_active_is_nothing_to_freeze(columns: Any) -> None:
    columns["active"][:] = False
    with pytest.raises(ArtifactError, match="no active token"):
        frozen_rollout(collect_rows([columns]), checkpoint=NONE)
    with pytest.raises(ArtifactError, match="holds no token"):
        frozen_rollout(collect_rows([]), checkpoint=NONE)
