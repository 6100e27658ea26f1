"""Readings of things that no CPU shows, from stand-ins for a live engine whose every number is known."""

from __future__ import annotations

import os
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from xcfg.plugin.operators import BoundOperator
from xcfg.plugin.readback import application
from xcfg.plugin.stated import Statements
from xcfg.schema.names import Applied
from xcfg.schema.operators import OperatorBinding
from xcfg_megatron import build, patches, read_flags, read_layout, read_operators, score
from xcfg_megatron.forward import vocabulary_seen
from xcfg_megatron.readers import Layout

MATMUL = "training.disable_bf16_reduced_precision_matmul"


def status(path, requested, reading):
    return application(path, requested, reading, side="training", rank=0).status


@pytest.mark.parametrize("requested", [False, True])
@pytest.mark.parametrize("allowed", [False, True])
def test_on_cuda_the_live_flag_of_torch_says_how_products_are_reduced(requested, allowed, monkeypatch):
    """If this fails, the configuration is believed where torch is set otherwise."""
    flag = SimpleNamespace(allow_bf16_reduced_precision_reduction=allowed)
    monkeypatch.setattr(torch.backends.cuda, "matmul", flag)
    config = SimpleNamespace(disable_bf16_reduced_precision_matmul=requested)
    engine = SimpleNamespace(device="cuda:0", config=config, forwards=1)
    reading = read_flags.READERS[MATMUL](engine, Layout(), requested)
    assert reading.actual is (not allowed)
    assert status(MATMUL, requested, reading) is (Applied.APPLIED if requested is not allowed else Applied.FALLBACK)


@pytest.mark.parametrize(("rows", "sequences", "ends"), [(4, 9, "applied"), (3, 3, "applied"), (2, 3, "fallback")])
def test_a_batch_is_as_large_as_asked_or_as_there_are_sequences(rows, sequences, ends):
    """If this fails, batches of any size are the one that was asked for, once there are few sequences."""
    reading = read_layout.READERS["batch.size"](SimpleNamespace(), Layout(rows=rows, sequences=sequences), 4)
    assert status("batch.size", 4, reading).value == ends


class Rollout:
    """One sequence of six tokens, none of which is scored."""

    token_ids = np.arange(6)
    active = np.zeros(6, dtype=np.bool_)

    def span(self, sequence):
        return slice(0, 6)


def test_the_columns_of_a_batch_are_its_own_and_not_what_entered(monkeypatch):
    """If this fails, a rank that was handed a quarter of the columns is reported as one that was handed its half."""
    columns = torch.tensor([0, 3])
    ranks = SimpleNamespace(context=2, tensor=1, context_rank=0)
    engine = SimpleNamespace(ranks=ranks, config=SimpleNamespace(sequence_parallel=False), entered=[], rotary=[])

    def forward(engine, ids):
        engine.entered.append(ids[:, columns])
        engine.rotary.append((8, 0))
        return columns, torch.zeros(1, 2, 16)

    monkeypatch.setattr(score, "forward", forward)
    monkeypatch.setattr(score, "ROTARY_ROWS", {8: columns})
    sheet = score.Sheet.empty(6, 1.0, "mask")
    score._batch(engine, Rollout(), [0], sheet)
    assert (sheet.columns, sheet.local_columns) == (8, 2), "six columns are padded to eight, two of which entered"


def test_a_rank_whose_rotary_rows_nobody_saw_attests_to_nothing(monkeypatch):
    """If this fails, the positions of a split context on CUDA are our own columns, whatever rows were taken."""
    engine = SimpleNamespace(ranks=SimpleNamespace(context=2))
    monkeypatch.setattr(score, "ROTARY_ROWS", {})
    with pytest.raises(score.WorkerError, match="nothing saw which of 8 rotary positions"):
        score._rotary_rows(engine, 8, torch.tensor([0, 1, 6, 7]))


def test_the_rows_that_the_engines_own_selection_takes_are_seen(monkeypatch):
    """If this fails, a selection of other rows than ours passes as ours; its result has to stay as it is."""
    monkeypatch.setattr(patches, "ROTARY_ROWS", {})
    taken = torch.tensor([7, 2, 0, 5])
    seeing = patches.seeing_rows(lambda tensor, dim, group: tensor.index_select(dim, taken))
    embedding = torch.randn(8, 1, 1, 4)
    assert torch.equal(seeing(embedding, 0, None), embedding[taken])
    assert patches.ROTARY_ROWS[8].tolist() == [7, 2, 0, 5]


