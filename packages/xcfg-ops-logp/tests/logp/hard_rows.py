"""One set of hard rows for every backend: values by mpmath or extended precision, gradients by float64 autograd.

A backend that takes hidden states and the head's weights is handed the same logits: hidden states that are rows of the
identity, and weights whose columns are the logits. Every product is then exact, in every order and dtype.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

import mpmath
import numpy as np
import torch
from numpy.typing import NDArray
from xcfg.plugin.operators import load_factory
from xcfg.schema.operators import OperatorBackendDescriptor
from xcfg_ops_logp.plugin import xcfg_operator_backends
from xcfg_testkit import oracles

Array = NDArray[np.float64]
VOCABULARIES = (1, 2, 500, 512, 49_152, 151_936)
BY_MPMATH = 4096
"""Distinct logits of a row up to which it is summed in mpmath: equal ones are counted, and bfloat16 has few."""
DEPTH = 16
"""K of the heads: the rows, rounded up to what the tiles take."""
LINEAR = "linear_selected_logprob"
NO_GRADIENT = (
    "xcfg.reference_logp",
    "xcfg.reference_logp_float32",
    "xcfg.reference_linear_logp",
    "xcfg.liger_linear_logp",
)
CANCELS = ("xcfg.liger_linear_logp",)
"""Takes the selected logit from the log-sum-exp: the error grows with both, and near the end of a dtype it is all."""
CANCELS_IN_ENTROPY = ("xcfg.slime_vocab_parallel_logp",)
"""Takes the mean logit from the log-sum-exp, as slime does."""
QUANTISED = ("xcfg.fixed_point_logp",)
"""Rounds every exponential to 44 binary places."""
LANES = 4
RUNNING = ("xcfg.torch_linear_logp",)
"""torch's log_softmax on a CPU adds up a row in one running sum for each lane of a vector, LANES at least."""
ENDS = "near the end"
"""The row that heads cannot have a gradient of hidden states through: its weights are the largest of the dtype."""


def backends(*, device: str) -> list[OperatorBackendDescriptor]:
    """Return all backends of this package that run on `device` and return log probabilities."""
    return [item for item in xcfg_operator_backends() if device in item.devices and not item.diagnostic_only]


def cases(
    found: Iterable[OperatorBackendDescriptor], dtypes: Iterable[str] = ("bfloat16", "float16", "float32", "float64")
):
    """Return (backend, dtype) for all dtypes that each declares, out of `dtypes`."""
    return [(item, dtype) for item in found for dtype in item.dtypes if dtype in dtypes]


def named(item: object) -> str:
    """Return the id of a case: a backend's id, or the value itself."""
    return str(getattr(item, "backend_id", item))


@cache
def hard_rows(vocabulary: int, dtype: str) -> dict[str, tuple[torch.Tensor, int]]:
    """Return name -> (logits [V] in `dtype`, selected id); rows with -inf only where there is another entry."""
    kind = getattr(torch, dtype)
    end = torch.finfo(kind).max
    plain = 4 * torch.randn(vocabulary, generator=torch.Generator().manual_seed(vocabulary), dtype=torch.float64)
    last, middle = vocabulary - 1, vocabulary // 2
    peaked = plain.clone()
    peaked[middle] = 40
    ends = torch.full_like(plain, -end)
    ends[0] = ends[last] = end
    found = {
        ENDS: (ends, last),
        "plain": (plain, last),
        "almost certain": (peaked, middle),
        "almost impossible": (peaked, 0),
        "ties of the maximum": (plain.clamp(max=1), int(plain.argmax())),
        "ties of the minimum": (plain.clamp(min=1), int(plain.argmin())),
        "all equal": (torch.full_like(plain, 3.25), middle),
        "signed zeros": (torch.where(plain > 0, 0.0, -0.0), middle),
        "shifted up": (plain + 1e4, last),
        "shifted down": (plain - 1e4, 0),
        "spread": (plain * 1e3, int(plain.argmax())),
    }
    if vocabulary > 1:
        half = plain.clone()
        half[1::2] = -torch.inf
        alone = torch.full_like(plain, -torch.inf)
        alone[last] = -3
        found |= {"half masked": (half, 0), "selected is masked": (half, 1), "one left": (alone, last)}
    return {name: (row.to(kind), chosen) for name, (row, chosen) in found.items()}


