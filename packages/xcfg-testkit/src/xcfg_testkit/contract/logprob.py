"""The numerical contract of a `selected_logprob` backend: exactly what its descriptor claims, no more and no less."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest
from xcfg.plugin.operators import load_factory
from xcfg.plugin.protocols import ShardedLogprob

from xcfg_testkit import cost, oracles, ranks
from xcfg_testkit.contract.operator import OperatorContract

if TYPE_CHECKING:
    import torch

    Operator = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

ODD_SHAPES = ((1, 1), (1, 2), (2, 3), (3, 7), (17, 33), (5, 1021), (2, 4099), (64, 257))


class LogprobClaims(OperatorContract):
    """What contracts of log probabilities share: tests per declared dtype and device, and claims that are judged."""

    peers: ClassVar[dict[str, str]] = {}

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Parametrise by what the descriptor declares."""
        if "dtype" in metafunc.fixturenames:
            metafunc.parametrize("dtype", self.descriptor.dtypes)
        if "device" in metafunc.fixturenames:
            metafunc.parametrize("device", [device_case(name) for name in self.descriptor.devices])
        if "peer" in metafunc.fixturenames:
            claims = [name for name in self.descriptor.properties if name.startswith("bitwise-equal-to:")]
            none = pytest.param("", marks=pytest.mark.skip(reason="claims the bits of no other backend"))
            metafunc.parametrize("peer", [claim.partition(":")[2] for claim in claims] or [none])

    def test_tp_invariant_claims_are_proved(self) -> None:
        """Failing means a claim that local inputs cannot show, or one that real ranks refute.

        The kit holds a `selected_logprob` of the form `xcfg.plugin.protocols.ShardedLogprob` that runs on a CPU to it,
        with 1, 2, 4 and 8 ranks. For another backend define `prove_tp_invariance`, or drop the claim.
        """
        if "tp-invariant" not in self.descriptor.properties:
            pytest.skip("tp-invariant is not claimed")
        self.prove_tp_invariance()

    def prove_tp_invariance(self) -> None:
        """Compare bits over at least four real ranks; overridden where the kit cannot split the backend itself."""
        pytest.fail(
            "tp-invariant is claimed, the kit cannot split this backend, and prove_tp_invariance is not defined"
        )

    def _judge(self, claim: str, held: bool, record_property: Callable[[str, object], None]) -> None:
        record_property(claim, "held" if held else "did not hold")
        if claim not in self.descriptor.properties:
            pytest.skip(f"{claim} is not claimed; it {'held' if held else 'did not hold'} here")
        assert held, f"{self.descriptor.backend_id} claims {claim}, and bits differ"

    def _first_device(self) -> str:
        present = [name for name in self.descriptor.devices if _is_present(name)]
        if not present:
            pytest.skip(f"none of {self.descriptor.devices} is present")
        return present[0]


