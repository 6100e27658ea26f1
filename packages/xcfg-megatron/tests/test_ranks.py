"""Two ranks of a real engine: operators and knobs are read back on each, and ranks agree."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from mcore_inputs import random_rollout

T = "training."
TWO = {T + "tensor_parallel_size": 2}
SPLIT = {T + "context_parallel_size": 2}
NORM, ATTENTION, ROW = "torch.rms_norm_float32", "torch.attention_float32", "torch.row_linear_float32"
EVERYTHING = {"norm": NORM, "attention": ATTENTION, "row_linear": ROW, "activation": "torch.swiglu_float32"}
pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("megatron") is None, reason="Megatron-core is not installed"),
]


@pytest.fixture(scope="module")
def one(lab, job):
    jobs = []
    for dtype in ("float32", "bfloat16"):
        jobs += [
            job(f"base.{dtype}", dtype=dtype),
            job(f"attention.{dtype}", {}, {"attention": ATTENTION}, dtype=dtype),
        ]
    return lab.run(jobs)[0]


@pytest.fixture(scope="module")
def tensor(lab, job):
    jobs = [job("stock-sequence", {**TWO, T + "sequence_parallel": True})]
    for dtype in ("float32", "bfloat16"):
        jobs += [
            job(f"base.{dtype}", TWO, dtype=dtype),
            job(f"norm.{dtype}", TWO, {"norm": NORM}, dtype=dtype),
            job(f"sequence.{dtype}", {**TWO, T + "sequence_parallel": True}, {"norm": NORM}, dtype=dtype),
            job(f"row.{dtype}", TWO, {"row_linear": ROW}, dtype=dtype),
            job(f"every.{dtype}", TWO, EVERYTHING, dtype=dtype),
            job(f"native.{dtype}", TWO, dict.fromkeys(EVERYTHING, "native"), dtype=dtype),
            job(f"unfused.{dtype}", {**TWO, "logp.backend": "megatron.cross_entropy_unfused"}, dtype=dtype),
        ]
    return lab.run(jobs, world=2)


@pytest.fixture(scope="module")
def context(lab, job):
    short = lab.rollout(random_rollout(500, (72, 72), 60))
    knobs = {**SPLIT, T + "temperature": 0.5, T + "vocab_padding_policy": "include"}
    jobs = [job("stock", SPLIT), job("short", knobs, {"attention": ATTENTION}, vocabulary=500, rollout=short)]
    jobs += [
        job(f"attention.{dtype}", SPLIT, {"attention": ATTENTION}, dtype=dtype) for dtype in ("float32", "bfloat16")
    ]
    return lab.run(jobs, world=2)


def between(one, other):
    return float((one.values - other.values).abs().max())


@pytest.mark.parametrize("name", ["base", "norm", "sequence", "row", "every", "native", "unfused"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_both_ranks_have_the_same_scores(tensor, name, dtype):
    """If this fails, the ranks of one engine disagree about the tokens that they both scored."""
    first, second = (rank[f"{name}.{dtype}"] for rank in tensor)
    assert torch.equal(first.values, second.values)
    roles = [item.said["report"]["record"]["role"] for item in (first, second)]
    assert roles == ["owner", "replica"]


def test_two_ranks_round_otherwise_than_one(tensor, one):
    """If this fails, the products were not split, or split wrongly; measured were 2.9e-6 and 5.5e-2."""
    assert 2.9e-7 < between(tensor[0]["base.float32"], one["base.float32"]) < 2.9e-5
    assert 5.5e-3 < between(tensor[0]["base.bfloat16"], one["base.bfloat16"]) < 5.5e-1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sequence_parallelism_moves_no_bit_on_two_ranks(tensor, dtype):
    """If this fails, reduce-scatter adds otherwise than all-reduce; of two ranks there is one order."""
    assert between(tensor[0][f"sequence.{dtype}"], tensor[0][f"norm.{dtype}"]) == 0.0
    for rank in tensor:
        item = rank[f"sequence.{dtype}"].knob(T + "sequence_parallel")
        assert (item["status"], item["actual"], item["exercised"]) == ("applied", True, "yes")
        counts = rank[f"sequence.{dtype}"].said["report"]["counters"]
        assert counts["reduce_scatter"] == 9 and "all_reduce" not in counts
        assert rank[f"norm.{dtype}"].said["report"]["counters"]["all_reduce"] == 9


def test_the_stock_norm_refuses_sequence_parallelism(tensor):
    """If this fails, a case that Megatron-core cannot run is no UNSUPPORTED case on some rank."""
    for rank in tensor:
        said = rank["stock-sequence"].said
        assert said["kind"] == "unsupported"
        assert "training.sequence_parallel=True" in said["error"]
        assert "sequence parallel not supported by torch LayerNorm" in said["error"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["every", "native"])
def test_every_operator_is_seen_on_every_rank(tensor, name, dtype):
    """If this fails, an operator counts as run on a rank that did not call it in every slot."""
    slots = {"norm": 17, "attention": 4, "row_linear": 8, "activation": 4}
    for rank in tensor:
        answer = rank[f"{name}.{dtype}"]
        for operation, count in slots.items():
            item = answer.knob(f"operators.{operation}")
            assert (item["status"], item["exercised"]) == ("applied", "yes"), item
            assert item["evidence"][0]["detail"] == f"{count}; {count}"
            injected = answer.said["report"]["counters"][f"operator.{operation}"]
            assert injected == (0 if name == "native" else count * (8 if operation == "attention" else 1))
    assert between(tensor[0][f"native.{dtype}"], tensor[0][f"base.{dtype}"]) == 0.0


def test_partials_added_in_float32_move_bfloat16_alone(tensor):
    """If this fails, the row-parallel reduction is not in the dtype of the operator; measured were 4.7e-2 and 0."""
    assert 4.7e-3 < between(tensor[0]["row.bfloat16"], tensor[0]["base.bfloat16"]) < 4.7e-1
    assert between(tensor[0]["row.float32"], tensor[0]["base.float32"]) == 0.0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_loss_of_labels_is_our_sum_over_shards(tensor, dtype):
    """If this fails, Megatron-core's loss and our log probability are two functions; measured was 0."""
    assert between(tensor[0][f"unfused.{dtype}"], tensor[0][f"base.{dtype}"]) == 0.0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_split_context_scores_as_one_rank_with_the_same_operator(context, one, dtype):
    """If this fails, a rank attends to keys at wrong positions, or scores a token that is not its own.

    Each rank computes whole rows, so that only a product of another shape can round otherwise.
    """
    answers = [rank[f"attention.{dtype}"] for rank in context]
    active = answers[0].columns["active"]
    first, second = (item.columns["selected_logprob"] for item in answers)
    assert bool((first.isnan() ^ second.isnan())[active].all()), "every active token has one owner"
    merged = torch.where(first.isnan(), second, first)[active]
    gap = (merged - one[f"attention.{dtype}"].values).abs().max()
    assert float(gap) <= {"float32": 1e-5, "bfloat16": 1e-2}[dtype]
    for rank, answer in enumerate(answers):
        item = answer.knob(T + "context_parallel_size")
        assert (item["status"], item["actual"], item["exercised"]) == ("applied", 2, "yes")
        assert item["evidence"][0]["detail"] == "46 of 92"
        report = answer.said["report"]
        assert report["record"]["coordinates"]["cp"] == rank and report["record"]["role"] == "owner"
        assert any("get_pos_emb_on_this_cp_rank" in patch for patch in report["mechanism"]["patches"])