def stacked(rows: dict[str, tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits [N, V] and ids [N] of some rows."""
    return torch.stack([row for row, _ in rows.values()]), torch.tensor([chosen for _, chosen in rows.values()])


class Exact(NamedTuple):
    """Of one row, nats."""

    logprob: float
    logsumexp: float
    entropy: float


@cache
def expected(vocabulary: int, dtype: str) -> dict[str, Exact]:
    """Return name -> the exact values of the rows above."""
    return {name: _exact(row, chosen) for name, (row, chosen) in hard_rows(vocabulary, dtype).items()}


def _exact(row: torch.Tensor, chosen: int) -> Exact:
    """Sum in sixty digits where few logits are distinct, in numpy's extended precision elsewhere."""
    wide = row.double().numpy()
    distinct, counts = np.unique(wide[wide != -np.inf], return_counts=True)
    return (_sixty_digits if len(distinct) <= BY_MPMATH else extended)(distinct, counts, float(wide[chosen]))


def _sixty_digits(distinct: Array, counts: NDArray[np.int64], selected: float) -> Exact:
    with mpmath.workdps(60):
        top = mpmath.mpf(distinct[-1])
        gaps = [top - mpmath.mpf(value) for value in distinct.tolist()]
        terms = [count * mpmath.exp(-gap) for gap, count in zip(gaps, counts.tolist(), strict=True)]
        total = mpmath.fsum(terms)
        log_sum = mpmath.log(total)
        mean = mpmath.fsum(term * gap for term, gap in zip(terms, gaps, strict=True)) / total
        return Exact(float((mpmath.mpf(selected) - top) - log_sum), float(top + log_sum), float(log_sum + mean))


def extended(distinct: Array, counts: NDArray[np.int64], selected: float) -> Exact:
    """The same in numpy's extended precision, which knows nothing of mpmath."""
    top = np.longdouble(distinct[-1])
    gaps = top - distinct.astype(np.longdouble)
    terms = counts * np.exp(-gaps)
    log_sum = np.log(terms.sum())
    mean = (terms * gaps).sum() / terms.sum()
    return Exact(float((np.longdouble(selected) - top) - log_sum), float(top + log_sum), float(log_sum + mean))


def usable(backend: OperatorBackendDescriptor, vocabulary: int, dtype: str) -> dict[str, tuple[torch.Tensor, int]]:
    """Return the rows that this backend can be handed: 0 times -inf is NaN, so that a head has no -inf logit."""
    rows = hard_rows(vocabulary, dtype)
    return {name: item for name, item in rows.items() if backend.operation != LINEAR or not item[0].isinf().any()}


def operands(
    backend: OperatorBackendDescriptor, rows: dict[str, tuple[torch.Tensor, int]], device: str
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return what the backend is differentiated in ([logits], or [hidden, weight]) and the ids."""
    logits, selected = stacked(rows)
    logits, selected = logits.to(device), selected.to(device)
    if backend.operation != LINEAR:
        return [logits], selected
    hidden = torch.eye(len(rows), DEPTH, dtype=logits.dtype, device=device)
    return [hidden, torch.nn.functional.pad(logits.t(), (0, DEPTH - len(rows))).contiguous()], selected


def check_values(backend: OperatorBackendDescriptor, vocabulary: int, dtype: str, device: str = "cpu") -> None:
    """Fail with the rows whose value is farther off than the backend's own precision."""
    rows = usable(backend, vocabulary, dtype)
    inputs, selected = operands(backend, rows, device)
    found = load_factory(backend.factory)()(*inputs, selected).detach()
    check(backend, {name: expected(vocabulary, dtype)[name] for name in rows}, 0, found, vocabulary)


def check(
    backend: OperatorBackendDescriptor, exact: dict[str, Exact], output: int, found: torch.Tensor, vocabulary: int
) -> None:
    """Hold one output (0 log probability, 1 log-sum-exp, 2 entropy) to 4 eps (1 + its size + log2 V).

    That is what a backend that takes the maximum out may lose, whatever the shift of the logits.
    """
    wanted = np.array([item[output] for item in exact.values()])
    values = found.detach().cpu().double().numpy()
    scale = 1 + np.nan_to_num(np.abs(wanted), posinf=0.0) + np.log2(max(2, vocabulary))
    if backend.backend_id in CANCELS or (output == 2 and backend.backend_id in CANCELS_IN_ENTROPY):
        scale = scale + 2 * np.minimum(np.abs([item.logsumexp for item in exact.values()]), 1e307)
    slack = oracles.ERROR_TERMS * torch.finfo(found.dtype).eps * scale + _known(backend, vocabulary, found.dtype)
    with np.errstate(invalid="ignore"):
        close = (np.abs(values - wanted) <= slack) | (values == wanted)
    misses = {name: (values[row], wanted[row], slack[row]) for row, name in enumerate(exact) if not close[row]}
    assert not misses, f"got, wanted, allowed: {misses}"


def _known(backend: OperatorBackendDescriptor, vocabulary: int, dtype: torch.dtype) -> float:
    """Return what the backend's way of summing may cost over V entries: half a unit for each addition or rounding."""
    if backend.backend_id in QUANTISED:
        return vocabulary * 2.0**-44
    return vocabulary / LANES * torch.finfo(dtype).eps / 2 if backend.backend_id in RUNNING else 0.0


def check_gradients(backend: OperatorBackendDescriptor, vocabulary: int, dtype: str, device: str = "cpu") -> None:
    """Fail where a gradient is not that of float64 autograd, up to the rounding of sums and of the result.

    Each row has a slope of its own, so that a gradient of another row is seen.
    """
    rows = usable(backend, vocabulary, dtype)
    if backend.operation == LINEAR:
        del rows[ENDS]
    inputs, selected = operands(backend, rows, device)
    leaves = [item.requires_grad_() for item in inputs]
    found = load_factory(backend.factory)()(*leaves, selected)
    assert found.requires_grad == (backend.backend_id not in NO_GRADIENT), (
        "what has a gradient is listed in NO_GRADIENT"
    )
    if not found.requires_grad:
        return
    slope = torch.linspace(-2, 3, len(rows), dtype=torch.float64, device=device)
    mine = torch.autograd.grad(found, leaves, slope.to(found.dtype))
    logits = stacked(rows)[0].to(device).double().requires_grad_()
    shifted = logits - logits.detach().amax(-1, keepdim=True)
    value = shifted.gather(-1, selected[:, None])[:, 0] - shifted.exp().sum(-1).log()
    (of_logits,) = torch.autograd.grad(value, logits, slope)
    own = torch.finfo(leaves[0].dtype)
    lost = 64 * torch.finfo(found.dtype).eps + 3 * _known(backend, vocabulary, found.dtype)
    wanted, sizes, reach = [of_logits], [torch.zeros_like(of_logits)], 1.0
    if backend.operation == LINEAR:
        wide = leaves[1].detach().double()
        wanted = [of_logits @ wide, torch.nn.functional.pad(of_logits.t(), (0, DEPTH - len(rows)))]
        sizes, reach = [of_logits.abs() @ wide.abs(), torch.zeros_like(wanted[1])], float(wide.abs().max())
    for item, true, size in zip(mine, wanted, sizes, strict=True):
        assert item.dtype == leaves[0].dtype
        slack = lost * (reach if size.any() else 1.0) + own.eps * (true.abs() + 2 * size) + own.smallest_normal
        error = (item.double() - true).abs()
        assert (error <= slack).all(), float((error / slack).nan_to_num(nan=torch.inf).max())
