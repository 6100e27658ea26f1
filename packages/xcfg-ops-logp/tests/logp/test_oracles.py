"""Every registered backend that runs on a CPU against oracles that are not torch's: mpmath, numpy, float64 autograd.

The list is the registry's. What needs a card is held to the same rows by test_kernels_gpu.py and, in float32 and
float16, by triton_cases.py in the interpreter.
"""

from __future__ import annotations

import math
from functools import partial
from types import ModuleType

import hard_rows
import numpy as np
import pytest
import test_ablation
import test_ablation_head
import test_kernels_gpu
import test_kit
import test_linear
import torch
from hard_rows import VOCABULARIES, backends, cases, check_gradients, check_values, expected, named, stacked
from xcfg.plugin.operators import load_factory
from xcfg_ops_logp.kernel_backends import LIGER
from xcfg_ops_logp.plugin import REFERENCE, xcfg_operator_backends
from xcfg_ops_logp.reference import evaluate
from xcfg_ops_logp.sharded.base import VocabParallel
from xcfg_ops_logp.torch_backends import REFERENCE_FLOAT32
from xcfg_testkit import LinearSelectedLogprobContract, SelectedLogprobContract

CONTRACTS = {
    "selected_logprob": SelectedLogprobContract,
    "linear_selected_logprob": LinearSelectedLogprobContract,
}
CPU, CUDA = backends(device="cpu"), backends(device="cuda")
SHARED = pytest.mark.parametrize(("backend", "dtype"), cases(CPU), ids=named)


def test_no_backend_is_left_out():
    """If this fails, somebody registered a backend that no oracle sees, or that the kit does not hold to its claims."""
    registered = {item.backend_id: item for item in xcfg_operator_backends() if not item.diagnostic_only}
    assert {item.operation for item in registered.values()} == set(CONTRACTS)
    assert registered.keys() == {item.backend_id for item in (*CPU, *CUDA)}
    on_a_card = {item.backend_id for item in CUDA}
    assert {item.backend_id for item, _ in test_kernels_gpu.ORACLES} == on_a_card
    interpreted = {item.backend_id for item in test_kernels_gpu.INTERPRETED}
    assert interpreted == on_a_card - {item.backend_id for item in CPU} - {LIGER.backend_id}
    kit = {
        item.backend_id
        for module in (test_kit, test_linear, test_ablation, test_ablation_head)
        for item in _held(module)
    }
    assert kit == {item.backend_id for item in CPU}
    assert {item.backend_id for item in _held(test_kernels_gpu)} == registered.keys() - kit


def _held(module: ModuleType) -> list:
    """The descriptors that classes of the kit in a module are given."""
    classes = [item for item in vars(module).values() if isinstance(item, type) and hasattr(item, "descriptor")]
    return [item.descriptor for item in classes if issubclass(item, CONTRACTS[item.descriptor.operation])]


@SHARED
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_values(backend, dtype, vocabulary):
    """If this fails, a value is farther from the formula than the precision that the backend works in."""
    check_values(backend, vocabulary, dtype)


@SHARED
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_gradients(backend, dtype, vocabulary):
    """If this fails, training with the backend takes another step than the formula's, or a gradient came or went."""
    check_gradients(backend, vocabulary, dtype)


def three_of(backend):
    """The form of a backend that returns log-sum-exp and entropy too, None where there is none."""
    if backend in (REFERENCE, REFERENCE_FLOAT32):
        return partial(evaluate, dtype="float64" if backend is REFERENCE else "float32")
    operator = load_factory(backend.factory)()
    return operator.values if isinstance(operator, VocabParallel) else None


THREE = [item for item in CPU if three_of(item) is not None]


@pytest.mark.parametrize(("backend", "dtype"), cases(THREE), ids=named)
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_log_sum_exp_and_entropy(backend, dtype, vocabulary):
    """If this fails, an output beside the log probability is another function, or loses digits on hard rows."""
    found = three_of(backend)(*stacked(hard_rows.hard_rows(vocabulary, dtype)))
    for output, values in enumerate(found):
        hard_rows.check(backend, expected(vocabulary, dtype), output, values, vocabulary)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("backend", CPU, ids=named)
def test_nan_is_no_number(backend, dtype):
    """If this fails, logits with a NaN have a log probability, which a comparison could pass."""
    rows = {name: item for name, item in hard_rows.hard_rows(500, dtype).items() if "masked" not in name}
    rows = {name: item for name, item in rows.items() if name not in (hard_rows.ENDS, "one left")}
    inputs, selected = hard_rows.operands(backend, rows, "cpu")
    inputs[0][2, 1] = math.nan
    inputs[0][4, 0] = math.inf
    found = load_factory(backend.factory)()(*inputs, selected)
    assert found.isnan().nonzero()[:, 0].tolist() == [2, 4]


@pytest.mark.parametrize(
    "fault", ["off by a part in ten thousand", "another row", "an entry lost", "no maximum taken out"]
)
@pytest.mark.parametrize("vocabulary", [500, 151_936])
def test_a_planted_fault_is_seen(fault, vocabulary, monkeypatch):
    """If this fails, the comparisons above pass for a wrong backend, and their silence means nothing."""

    def wrong(logits, selected):
        wide = logits.float()
        if fault == "another row":
            wide = wide.roll(1, 0)
        if fault == "an entry lost":
            wide = torch.cat((wide[:, :3], wide[:, 4:], torch.full_like(wide[:, :1], -torch.inf)), dim=1)
        lse = wide.exp().sum(-1).log() if fault == "no maximum taken out" else wide.logsumexp(-1)
        return (logits.float().gather(-1, selected[:, None])[:, 0] - lse) * (1.0001 if "thousand" in fault else 1)

    monkeypatch.setattr(hard_rows, "load_factory", lambda _: lambda: wrong)
    monkeypatch.setattr(hard_rows, "NO_GRADIENT", ())
    with pytest.raises(AssertionError, match="got, wanted, allowed"):
        check_values(CPU[0], vocabulary, "float32")
    with pytest.raises(AssertionError):
        check_gradients(CPU[0], vocabulary, "float32")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("vocabulary", [500, 512])
def test_the_two_oracles_agree(dtype, vocabulary):
    """If this fails, one of the oracles is wrong: they share no code and no library."""
    for name, (row, chosen) in hard_rows.hard_rows(vocabulary, dtype).items():
        wide = row.double().numpy()
        by_numpy = hard_rows.extended(
            *np.unique(wide[wide != -np.inf], return_counts=True), selected=float(wide[chosen])
        )
        assert by_numpy == pytest.approx(expected(vocabulary, dtype)[name], rel=1e-15, abs=1e-15), name


@pytest.mark.parametrize("vocabulary", [49_152, 151_936])
def test_large_vocabularies_are_summed_in_mpmath(vocabulary):
    """If this fails, the largest vocabularies are held against numpy alone."""
    rows = hard_rows.hard_rows(vocabulary, "bfloat16")
    assert all(len(row.double().unique()) <= hard_rows.BY_MPMATH for row, _ in rows.values())
