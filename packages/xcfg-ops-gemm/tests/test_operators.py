"""The operators against their formulas in float64, and how often each rounds."""

from __future__ import annotations

import pytest
import torch
from xcfg.plugin.operators import load_factory
from xcfg_ops_gemm.backends import BACKENDS

BY_ID = {item.backend_id: item for item in BACKENDS}
EPS = 1e-6
ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-24}
"""Half a unit in the last place, relative."""
NARROW = [torch.bfloat16, torch.float16, torch.float32]


def operator(backend):
    return load_factory(BY_ID[backend].factory)()


def normal(*shape, dtype, scale=1.0):
    generator = torch.Generator().manual_seed(sum(shape) + int(100 * scale))
    return (torch.randn(*shape, generator=generator, dtype=torch.float64) * scale).to(dtype)


def norm_formula(x, weight):
    x, weight = x.double(), weight.double()
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight


def swiglu_formula(gate, up):
    gate, up = gate.double(), up.double()
    return gate / (1 + torch.exp(-gate)) * up


def relative(found, expected):
    return float(((found.double() - expected).abs() / expected.abs().clamp_min(1e-30)).max())


@pytest.mark.parametrize("dtype", NARROW)
def test_norm_rounds_once(dtype):
    """If this fails, the reference norm is off by more than the one rounding (and float32's own) that it declares."""
    x, weight = normal(3, 5, 96, dtype=dtype, scale=3.0), normal(96, dtype=dtype)
    found = operator("torch.rms_norm_float32")(x, weight, EPS)
    assert (found.dtype, found.shape) == (dtype, x.shape)
    assert relative(found, norm_formula(x, weight)) <= ROUNDING[dtype] + 16 * ROUNDING[torch.float32]


def test_norm_in_float64_is_the_formula():
    """If this fails, a float64 oracle through this operator is only as good as float32."""
    x, weight = normal(7, 64, dtype=torch.float64), normal(64, dtype=torch.float64)
    assert relative(operator("torch.rms_norm_float32")(x, weight, EPS), norm_formula(x, weight)) < 1e-14


def test_norm_by_hand():
    """If this fails, the mean square or eps is wrong: x = (3, 4), eps = 0 gives rms sqrt(12.5)."""
    found = operator("torch.rms_norm_float32")(torch.tensor([3.0, 4.0]), torch.tensor([2.0, -1.0]), 0.0)
    assert found.tolist() == pytest.approx([6 / 12.5**0.5, -4 / 12.5**0.5], rel=1e-6)
    eps = operator("torch.rms_norm_float32")(torch.zeros(4), torch.ones(4), 1e-6)
    assert eps.tolist() == [0.0] * 4, "eps keeps a row of zeros from a division by zero"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_norm_in_the_input_dtype_rounds_more_than_once(dtype):
    """If this fails, both backends are the same operator and a swap between them shows nothing."""
    x, weight = normal(64, 96, dtype=dtype), normal(96, dtype=dtype)
    found = operator("torch.rms_norm_input_dtype")(x, weight, EPS)
    error = relative(found, norm_formula(x, weight))
    assert found.dtype == dtype
    assert ROUNDING[dtype] * 1.2 < error < ROUNDING[dtype] * 8


@pytest.mark.parametrize("dtype", NARROW)
def test_swiglu_rounds_once(dtype):
    """If this fails, the reference activation is off by more than one rounding."""
    gate, up = normal(5, 40, dtype=dtype, scale=3.0), normal(5, 40, dtype=dtype)
    found = operator("torch.swiglu_float32")(gate, up)
    assert found.dtype == dtype
    expected = swiglu_formula(gate, up)
    bound = expected.abs() * (ROUNDING[dtype] + 8 * ROUNDING[torch.float32])
    smallest = torch.finfo(dtype).tiny * torch.finfo(dtype).eps / 2
    assert bool(((found.double() - expected).abs() <= bound + smallest).all())


def test_swiglu_by_hand():
    """If this fails, gate and up are exchanged: silu(0) is 0 whatever up is, and silu(large) is the gate."""
    found = operator("torch.swiglu_float32")(torch.tensor([0.0, 40.0, 2.0]), torch.tensor([7.0, 3.0, 0.0]))
    assert found.tolist() == [0.0, 120.0, 0.0]


def test_the_activation_in_bfloat16_rounds_twice():
    """If this fails, silu is not rounded before the product, as it is when a model runs the two operations apart."""
    gate, up = normal(64, 40, dtype=torch.bfloat16, scale=3.0), normal(64, 40, dtype=torch.bfloat16)
    found = operator("torch.swiglu_input_dtype")(gate, up)
    rounded = (gate.double() / (1 + torch.exp(-gate.double()))).to(torch.bfloat16).double()
    assert torch.equal(found, (rounded * up.double()).to(torch.bfloat16))
    assert relative(found, swiglu_formula(gate, up)) > ROUNDING[torch.bfloat16] * 1.2


@pytest.mark.parametrize("dtype", NARROW)
def test_row_linear_returns_float32_partials_that_add_up(dtype):
    """If this fails, a row-parallel layer rounds before its ranks are added."""
    x, weight = normal(6, 64, dtype=dtype), normal(10, 64, dtype=dtype)
    call = operator("torch.row_linear_float32")
    parts = [call(x[:, start : start + 32], weight[:, start : start + 32]) for start in (0, 32)]
    assert {part.dtype for part in parts} == {torch.float32}
    expected = x.double() @ weight.double().t()
    bound = (x.double().abs() @ weight.double().abs().t()) * 64 * ROUNDING[torch.float32]
    assert bool(((sum(parts).double() - expected).abs() <= bound).all())


@pytest.mark.parametrize("backend", sorted(BY_ID))
def test_inputs_stay_as_they_were(backend):
    """If this fails, an injected operator changes what the next one reads."""
    x, other = normal(4, 16, dtype=torch.float32), normal(16, dtype=torch.float32).expand(4, 16).clone()
    kept = x.clone(), other.clone()
    arguments = {"norm": (x, other[0], EPS), "activation": (x, other), "row_linear": (x, other)}
    operator(backend)(*arguments[BY_ID[backend].operation])
    assert torch.equal(x, kept[0])
    assert torch.equal(other, kept[1])
