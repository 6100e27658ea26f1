"""The operators against float64 loops that know nothing of einsum, masks or chunked heads."""

from __future__ import annotations

import cmath
import math

import pytest
import torch
from xcfg.plugin.operators import load_factory
from xcfg_ops_attention.backends import BACKENDS

BY_ID = {item.backend_id: item for item in BACKENDS}
ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-24}
ATTENTION = ["torch.attention_float32", "torch.sdpa"]


def operator(backend):
    return load_factory(BY_ID[backend].factory)()


def normal(*shape, dtype=torch.float64, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def attend(query, key, value, scale, first):
    """One query and one head at a time, in float64."""
    q, k, v = (item.double().tolist() for item in (query, key, value))
    heads, per_group = len(q[0]), len(q[0]) // len(k[0])
    out = torch.zeros(query.shape, dtype=torch.float64)
    for row, position in enumerate(range(first, first + len(q))):
        for head in range(heads):
            group = head // per_group
            scores = [
                scale * math.fsum(map(math.prod, zip(q[row][head], k[j][group], strict=True)))
                for j in range(position + 1)
            ]
            weights = [math.exp(score - max(scores)) for score in scores]
            for d in range(len(q[0][0])):
                terms = [weight * v[j][group][d] for j, weight in enumerate(weights)]
                out[row, head, d] = math.fsum(terms) / math.fsum(weights)
    return out


@pytest.mark.parametrize("backend", ATTENTION)
@pytest.mark.parametrize(("rows", "keys", "first"), [(6, 6, 0), (1, 6, 5), (3, 9, 4), (2, 9, 7), (1, 1, 0)])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_attention_in_float64_is_the_formula(backend, rows, keys, first, groups):
    """If this fails, the causal bound, the position of the first query or the grouping of heads is wrong."""
    query, key, value = normal(rows, 4, 8), normal(keys, groups, 8, seed=1), normal(keys, groups, 8, seed=2)
    found = operator(backend)(query, key, value, 0.3, first)
    assert found.shape == query.shape
    assert float((found - attend(query, key, value, 0.3, first)).abs().max()) < 1e-13


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_reference_rounds_once(dtype):
    """If this fails, the reference rounds scores or weights to the input dtype on its way."""
    query, key, value = (normal(12, heads, 16, dtype=dtype, seed=heads) for heads in (4, 2, 2))
    found = operator("torch.attention_float32")(query, key, value, 0.3, 0)
    expected = attend(query, key, value, 0.3, 0)
    bound = expected.abs() * ROUNDING[dtype] + 1e-5 * value.double().abs().max()
    assert found.dtype == dtype
    assert bool(((found.double() - expected).abs() <= bound).all())


@pytest.mark.parametrize("backend", ATTENTION)
def test_later_keys_are_not_seen(backend):
    """If this fails, a query looks into the future: a NaN-free but huge later key would move it."""
    query, key, value = (normal(5, heads, 8, dtype=torch.float32, seed=heads) for heads in (4, 2, 2))
    base = operator(backend)(query[:3], key, value, 0.3, 0)
    key[3:], value[3:] = 100.0, 1000.0
    assert torch.equal(operator(backend)(query[:3], key, value, 0.3, 0), base)


@pytest.mark.parametrize("backend", ATTENTION)
@pytest.mark.parametrize(
    ("query", "key", "first", "says"),
    [
        ((3, 4, 8), (3, 3, 8), 0, "groups"),
        ((3, 4, 8), (3, 2, 4), 0, "do not fit"),
        ((3, 4, 8), (3, 2, 8), 1, "behind the last key"),
        ((3, 4, 8), (3, 2, 8), -1, "behind the last key"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(backend, query, key, first, says):
    """If this fails, a wrong shape is broadcast into a wrong answer."""
    with pytest.raises(ValueError, match=says):
        operator(backend)(torch.zeros(query), torch.zeros(key), torch.zeros(key), 1.0, first)


def angles(rows, half):
    table = torch.arange(rows, dtype=torch.float64)[:, None] * 0.7 ** torch.arange(half, dtype=torch.float64)
    return table.cos(), table.sin()


def turned(x, cos, sin):
    """Each pair (i, i + D/2) as one complex number, multiplied by the unit number of its angle."""
    out, half = x.double().clone(), x.shape[-1] // 2
    for t in range(x.shape[0]):
        for i in range(half):
            unit = cmath.rect(1.0, math.atan2(float(sin[t, i]), float(cos[t, i])))
            for head in range(x.shape[1]):
                value = complex(float(x[t, head, i]), float(x[t, head, i + half])) * unit
                out[t, head, i], out[t, head, i + half] = value.real, value.imag
    return out


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_rotary_is_a_complex_product(dtype):
    """If this fails, the layout is interleaved, the sign of the sine is wrong, or more than one rounding happens."""
    query, key = normal(5, 4, 8, dtype=dtype), normal(5, 2, 8, dtype=dtype, seed=1)
    cos, sin = angles(5, 4)
    rotated = operator("torch.rotary_float32")(query, key, cos, sin)
    for found, given in zip(rotated, (query, key), strict=True):
        expected = turned(given, cos, sin)
        bound = expected.abs() * ROUNDING.get(dtype, 0) + (1e-14 if dtype is torch.float64 else 2e-6)
        assert (found.dtype, found.shape) == (dtype, given.shape)
        assert bool(((found.double() - expected).abs() <= bound).all())


def test_position_zero_is_not_turned():
    """If this fails, cos and sin are exchanged."""
    query = normal(1, 2, 8)
    found, _ = operator("torch.rotary_float32")(query, query, *angles(1, 4))
    assert torch.equal(found, query)


def test_a_rotary_table_of_full_width_is_refused():
    """If this fails, a table that was already doubled to D columns is read as if it were D/2."""
    x = normal(3, 2, 8)
    with pytest.raises(ValueError, match="do not fit"):
        operator("torch.rotary_float32")(x, x, torch.ones(3, 8), torch.zeros(3, 8))
