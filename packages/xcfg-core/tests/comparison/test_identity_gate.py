"""The identity gate: each way in which a side may not have scored the frozen problem is found and named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from xcfg.comparison import identity_errors
from xcfg.identity.attest import attest_sequence, expected_attestations
from xcfg.identity.rollout import Rollout
from xcfg.schema.codec import evolve
from xcfg.schema.worker import BuildReport, RankRecord, ScoreReport, WeightReport

WEIGHTS = {"embed": "e" * 64, "layer": "1" * 64, "head": "e" * 64}


def build(rank: int = 0, **weights: Any) -> BuildReport:
    report = WeightReport(
        **{"method": "digest", "dtype": "bfloat16", "tensors": dict(WEIGHTS), "fold": "f0", **weights}
    )
    return BuildReport(rank=rank, world_size=1, weights=report)


def score(rollout: Rollout, rank: int = 0, **changes: Any) -> ScoreReport:
    record = RankRecord(
        rank=rank,
        world_size=1,
        role="owner",
        coordinates={},
        ranges=((0, len(rollout.active)),),
        parallelism="none",
        dtype="bfloat16",
        padding_side="none",
        cache_mode="none",
        active_tokens=int(rollout.active.sum()),
    )
    fields = {
        "attestations": expected_attestations(rollout),
        "fold_before": "f0",
        "fold_after": "f0",
        "record": record,
        "transforms": (),
        "state_unchanged": True,
    }
    return ScoreReport(**{"request_id": "1", "rank": rank, **fields, **changes})


@pytest.fixture
def rollout(rollout_of: Any) -> Rollout:
    return rollout_of([4, 6, 3])


def gate(
    rollout: Rollout, *, expected: Any = WEIGHTS, builds: Any = None, scores: Any = None, **more: Any
) -> list[str]:
    return identity_errors(
        rollout,
        expected,
        [build()] if builds is None else builds,
        [score(rollout)] if scores is None else scores,
        **more,
    )


def test_an_honest_side_passes(rollout: Rollout) -> None:
    assert gate(rollout) == []
    assert gate(rollout, transforms_of=[score(rollout)]) == []


def test_the_last_token_need_not_enter_the_model(rollout: Rollout) -> None:
    short = score(rollout, attestations=expected_attestations(rollout, consumed_last=False))
    assert gate(rollout, scores=[short]) == []


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("token_ids", lambda ids, pos, sel: (ids + 1, pos, sel)),
        ("position_ids", lambda ids, pos, sel: (ids, pos + 1, sel)),
        ("selected_ids", lambda ids, pos, sel: (ids, pos, sel[:-1])),
        ("length", lambda ids, pos, sel: (ids[:-2], pos[:-2], sel)),
    ],
)
def test_each_field_is_named_with_its_rank_and_sequence(rollout: Rollout, field: str, change: Any) -> None:
    span = rollout.span(1)
    parts = change(
        rollout.token_ids[span], rollout.tensors["position_ids"][span], rollout.token_ids[span][rollout.active[span]]
    )
    honest = list(expected_attestations(rollout))
    honest[1] = attest_sequence(1, *parts)
    errors = gate(rollout, scores=[score(rollout, rank=3, attestations=tuple(honest))], builds=[build(3)])
    assert len(errors) == 1
    assert errors[0].startswith("rank 3:") and field in errors[0] and "sequence 1" in errors[0]


def test_an_off_by_one_shift_of_the_selected_ids_is_found(rollout: Rollout) -> None:
    span = rollout.span(1)
    shifted = np.roll(rollout.token_ids[span], 1)[rollout.active[span]]
    honest = list(expected_attestations(rollout))
    honest[1] = attest_sequence(1, rollout.token_ids[span], rollout.tensors["position_ids"][span], shifted)
    assert "selected_ids of sequence 1" in gate(rollout, scores=[score(rollout, attestations=tuple(honest))])[0]


def test_nothing_attested_is_a_violation(rollout: Rollout) -> None:
    assert "nothing is attested" in gate(rollout, scores=[])[0]
    errors = gate(rollout, scores=[score(rollout, attestations=())])
    assert any("did not attest to sequence 0, 1, 2" in text for text in errors)
    errors = gate(rollout, scores=[score(rollout, attestations=expected_attestations(rollout)[:2])])
    assert any("no rank attests" in text and "sequence 2" in text for text in errors)
    assert "no weights are attested" in gate(rollout, builds=[])[0]
    assert "attests to no weights" in gate(rollout, builds=[BuildReport(rank=0, world_size=1)])[0]
    empty = gate(rollout, builds=[build(tensors={})])
    assert "'embed', 'head', 'layer'" in empty[0]


def test_an_owner_must_attest_to_what_it_owns(rollout: Rollout) -> None:
    full = expected_attestations(rollout)
    record = score(rollout).record
    spans = {0: ((0, 4),), 1: ((4, 13),)}
    owners = {rank: evolve(record, rank=rank, ranges=ranges) for rank, ranges in spans.items()}
    builds = [build(0), build(1)]
    first, second = (score(rollout, rank, record=owners[rank]) for rank in (0, 1))
    split = [evolve(first, attestations=full[:1]), evolve(second, attestations=full[1:])]
    assert gate(rollout, builds=builds, scores=split) == []
    errors = gate(rollout, builds=builds, scores=[first, evolve(second, attestations=full[2:])])
    assert errors == ["rank 1 scored and did not attest to sequence 1"]
    idle = score(rollout, 1, record=evolve(record, rank=1, role="none", ranges=()), attestations=())
    assert gate(rollout, builds=builds, scores=[first, idle]) == []


def test_a_sequence_that_does_not_exist(rollout: Rollout) -> None:
    extra = (*expected_attestations(rollout), evolve(expected_attestations(rollout)[0], index=9))
    assert "a sequence 9 of 3" in gate(rollout, scores=[score(rollout, attestations=extra)])[0]


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        ({"tensors": {**WEIGHTS, "layer": "2" * 64}}, "differ from the checkpoint cast to bfloat16: 'layer'"),
        (
            {"tensors": {k: v for k, v in WEIGHTS.items() if k != "layer"}},
            "no rank holds the checkpoint's weights: 'layer'",
        ),
        ({"tensors": {**WEIGHTS, "lora": "3" * 64}}, "the checkpoint does not have: 'lora'"),
        ({"method": "guess"}, "unknown method 'guess'"),
    ],
)
def test_weights_per_logical_tensor(rollout: Rollout, weights: dict[str, Any], text: str) -> None:
    errors = gate(rollout, builds=[build(**weights)])
    assert len(errors) == 1 and text in errors[0]


def test_only_a_few_tensors_are_named(rollout: Rollout) -> None:
    wrong = {f"t{number}": "0" * 64 for number in range(50)}
    errors = gate(rollout, expected=dict.fromkeys(wrong, "1" * 64), builds=[build(tensors=wrong)])
    assert "and 47 more" in errors[0] and len(errors[0]) < 200


def test_tied_weights_may_be_missing_or_extra_under_their_alias(rollout: Rollout) -> None:
    tied = {k: v for k, v in WEIGHTS.items() if k != "head"}
    aliases = {"head": "embed"}
    assert gate(rollout, builds=[build(tensors=tied, aliases=aliases)]) == []
    assert gate(rollout, expected=tied, builds=[build(aliases=aliases)]) == []
    lies = build(tensors={**WEIGHTS, "head": "9" * 64}, aliases=aliases)
    assert "aliases differ" in gate(rollout, expected=tied, builds=[lies])[0]
    untied = {**WEIGHTS, "head": "7" * 64}
    assert "'head'" in gate(rollout, expected=untied, builds=[build(tensors=tied, aliases=aliases)])[0]
    nowhere = build(tensors=tied, aliases={"head": "absent"})
    assert "'head'" in gate(rollout, builds=[nowhere])[0]


def test_pipeline_ranks_cover_the_checkpoint_together(rollout: Rollout) -> None:
    halves = [
        build(0, tensors={"embed": WEIGHTS["embed"]}),
        build(1, tensors={k: WEIGHTS[k] for k in ("layer", "head")}),
    ]
    scores = [score(rollout, rank) for rank in (0, 1)]
    assert gate(rollout, builds=halves, scores=scores) == []
    assert "'head', 'layer'" in gate(rollout, builds=halves[:1], scores=scores[:1])[0]


def test_only_a_probe_passes_without_a_checkpoint_to_compare_with(rollout: Rollout) -> None:
    assert "not known" in gate(rollout, expected=None)[0]
    assert gate(rollout, expected=None, builds=[build(method="probe")]) == []


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"fold_after": "f1"}, "changed"),
        ({"fold_before": "f1", "fold_after": "f1"}, "changed"),
        ({"fold_before": ""}, "no weight fold of before"),
        ({"fold_after": ""}, "no weight fold of after"),
        ({"state_unchanged": False}, "not as they were"),
    ],
)
def test_the_score_leaves_the_model_as_it_was(rollout: Rollout, changes: dict[str, Any], text: str) -> None:
    errors = gate(rollout, scores=[score(rollout, **changes)])
    assert len(errors) == 1 and text in errors[0] and "rank 0" in errors[0]


def test_a_build_without_a_fold_proves_nothing(rollout: Rollout) -> None:
    assert "no weight fold of build" in gate(rollout, builds=[build(fold="")])[0]


def test_transform_chains_are_compared_with_the_manifest_and_the_other_side(rollout_of: Any) -> None:
    plain, warm = rollout_of([3]), rollout_of([3], chain=("temperature:0.7",))
    chain = ("temperature:0.7",)
    assert gate(warm, scores=[score(warm, transforms=chain)], transforms_of=[score(warm, transforms=chain)]) == []
    errors = gate(warm, scores=[score(warm)], transforms_of=[score(warm, transforms=chain)])
    assert errors == ["rank 0 applied the transforms [], the rollout manifest has ['temperature:0.7']"]
    errors = gate(plain, scores=[score(plain, transforms=chain)], transforms_of=[score(plain)])
    assert errors == ["rank 0 applied the transforms ['temperature:0.7'], the rollout manifest has []"]
    errors = gate(plain, scores=[score(plain)], transforms_of=[score(plain, transforms=chain)])
    assert errors == ["training rank 0 applied the transforms ['temperature:0.7'], the rollout manifest has []"]
    ranks = [score(plain), score(plain, rank=1, transforms=("soft_cap:30.0",))]
    assert "rank 1" in gate(plain, builds=[build(0), build(1)], scores=ranks)[0]


def test_what_the_model_itself_does_must_be_equal_on_both_sides_and_stands_in_no_manifest(rollout_of: Any) -> None:
    """Failing means that a side which left out the model's soft cap passes for drift, or that an honest pair ends."""
    plain, own, warm = rollout_of([3]), ("soft_cap:30.0",), ("soft_cap:30.0", "temperature:0.7")
    assert gate(plain, scores=[score(plain, transforms=own)], transforms_of=[score(plain, transforms=own)]) == []
    errors = gate(plain, scores=[score(plain, transforms=own)], transforms_of=[score(plain)])
    assert errors == ["training rank 0 applied the transforms [], rank 0 has ['soft_cap:30.0']"]
    other = score(plain, transforms=("logit_scale:0.5",))
    assert "training rank 0" in gate(plain, scores=[score(plain, transforms=own)], transforms_of=[other])[0]
    heated = rollout_of([3], chain=("temperature:0.7",))
    assert gate(heated, scores=[score(heated, transforms=warm)], transforms_of=[score(heated, transforms=warm)]) == []
    assert "the rollout manifest" in gate(plain, scores=[score(plain, transforms=warm)])[0]
    capped = rollout_of([3], chain=own)
    assert gate(capped, scores=[score(capped, transforms=own)], transforms_of=[score(capped, transforms=own)]) == []
    assert "the rollout manifest has ['soft_cap:30.0']" in gate(capped, scores=[score(capped)])[0]
