"""The numerical contract of a `linear_selected_logprob` backend: head product and log probability in one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pytest
from xcfg.plugin.operators import load_factory

from xcfg_testkit import cost, oracles
from xcfg_testkit.contract.logprob import LogprobClaims, same_bits

if TYPE_CHECKING:
    import torch

    Case = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

SHAPES = ((1, 1), (1, 2), (3, 7), (17, 33), (5, 1021), (2, 4099))
"""Rows and vocabulary."""


@pytest.mark.usefixtures("xcfg_leak_guard")
class LinearSelectedLogprobContract(LogprobClaims):
    """Give `descriptor`. Tests are generated per declared dtype and per declared device that is present.

    compute_dtype: of the sums inside. rounds_logits: whether logits are rounded to the dtype of the weights first, and
    that is then most of the error that is allowed. depths: K of the odd shapes. peers: backend id -> factory string,
    one for every id that a property `bitwise-equal-to:<id>` names. long_shape: [V, K] of the tests of bits. cost_shape:
    [N, V, K].
    """

    compute_dtype: ClassVar[str] = "float32"
    rounds_logits: ClassVar[bool] = True
    depths: ClassVar[tuple[int, ...]] = (1, 3, 40)
    long_shape: ClassVar[tuple[int, int]] = (16_411, 64)
    cost_shape: ClassVar[tuple[int, int, int]] = (64, 8192, 64)

    def check(self, hidden: torch.Tensor, weight: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
        """Score with a new instance and hold every row against the formula in extended precision; return the scores."""
        found: torch.Tensor = self.build()(hidden, weight, selected)
        assert found.shape == selected.shape, f"the result has shape {tuple(found.shape)}, not {tuple(selected.shape)}"
        expected, allowed = self._expected(hidden, weight, selected)
        misses = oracles.describe_misses(found.detach().cpu().double().numpy(), expected, allowed)
        if misses:
            shapes = f"{tuple(hidden.shape)} x {tuple(weight.shape)}"
            pytest.fail(f"{self.descriptor.backend_id} on {hidden.dtype} {shapes}:\n{misses}")
        return found

    def test_values_and_form(self, dtype: str, device: str) -> None:
        """Failing means wrong numbers or a result of another form, on a dtype and device that you declare.

        The result is float32 or float64 [N] on the device of the inputs: the log probability of hidden @ weight^T.
        """
        import torch

        case = head_case(64, 1021, 40, dtype, device)
        found = self.check(*case)
        assert found.dtype in (torch.float32, torch.float64), f"the result is {found.dtype}"
        assert found.device == case[0].device, f"the result is on {found.device}"

    def test_odd_shapes(self, dtype: str, device: str) -> None:
        """Failing means that a shape which is no multiple of a tile is scored wrongly. Mask the last block."""
        for count, vocabulary in SHAPES:
            for depth in self.depths:
                self.check(*head_case(count, vocabulary, depth, dtype, device))

    def test_no_rows(self, dtype: str, device: str) -> None:
        """Failing means that a rank without tokens crashes. Return an empty tensor."""
        assert self.build()(*head_case(0, 7, 40, dtype, device)).shape == (0,)

    def test_large_logits(self, dtype: str, device: str) -> None:
        """Failing means overflow. Take the maximum out before the exponential, over all parts of the vocabulary."""
        hidden, weight, selected = head_case(5, 1021, 40, dtype, device)
        self.check(hidden * 64, weight, selected)

    def test_rows_without_a_distribution(self, dtype: str, device: str) -> None:
        """Failing means that a NaN or +inf in a row's logits gives a number, which could then pass a comparison.

        Let it come out as NaN (any non-finite value is accepted), and leave the neighbouring rows alone.
        """
        hidden, weight, selected = head_case(6, 33, 40, dtype, device)
        hidden[1, 5], hidden[4, 0] = math.nan, math.inf
        found = self.build()(hidden, weight, selected).detach().cpu().double().numpy()
        assert not np.isfinite(found[[1, 4]]).any(), f"rows without a distribution gave {found[[1, 4]]}"
        whole = [0, 2, 3, 5]
        expected, allowed = self._expected(hidden[whole], weight, selected[whole])
        misses = oracles.describe_misses(found[whole], expected, allowed)
        assert not misses, f"a neighbouring row changed:\n{misses}"

    @pytest.mark.parametrize("bad", [-1, 33, 2**40])
    def test_ids_outside_the_vocabulary_are_refused(self, bad: int) -> None:
        """Failing means that an id of another vocabulary reads some other logit. Check the ids and raise."""
        hidden, weight, selected = head_case(3, 33, 40, self.descriptor.dtypes[0], self._first_device())
        selected[1] = bad
        with pytest.raises(Exception):  # noqa: B017 - any refusal will do
            self.build()(hidden, weight, selected)

    def test_inputs_are_left_alone(self, dtype: str, device: str) -> None:
        """Failing means that the model's own weights or hidden states are changed. Work on a copy."""
        import torch

        case = head_case(5, 33, 40, dtype, device)
        kept = [item.clone() for item in case]
        self.build()(*case)
        assert all(torch.equal(left, right) for left, right in zip(case, kept, strict=True))

    def test_strided_inputs(self, dtype: str, device: str) -> None:
        """Failing means that a transposed or sliced view is read as if it were contiguous. Honour the strides."""
        hidden, weight, selected = head_case(9, 33, 80, dtype, device)
        self.check(hidden.t().contiguous().t(), weight.t().contiguous().t(), selected)
        self.check(hidden[:, ::2], weight[:, ::2], selected)

    def test_run_to_run(self, dtype: str, device: str, record_property: Callable[[str, object], None]) -> None:
        """Failing means that two calls on the same inputs differ in a bit. Fix the order of sums, or drop the claim."""
        case = head_case(17, *self.long_shape, dtype, device)
        function = self.build()
        first = function(*case)
        held = all(same_bits(first, function(*case)) for _ in range(4)) and same_bits(first, self.build()(*case))
        self._judge("run-to-run", held, record_property)

    def test_batch_invariant(self, dtype: str, device: str, record_property: Callable[[str, object], None]) -> None:
        """Failing means that a row has other bits alone than in a batch: of the product, or of the sum behind it.

        A library picks the kernel of a product by its number of rows. Give it one shape, or multiply yourself.
        """
        hidden, weight, selected = head_case(17, *self.long_shape, dtype, device)
        function = self.build()
        together = function(hidden, weight, selected)
        spans = [(row, row + 1) for row in range(17)] + [(7, 9), (3, 16)]
        held = all(
            same_bits(function(hidden[start:stop].clone(), weight, selected[start:stop]), together[start:stop])
            for start, stop in spans
        )
        self._judge("batch-invariant", held, record_property)

    def test_bitwise_equal_to(self, dtype: str, device: str, peer: str) -> None:
        """Failing means that the claimed equality of bits with another backend is false. Drop the claim."""
        if peer not in self.peers:
            pytest.fail(f"the descriptor claims bitwise-equal-to:{peer}; give its factory in `peers`")
        case = head_case(17, 1021, 40, dtype, device)
        assert same_bits(self.build()(*case), load_factory(self.peers[peer])()(*case)), f"not the bits of {peer}"

    def test_cost_against_production(self, device: str, record_property: Callable[[str, object], None]) -> None:
        """Never fails for being slow: it reports time and peak memory beside a product with full logits."""
        hidden, weight, selected = head_case(*self.cost_shape, self.descriptor.dtypes[0], device)
        function = self.build()
        mine = cost.measure(lambda rows, ids: function(rows, weight, ids), hidden, selected)
        theirs = cost.measure(lambda rows, ids: cost.production(rows @ weight.t(), ids), hidden, selected)
        record_property("shape", list(self.cost_shape))
        record_property("seconds", mine.seconds)
        record_property("production_seconds", theirs.seconds)
        record_property("peak_bytes", mine.peak_bytes)
        record_property("production_peak_bytes", theirs.peak_bytes)
        assert mine.seconds > 0.0

    def _expected(
        self, hidden: torch.Tensor, weight: torch.Tensor, selected: torch.Tensor
    ) -> tuple[oracles.Array, oracles.Array]:
        """Return expected values and the largest honest errors, float64 [N]."""
        import torch

        wide, sizes = oracles.linear_logits(hidden, weight)
        logits = torch.from_numpy(wide.astype(np.float64))
        expected, lse = oracles.selected_logprob(logits, selected)
        epsilon = torch.finfo(getattr(torch, self.compute_dtype)).eps
        # An error of a logit enters twice: in the selected one, and in the sum.
        product = 2 * hidden.shape[1] * epsilon * sizes
        rounding = torch.finfo(weight.dtype).eps * np.abs(wide).max(axis=1, initial=0.0).astype(np.float64)
        allowed = oracles.bound(logits, expected, lse, epsilon) + product
        return expected, allowed + (rounding if self.rounds_logits else 0.0)


def head_case(count: int, vocabulary: int, depth: int, dtype: str, device: str) -> Case:
    """Return seeded hidden [count, depth], weight [vocabulary, depth] and ids [count]; logits spread by about 3."""
    import torch

    generator = torch.Generator().manual_seed(count * 100_003 + vocabulary * 31 + depth)
    hidden = torch.randn(count, depth, generator=generator)
    weight = torch.randn(vocabulary, depth, generator=generator) * 3 / math.sqrt(depth)
    selected = torch.randint(0, vocabulary, (count,), generator=generator)
    selected[:1], selected[-1:] = vocabulary - 1, 0
    kind = getattr(torch, dtype)
    return hidden.to(device=device, dtype=kind), weight.to(device=device, dtype=kind), selected.to(device)