def test_what_ranks_exchange_lies_on_the_device_of_their_group(monkeypatch):
    """If this fails, a split context on CUDA hands CPU tensors to nccl, which refuses them."""
    placed = []
    plain = torch.Tensor.to

    def to(self, *arguments, **named):
        placed.extend(item for item in arguments if item == "cuda:0")
        return plain(self, *("cpu" if item == "cuda:0" else item for item in arguments), **named).clone()

    def all_reduce(tensor, operation=None, group=None):
        if operation is not None:
            tensor.copy_(torch.tensor([5, 6]))

    monkeypatch.setattr(torch.Tensor, "to", to)
    monkeypatch.setattr(score.dist, "all_reduce", all_reduce)
    sheet = score.Sheet.empty(2, 1.0, "mask")
    score._exchange(SimpleNamespace(device="cuda:0", ranks=SimpleNamespace(context_group=None)), sheet)
    assert placed == ["cuda:0"] * 3
    assert [getattr(sheet, name).tolist() for name in ("ids", "positions", "selected")] == [[5, 6]] * 3


def test_a_variable_of_the_user_that_was_deleted_is_listed(monkeypatch):
    """If this fails, a run that ignored NVTE_FLASH_ATTN=1 does not say so, or says so of what Megatron-core set."""
    monkeypatch.setattr(build, "_DELETED", {})
    monkeypatch.setattr(build, "_SET_BY_MEGATRON", {"NVTE_FUSED_ATTN": "1"})
    monkeypatch.setenv("NVTE_FLASH_ATTN", "0")
    monkeypatch.setenv("NVTE_FUSED_ATTN", "1")
    listed = ["the environment variable NVTE_FLASH_ATTN=0 was deleted"]
    assert build.unset_variables() == listed
    assert not [name for name in os.environ if name.startswith("NVTE_")]
    assert build.unset_variables() == listed, "the next engine of the process runs without it too"


def test_a_rank_without_active_tokens_is_idle_and_an_unscored_one_is_not():
    """If this fails, a rank that owed scores and gave none reports its settings as in place."""
    engine = SimpleNamespace(columns=Counter(), shape=SimpleNamespace(vocab=500, padded=512))
    path = "training.temperature"
    for owned, ends in ((0, Applied.APPLIED), (3, Applied.UNOBSERVABLE)):
        layout = Layout(sequences=2, owned=owned, temperature=0.5, policy="mask")
        assert status(path, 0.5, read_layout.READERS[path](engine, layout, 0.5)) is ends


def test_an_injected_attention_is_not_the_models_own():
    """If this fails, model_default counts as applied while another operator computes attention."""
    binding = OperatorBinding(
        operation="attention", side="training", requested="mine", backend_id="mine", factory="mine:make"
    )
    stock, injected = SimpleNamespace(), SimpleNamespace(operator=BoundOperator(binding, max))
    path = "training.attention_backend"
    for modules, ends in (([stock, stock], "applied"), ([injected, injected], "fallback")):
        layers = [SimpleNamespace(self_attention=SimpleNamespace(core_attention=module)) for module in modules]
        engine = SimpleNamespace(model=SimpleNamespace(decoder=SimpleNamespace(layers=layers)), forwards=1)
        reading = read_operators.READERS[path](engine, Layout(), "model_default")
        assert status(path, "model_default", reading).value == ends, reading


STATED = [
    ([], {500: 9}, ("mask", 512)),
    ([], {512: 9}, ("include", 512)),
    ([], {500: 1, 512: 8}, ("sums over [500, 512] columns", 512)),
    ([("mask", 500, 500)], {500: 9}, ("mask", 512)),
    ([("mask", 500, 768)], {500: 9}, ("mask", 768)),
    ([("include", 500, 768)], {500: 9}, ("include", 768)),
    ([("mask", 512, 768)], {512: 9}, ("include", 512)),
    ([("include", 512, 768)], {512: 9}, ("include", 768)),
    ([("mask", 500, 768), ("include", 500, 768)], {500: 9}, ("sums over [500, 768] columns", 768)),
    ([("mask", 490, 490)], {500: 9}, ("sums over [490] columns", 512)),
]
"""What the operator states (policy, real, padded); columns that it was handed: rows; policy and columns in total."""


@pytest.mark.parametrize(("stated", "handed", "total"), STATED)
def test_columns_that_an_operator_adds_are_part_of_the_total(stated, handed, total):
    """If this fails, the sides are compared although one sums over columns that the other does not have."""
    said = [dict(zip(("policy", "real", "padded"), item, strict=True)) for item in stated]
    operator = SimpleNamespace(statements=Statements(vocabularies=said))
    engine = SimpleNamespace(shape=SimpleNamespace(vocab=500, padded=512), columns=Counter(handed), scorer=operator)
    assert vocabulary_seen(engine) == {"policy": total[0], "real": 500, "padded": total[1]}


@pytest.mark.parametrize("said", ["mask", {"policy": "include"}, {"policy": "mask", "real": None, "padded": 1}])
def test_a_statement_that_nobody_understands_is_no_policy(said):
    """If this fails, an operator that states its columns in words of its own passes for one that masks."""
    operator = SimpleNamespace(statements=Statements(vocabularies=[said]))
    engine = SimpleNamespace(shape=SimpleNamespace(vocab=500, padded=512), columns=Counter(), scorer=operator)
    assert vocabulary_seen(engine)["policy"] not in ("mask", "include")
