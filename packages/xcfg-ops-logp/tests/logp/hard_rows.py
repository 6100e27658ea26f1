"""One set of hard rows for every backend: values by mpmath or extended precision, gradients by float64 autograd.

A backend that takes hidden states and the head's weights is handed the same logits: hidden states that are rows of the
identity, and weights whose columns are the logits. Every product is then exact, in every order and dtype.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

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


@cache
def expected(vocabulary: int, dtype: str) -> dict[str, tuple[float, float]]:
    """Return name -> (log probability, log-sum-exp), nats, of the rows above."""
    rows = hard_rows(vocabulary, dtype)
    logits, selected = stacked(rows)
    by_numpy = zip(*oracles.selected_logprob(logits, selected), strict=True)
    found = {}
    for (name, (row, chosen)), others in zip(rows.items(), by_numpy, strict=True):
        distinct, counts = np.unique(row.double().numpy(), return_counts=True)
        found[name] = _sixty_digits(row, chosen, distinct, counts) if len(distinct) <= BY_MPMATH else others
    return found


def _sixty_digits(row: torch.Tensor, chosen: int, distinct: Array, counts: NDArray[np.int64]) -> tuple[float, float]:
    with mpmath.workdps(60):
        top = mpmath.mpf(distinct[-1])
        terms = [
            count * mpmath.exp(mpmath.mpf(value) - top)
            for value, count in zip(distinct.tolist(), counts.tolist(), strict=True)
            if value != -np.inf
        ]
        log_sum = mpmath.log(mpmath.fsum(terms))
        return float((mpmath.mpf(row[chosen].item()) - top) - log_sum), float(top + log_sum)


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
    """Fail with the rows, by name, whose value is farther off than the backend's own precision."""
    rows = usable(backend, vocabulary, dtype)
    inputs, selected = operands(backend, rows, device)
    found = load_factory(backend.factory)()(*inputs, selected).detach()
    wanted = np.array([expected(vocabulary, dtype)[name] for name in rows])
    values = found.cpu().double().numpy()
    slack = _allowed(backend, wanted, vocabulary, found.dtype)
    with np.errstate(invalid="ignore"):
        close = (np.abs(values - wanted[:, 0]) <= slack) | (values == wanted[:, 0])
    misses = {name: (values[row], wanted[row, 0], slack[row]) for row, name in enumerate(rows) if not close[row]}
    assert not misses, f"got, wanted, allowed: {misses}"


def _allowed(backend: OperatorBackendDescriptor, wanted: Array, vocabulary: int, dtype: torch.dtype) -> Array:
    """Return 4 eps (1 + |log p| + log2 V): what a backend that takes the maximum out may lose, whatever the shift."""
    with np.errstate(invalid="ignore"):
        sizes = np.nan_to_num(np.abs(wanted), posinf=0.0)
    scale = 1 + sizes[:, 0] + np.log2(max(2, vocabulary))
    if backend.backend_id in CANCELS:
        scale = scale + 2 * sizes[:, 1]
    return oracles.ERROR_TERMS * torch.finfo(dtype).eps * scale + _known(backend, vocabulary, dtype)


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