def test_a_rank_that_owns_no_token_has_its_settings_in_place_and_not_exercised(context):
    """If this fails, a response that lies in the columns of one rank alone makes every split context unobservable.

    The responses are the last 12 of 72 columns, of which rank 0 holds the first and the last 18.
    """
    busy, idle = (rank["short"] for rank in context)
    assert [item.said["report"]["record"]["active_tokens"] for item in (busy, idle)] == [24, 0]
    for answer, exercised in ((busy, "yes"), (idle, "no")):
        found = answer.said["report"]["applications"]
        assert {item["status"] for item in found} == {"applied"}, found
        for path in ("logp.backend", T + "temperature", T + "vocab_padding_policy"):
            assert answer.knob(path)["exercised"] == exercised


def test_both_halves_of_a_split_context_attest_to_whole_sequences(context):
    """If this fails, the identity of a sequence rests on the half that one rank was handed."""
    first, second = (rank["attention.float32"].said["report"]["attestations"] for rank in context)
    assert first == second
    assert [item["length"] for item in first] == list(range(70, 92, 3))


def test_the_stock_attention_refuses_a_split_context(context):
    """If this fails, the case is no UNSUPPORTED case on some rank."""
    for rank in context:
        assert rank["stock"].said["kind"] == "unsupported"
        assert "Context parallelism is only supported by TEDotProductAttention" in rank["stock"].said["error"]