@pytest.mark.usefixtures("xcfg_leak_guard")
class SelectedLogprobContract(LogprobClaims):
    """Give `descriptor`. Tests are generated per declared dtype and per declared device that is present.

    compute_dtype: the precision inside; errors are bounded by its epsilon. peers: backend id -> factory string,
    one for every id that a property `bitwise-equal-to:<id>` names. cost_shape: [N, V] of the cost report.
    long_vocabulary: of the invariance tests; long enough for a library to split one row between threads or blocks.
    """

    compute_dtype: ClassVar[str] = "float32"
    cost_shape: ClassVar[tuple[int, int]] = (64, 8192)
    long_vocabulary: ClassVar[int] = 49_152

    def check(self, logits: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
        """Score with a new instance and hold every row against the float64 formula; return the scores."""
        found: torch.Tensor = self.build()(logits, selected)
        assert found.shape == selected.shape, f"the result has shape {tuple(found.shape)}, not {tuple(selected.shape)}"
        expected, lse = oracles.selected_logprob(logits, selected)
        allowed = self._allowed(logits, expected, lse)
        misses = oracles.describe_misses(found.detach().cpu().double().numpy(), expected, allowed)
        if misses:
            pytest.fail(f"{self.descriptor.backend_id} on {logits.dtype} {tuple(logits.shape)}:\n{misses}")
        return found

    def test_values_and_form(self, dtype: str, device: str) -> None:
        """Failing means wrong numbers or a result of another form, on a dtype and device that you declare.

        The result is float32 or float64 [N] on the device of the logits. If the numbers are only too coarse for
        float32, say so with `compute_dtype`, or leave the dtype out of the descriptor.
        """
        import torch

        logits, selected = case(64, 1021, dtype, device)
        found = self.check(logits, selected)
        assert found.dtype in (torch.float32, torch.float64), f"the result is {found.dtype}"
        assert found.device == logits.device, f"the result is on {found.device}"

    def test_odd_shapes(self, dtype: str, device: str) -> None:
        """Failing means that a shape which is no multiple of a tile is scored wrongly. Mask the last block."""
        for count, vocabulary in ODD_SHAPES:
            self.check(*case(count, vocabulary, dtype, device))

    def test_no_rows(self, dtype: str, device: str) -> None:
        """Failing means that a rank without tokens crashes. Return an empty tensor."""
        assert self.build()(*case(0, 7, dtype, device)).shape == (0,)

    def test_large_and_tiny_logits(self, dtype: str, device: str) -> None:
        """Failing means overflow or lost digits. Take the maximum out before the exponential, in float32 or wider."""
        for shift in (-3e4, 3e4):
            logits, selected = case(5, 33, dtype, device)
            self.check(logits + shift, selected)
        logits, selected = case(5, 33, dtype, device, scale=1e-6)
        self.check(logits, selected)

    def test_masked_logits(self, dtype: str, device: str) -> None:
        """Failing means that a -inf logit (a masked or padded id) is not probability 0. exp(-inf) must be 0."""
        logits, selected = case(6, 33, dtype, device)
        logits[:, 1::2] = -math.inf
        logits[3, :] = -math.inf
        logits[3, 4] = 2.0
        selected[:] = 4
        selected[0] = 1
        assert self.check(logits, selected)[0].item() == -math.inf

    def test_signed_zeros_and_ties(self, dtype: str, device: str) -> None:
        """Failing means that equal maxima, or -0.0 beside 0.0, are counted once. Every maximum adds its exp(0)."""
        logits, selected = case(4, 8, dtype, device)
        logits[:] = 0.0
        logits[1, ::2] = -0.0
        logits[2, 3:] = -1.0
        self.check(logits, selected)

    def test_rows_without_a_distribution(self, dtype: str, device: str) -> None:
        """Failing means that NaN, +inf or a row of -inf gives a number, which could then pass a comparison.

        Let it come out as NaN (any non-finite value is accepted), and leave the neighbouring rows alone.
        """
        logits, selected = case(7, 33, dtype, device)
        selected[:] = 2
        logits[0, 5], logits[1, 2] = math.nan, math.nan
        logits[2, 5], logits[3, 2] = math.inf, math.inf
        logits[4, :] = -math.inf
        found = self.build()(logits, selected).detach().cpu().double().numpy()
        assert not np.isfinite(found[:5]).any(), f"rows without a distribution gave {found[:5]}"
        expected, lse = oracles.selected_logprob(logits, selected)
        misses = oracles.describe_misses(found[5:], expected[5:], self._allowed(logits, expected, lse)[5:])
        assert not misses, f"a neighbouring row changed:\n{misses}"

    @pytest.mark.parametrize("bad", [-1, 33, 2**40])
    def test_ids_outside_the_vocabulary_are_refused(self, bad: int) -> None:
        """Failing means that an id of another vocabulary reads some other logit. Check the ids and raise."""
        device = self._first_device()
        logits, selected = case(3, 33, self.descriptor.dtypes[0], device)
        selected[1] = bad
        with pytest.raises(Exception):  # noqa: B017 - any refusal will do
            self.build()(logits, selected)

    def test_inputs_are_left_alone(self, dtype: str, device: str) -> None:
        """Failing means that the next reader of the logits sees other numbers. Work on a copy."""
        import torch

        logits, selected = case(5, 33, dtype, device)
        kept = logits.clone(), selected.clone()
        self.build()(logits, selected)
        assert torch.equal(logits, kept[0]), "the logits were changed"
        assert torch.equal(selected, kept[1]), "the selected ids were changed"

    def test_strided_inputs(self, dtype: str, device: str) -> None:
        """Failing means that a transposed or sliced view is read as if it were contiguous. Honour the strides."""
        logits, selected = case(9, 66, dtype, device)
        self.check(logits.t().contiguous().t(), selected)
        self.check(logits[:, ::2], selected // 2)

    def test_run_to_run(self, dtype: str, device: str, record_property: Callable[[str, object], None]) -> None:
        """Failing means that two calls on the same inputs differ in a bit. Fix the order of sums, or drop the claim."""
        logits, selected = case(5, self.long_vocabulary, dtype, device)
        function = self.build()
        first = function(logits, selected)
        held = all(same_bits(first, function(logits, selected)) for _ in range(4)) and same_bits(
            first, self.build()(logits, selected)
        )
        self._judge("run-to-run", held, record_property)

    def test_batch_invariant(self, dtype: str, device: str, record_property: Callable[[str, object], None]) -> None:
        """Failing means that a row has other bits alone than in a batch. Reduce each row in one fixed order.

        A library sum may split a single long row between threads or blocks; a fixed tree or loop does not.
        """
        logits, selected = case(17, self.long_vocabulary, dtype, device)
        function = self.build()
        together = function(logits, selected)
        spans = [(row, row + 1) for row in range(17)] + [(7, 9), (3, 16)]
        held = all(
            same_bits(function(logits[start:stop].clone(), selected[start:stop].clone()), together[start:stop])
            for start, stop in spans
        )
        self._judge("batch-invariant", held, record_property)

    def test_bitwise_equal_to(self, dtype: str, device: str, peer: str) -> None:
        """Failing means that the claimed equality of bits with another backend is false. Drop the claim."""
        if peer not in self.peers:
            pytest.fail(f"the descriptor claims bitwise-equal-to:{peer}; give its factory in `peers`")
        logits, selected = case(17, 1021, dtype, device)
        other = load_factory(self.peers[peer])()
        assert same_bits(self.build()(logits, selected), other(logits, selected)), f"not the bits of {peer}"

    def prove_tp_invariance(self) -> None:
        """Split the backend over 1, 2, 4 and 8 real ranks and compare bits, where its form allows that."""
        if not self._sharded():
            super().prove_tp_invariance()
        moved = self.over_ranks()["tp-invariant"]
        assert not moved, f"{self.descriptor.backend_id} claims tp-invariant, and bits move: {'; '.join(moved)}"

    @pytest.mark.parametrize("claim", ["run-to-run", "batch-invariant"])
    def test_claims_hold_over_ranks(self, claim: str, record_property: Callable[[str, object], None]) -> None:
        """Failing means that what one rank shows does not hold where ranks exchange: a library's all-reduce, say.

        It may add ranks in another order for a row at another place of its buffer. Merge in an order of your own.
        """
        if not self._sharded():
            pytest.skip("no ShardedLogprob on a CPU")
        self._judge(claim, not self.over_ranks()[claim], record_property)

    def test_rows_without_a_distribution_over_ranks(self) -> None:
        """Failing means that a NaN or +inf on one rank, or -inf on all, gives a number somewhere.

        A maximum across ranks may lose a NaN: turn it into +inf first, which no rank loses.
        """
        if not self._sharded():
            pytest.skip("no ShardedLogprob on a CPU")
        found = self.over_ranks()[ranks.NO_NUMBER]
        assert not found, f"{self.descriptor.backend_id} returns a number with {'; '.join(found)}"

    def _sharded(self) -> bool:
        return "cpu" in self.descriptor.devices and isinstance(self.build(), ShardedLogprob)

    def over_ranks(self) -> dict[str, list[str]]:
        """Return claim -> where real ranks refute it, in float32 where that is declared; see xcfg_testkit.ranks."""
        options = json.dumps(self.keywords(), sort_keys=True)
        dtype = "float32" if "float32" in self.descriptor.dtypes else self.descriptor.dtypes[0]
        return ranks.over_ranks(self.descriptor.factory, options, dtype)

    def test_cost_against_production(self, device: str, record_property: Callable[[str, object], None]) -> None:
        """Never fails for being slow: it reports time and peak memory beside torch's log_softmax and gather."""
        logits, selected = case(*self.cost_shape, self.descriptor.dtypes[0], device)
        mine = cost.measure(self.build(), logits, selected)
        theirs = cost.measure(cost.production, logits, selected)
        record_property("shape", list(self.cost_shape))
        record_property("seconds", mine.seconds)
        record_property("production_seconds", theirs.seconds)
        record_property("peak_bytes", mine.peak_bytes)
        record_property("production_peak_bytes", theirs.peak_bytes)
        assert mine.seconds > 0.0

    def _allowed(self, logits: torch.Tensor, expected: oracles.Array, lse: oracles.Array) -> oracles.Array:
        import torch

        return oracles.bound(logits, expected, lse, torch.finfo(getattr(torch, self.compute_dtype)).eps)


def case(
    count: int, vocabulary: int, dtype: str, device: str, *, scale: float = 3.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return seeded logits [count, vocabulary] and ids [count]; the first and the last id of the vocabulary occur."""
    import torch

    generator = torch.Generator().manual_seed(count * 100_003 + vocabulary)
    logits = torch.randn(count, vocabulary, generator=generator) * scale
    selected = torch.randint(0, vocabulary, (count,), generator=generator)
    selected[:1], selected[-1:] = vocabulary - 1, 0
    return logits.to(device=device, dtype=getattr(torch, dtype)), selected.to(device)


def same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Equality of bits, so that NaN equals itself and 0.0 is not -0.0."""
    import torch

    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    kinds = {torch.float32: torch.int32, torch.float64: torch.int64}
    kind = kinds.get(first.dtype, torch.int16)
    return bool(torch.equal(first.contiguous().view(kind), second.contiguous().view(kind)))


def _is_present(device: str) -> bool:
    import torch

    return device == "cpu" or (device == "cuda" and torch.cuda.is_available())


def device_case(name: str) -> Any:
    """Return `name` as a parameter that is skipped, with the reason, where there is no such device; cuda is `gpu`."""
    marks = [] if name == "cpu" else [pytest.mark.gpu]
    if not _is_present(name):
        marks.append(pytest.mark.skip(reason=f"no {name} device here"))
    return pytest.param(name, marks=marks)
