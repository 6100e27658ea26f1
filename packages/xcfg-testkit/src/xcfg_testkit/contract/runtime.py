"""What a runtime adapter must fulfil: it says what it actually did, on the tokens it was given, and changes nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest
from xcfg.identity.attest import expected_attestations
from xcfg.plugin.protocols import RuntimeAdapter
from xcfg.schema.names import Applied, EvidenceKind, Phase
from xcfg.schema.runtime import Capability, RuntimeDescriptor
from xcfg.schema.worker import SCORE_COLUMNS

from xcfg_testkit import operators
from xcfg_testkit.contract.generating import GeneratingContract
from xcfg_testkit.contract.observing import DERIVED, Observation, Session, Setup, is_number, observe, same_bits
from xcfg_testkit.rollouts import tiny_rollout

if TYPE_CHECKING:
    import torch

COMPUTE_DTYPES = ("bfloat16", "float16", "float32", "float64", "float8_e4m3", "float8_e5m2", "int8")
NO_SUCH_VALUE = "testkit-no-such-value"


@pytest.mark.usefixtures("xcfg_state_restored")
class RuntimeContract(GeneratingContract):
    """Give `descriptor`, `knobs` (side -> values of every knob you claim), and `checkpoint` if you load one.

    run_to_run: whether two scores of one build are equal to the bit. options: side -> engine options.
    config_is_what_runs: knob path -> why reading a configuration object proves what runs; any other knob needs
    execution or state evidence. has_weights, whole_past: false for a synthetic model that is a formula, or that looks
    at the previous token only. Optional methods: `tensors(adapter)`, `sabotage(side)`.
    """

    needs = ("descriptor", "knobs")
    descriptor: ClassVar[RuntimeDescriptor]
    knobs: ClassVar[dict[str, dict[str, Any]]]
    options: ClassVar[dict[str, dict[str, Any]]] = {}
    checkpoint: ClassVar[str] = ""
    checkpoint_uri: ClassVar[str] = "builtin:testkit"
    vocabulary: ClassVar[int] = 32
    run_to_run: ClassVar[bool] = False
    has_weights: ClassVar[bool] = True
    whole_past: ClassVar[bool] = True
    config_is_what_runs: ClassVar[dict[str, str]] = {}
    device: ClassVar[str] = "cpu"

    def tensors(self, adapter: RuntimeAdapter) -> Iterable[tuple[str, torch.Tensor]]:
        """Yield (name, tensor) of the engine's parameters and buffers, so that the kit folds them itself."""
        return ()

    def sabotage(self, side: str) -> AbstractContextManager[str] | None:
        """Return a context in which the engine runs another value of one knob than asked; it yields the path."""
        return None

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Parametrise by the sides and arms that the descriptor declares."""
        pairs = [(side, arm) for side, arms in self.descriptor.arms.items() for arm in arms]
        if {"side", "arm"} <= set(metafunc.fixturenames):
            metafunc.parametrize(("side", "arm"), pairs)
        elif "side" in metafunc.fixturenames:
            metafunc.parametrize("side", list(self.descriptor.arms))

    def setup_of(self, side: str, scratch: Path) -> Setup:
        """Return what one side is built with."""
        return Setup(
            descriptor=self.descriptor,
            side=side,
            knobs=dict(self.knobs[side]),
            scratch=scratch,
            checkpoint=self.checkpoint,
            checkpoint_uri=self.checkpoint_uri,
            options=dict(self.options.get(side, {})),
            device=self.device,
        )

    def observed(self, side: str, arm: str, tmp_path_factory: pytest.TempPathFactory) -> Observation:
        """Return the observation of one arm, made once per class."""
        cache: dict[tuple[str, str], Observation] = type(self).__dict__.get("_observed", {})
        if (side, arm) not in cache:
            setup = self.setup_of(side, tmp_path_factory.mktemp(f"{side}-{arm}"))
            cache[side, arm] = observe(setup, arm, tiny_rollout(vocabulary=self.vocabulary), self.tensors)
            type(self)._observed = cache  # type: ignore[attr-defined]
        return cache[side, arm]

    @pytest.fixture
    def seen(self, side: str, arm: str, tmp_path_factory: pytest.TempPathFactory) -> Observation:
        """One build and two scores of this arm."""
        return self.observed(side, arm, tmp_path_factory)

    def claimed(self, side: str) -> list[Capability]:
        """Return the capabilities of one side."""
        return [item for item in self.descriptor.capabilities if item.side == side]

    def test_descriptor(self) -> None:
        """Failing means sides or arms that xcfg does not know, or a claim of replay without the decode arm."""
        known = {"rollout": {"rollout_prefill", "rollout_decode"}, "training": {"training"}, "reference": {"reference"}}
        assert self.descriptor.arms, "no arms"
        for side, arms in self.descriptor.arms.items():
            assert set() < set(arms) <= known.get(side, set()), f"{side}: {arms}"
        decodes = "rollout_decode" in self.descriptor.arms.get("rollout", ())
        assert decodes or not self.descriptor.forced_replay, "forced_replay without the arm rollout_decode"

    def test_every_claimed_knob_is_given_here(self, side: str) -> None:
        """Failing means that the kit cannot see a knob that you claim. Put a value for it into `knobs`."""
        missing = {item.path for item in self.claimed(side)} - set(self.knobs[side])
        assert not missing, f"knobs[{side!r}] lacks {sorted(missing)}"

    def test_build_report(self, seen: Observation) -> None:
        """Failing means that provenance is missing: rank, world size, observed compute dtype, weights, versions."""
        report = seen.build
        assert (report.rank, report.world_size) == (0, 1)
        assert report.compute_dtype in COMPUTE_DTYPES, f"compute dtype {report.compute_dtype!r}"
        assert report.provenance, "no provenance"
        assert report.weights is not None, "no weight report"
        assert report.weights.method in ("digest", "probe"), report.weights.method
        assert report.weights.tensors or not self.has_weights, "no weight digests"

    def test_every_claimed_knob_is_reported(self, side: str, seen: Observation) -> None:
        """Failing means a knob that is claimed and never accounted for, so that a setting could be ignored.

        Return one application per knob: those of construction from `build`, those of a request from `score`; a score
        may report those of construction again, as it found them then.
        """
        found: set[str] = set()
        for applications in (seen.build.applications, seen.first[0].applications):
            paths = [item.path for item in applications if item.side == side and item.rank == 0]
            assert len(set(paths)) == len(paths), f"a knob is reported twice in one report: {sorted(paths)}"
            found.update(paths)
        missing = {item.path for item in self.claimed(side)} - found
        assert not missing, f"no application of {sorted(missing)}"

    def test_requested_is_what_was_asked(self, side: str, seen: Observation) -> None:
        """Failing means that `requested` is not the value of the spec. Copy it from there and nowhere else."""
        for item in seen.applications:
            if item.path in self.knobs[side] and item.path != DERIVED:
                assert item.requested == self.knobs[side][item.path], item

    def test_applied_means_that_the_actual_value_is_the_requested_one(self, seen: Observation) -> None:
        """Failing means a lie: another value ran and the status says applied. Use fallback, with the reason."""
        for item in seen.applications:
            same = type(item.actual) is type(item.requested) and item.actual == item.requested
            assert (item.status is Applied.APPLIED) <= same, item

    def test_applied_has_evidence(self, side: str, seen: Observation) -> None:
        """Failing means that nobody asked the engine. Read objects, tensors or counters and say which.

        `inherent` is allowed only where the capability says so, `config` only with `config_is_what_runs`.
        """
        inherent = {item.path for item in self.claimed(side) if item.inherent}
        for item in seen.applications:
            if item.status is not Applied.APPLIED:
                continue
            kinds = {evidence.kind for evidence in item.evidence if evidence.source.strip()}
            strong = bool(kinds & {EvidenceKind.EXECUTION, EvidenceKind.STATE})
            by_config = EvidenceKind.CONFIG in kinds and bool(self.config_is_what_runs.get(item.path, "").strip())
            by_nature = EvidenceKind.INHERENT in kinds and item.path in inherent
            assert strong or by_config or by_nature, f"{item.path} is applied on the evidence of {kinds or 'nothing'}"

    def test_a_refused_value_is_never_applied(self, side: str, tmp_path: Path) -> None:
        """Failing means that a value which you do not claim is accepted as applied.

        Report unsupported or fallback, or end the build with an error; a request knob likewise in the score.
        """
        for capability in self.claimed(side):
            if not capability.values:
                continue
            value = _foreign(capability)
            knobs = {**self.knobs[side], capability.path: value}
            setup = self.setup_of(side, tmp_path).but(knobs=knobs)
            for item in self._applications(setup, self.descriptor.arms[side][0]):
                wrong = item.path == capability.path and item.status is Applied.APPLIED
                assert not wrong, f"{capability.path}={value!r} is not claimed and was reported as applied"

    def test_sabotage_is_noticed(self, side: str, tmp_path: Path) -> None:
        """Failing means that `actual` is copied from the request instead of read from the engine."""
        context = self.sabotage(side)
        if context is None:
            pytest.skip("no sabotage is given")
        with context as path:
            found = self._applications(self.setup_of(side, tmp_path), self.descriptor.arms[side][0])
        mine = [item for item in found if item.path == path]
        assert mine, f"no application of {path}"
        assert all(item.status is not Applied.APPLIED for item in mine), mine

    def test_attestations(self, seen: Observation) -> None:
        """Failing means that the engine consumed other ids or positions than the frozen ones, or not all.

        Digest what entered the model, unpadded. The last token of a sequence may stay out, in all sequences.
        """
        rollout = tiny_rollout(vocabulary=self.vocabulary)
        found = tuple(sorted(seen.first[0].attestations, key=lambda item: item.index))
        forms = [expected_attestations(rollout, consumed_last=last) for last in (True, False)]
        assert found in forms, f"attested {found}"

    def test_attestations_follow_the_rollout(self, side: str, arm: str, tmp_path: Path) -> None:
        """Failing means that attestations were made from another rollout than the one that was scored."""
        last = tiny_rollout(vocabulary=self.vocabulary)
        changed = tiny_rollout(vocabulary=self.vocabulary, edits={0: _other(last.token_ids[0], self.vocabulary)})
        with Session(self.setup_of(side, tmp_path), last) as session:
            session.build()
            report, _ = session.score(arm, changed)
        forms = [expected_attestations(changed, consumed_last=last) for last in (True, False)]
        assert tuple(sorted(report.attestations, key=lambda item: item.index)) in forms

    def test_columns(self, seen: Observation) -> None:
        """Failing means a column of an unknown name, another dtype, length or device. Columns are flat, on the CPU."""
        total = int(tiny_rollout(vocabulary=self.vocabulary).offsets[-1])
        columns = seen.first[1]
        assert {"selected_logprob", "active"} <= set(columns), f"there are only {sorted(columns)}"
        for name, column in columns.items():
            assert name in SCORE_COLUMNS, f"unknown column {name!r}"
            dtype = str(column.dtype).removeprefix("torch.")
            assert dtype in SCORE_COLUMNS[name], f"{name} is {dtype}, the table says {SCORE_COLUMNS[name]}"
            assert column.shape[0] == total, f"{name} has {column.shape[0]} rows, not {total}"
            assert column.device.type == "cpu", f"{name} is on {column.device}"

    def test_scores_stand_exactly_where_tokens_are_active(self, seen: Observation) -> None:
        """Failing means an off-by-one, or zeros in place of nothing. NaN stands where nothing was scored."""
        active = tiny_rollout(vocabulary=self.vocabulary).active
        np.testing.assert_array_equal(seen.column("active").numpy(), active, err_msg="the column active")
        for index, value in enumerate(seen.column().tolist()):
            if active[index]:
                assert is_number(value), f"token {index} is active and has {value!r}"
            else:
                assert value != value, f"token {index} is not active and has {value!r}"

    def test_rank_record(self, seen: Observation) -> None:
        """Failing means that ownership of tokens cannot be checked. One rank owns all active tokens, once."""
        rollout = tiny_rollout(vocabulary=self.vocabulary)
        record = seen.first[0].record
        assert record is not None, "no rank record"
        assert (record.rank, record.world_size, record.role) == (0, 1, "owner"), record
        owners = np.zeros(int(rollout.offsets[-1]), dtype=int)
        for start, stop in record.ranges:
            owners[start:stop] += 1
        assert bool((owners[rollout.active] == 1).all()), f"ranges {record.ranges} do not cover each active token once"
        assert record.active_tokens == int(rollout.active.sum()), f"{record.active_tokens} active tokens"

    def test_scoring_changes_nothing(self, seen: Observation) -> None:
        """Failing means that scoring wrote to parameters, buffers, modes, generators or flags. Use no_grad and eval.

        A build may set up its own process as it likes; a score must leave it as it was.
        """
        for report, _ in (seen.first, seen.second):
            assert report.fold_before, "no fold_before"
            assert report.fold_before == report.fold_after, "the fold changed"
            assert report.state_unchanged, "state_unchanged is false"
        assert seen.first[0].fold_after == seen.second[0].fold_before, "something changed between two scores"
        assert not seen.leaks, f"a score left the process changed: {seen.leaks}"
        assert seen.fold_before == seen.fold_after, "the kit's own fold of the engine's tensors changed"

    def test_repeats(self, seen: Observation) -> None:
        """Failing means that two scores of one build differ in a bit, though `run_to_run` says they do not."""
        if not self.run_to_run:
            pytest.skip("run_to_run is not claimed")
        assert same_bits(seen.column(), seen.second[1]["selected_logprob"])

    def test_decode_is_decode(self, arm: str, seen: Observation) -> None:
        """Failing means that the decode arm is a prefill in disguise. Count forwards of one token, tag the phases."""
        if arm != "rollout_decode" or not self.descriptor.forced_replay:
            pytest.skip("not an arm of forced replay")
        report, columns = seen.first
        assert report.single_token_forwards > 0, "no forward of a single token was counted"
        assert "phase" in columns, "no column phase"
        active = tiny_rollout(vocabulary=self.vocabulary).active
        allowed = {Phase.FIRST_TOKEN.value, Phase.DECODE.value, Phase.RECOMPUTED.value}
        tags = set(columns["phase"].numpy()[active].tolist())
        assert {Phase.DECODE.value} <= tags <= allowed, f"active tokens are tagged {sorted(tags)}"

    def test_a_score_depends_on_its_past_only(self, side: str, arm: str, tmp_path: Path) -> None:
        """Failing means a wrong mask or position: the first token must move later scores, the last only its own."""
        base = tiny_rollout(vocabulary=self.vocabulary)
        last = int(base.offsets[1]) - 1
        active = np.flatnonzero(base.active[: last + 1])
        early = 0 if self.whole_past else int(active[0]) - 1
        with Session(self.setup_of(side, tmp_path), base) as session:
            session.build()
            plain, first, final = (
                session.score(arm, rollout)[1]["selected_logprob"]
                for rollout in (base, self._edited(base, early), self._edited(base, last))
            )
        assert any(plain[index] != first[index] for index in active), f"token {early} moved no later score"
        assert plain[last] != final[last], "another last token kept its score"
        if self.run_to_run:
            assert same_bits(plain[:last], final[:last]), "the last token moved a score before it"
            assert same_bits(plain[last + 1 :], final[last + 1 :]), "a token moved the score of another sequence"

    def test_logits_stand_before_their_token(self, side: str, arm: str, tmp_path: Path) -> None:
        """Failing means an off-by-one: the logits that score a token already know it.

        Score the token at position p from the logits at p - 1. An operator that reads the row and not the id must
        give the last token of a sequence the same value, whichever token stands there.
        """
        if "selected_logprob" not in self.descriptor.operators or not self.run_to_run:
            pytest.skip("needs an injected operator and equal bits from run to run")
        base = tiny_rollout(vocabulary=self.vocabulary)
        last = int(base.offsets[1]) - 1
        with Session(self.setup_of(side, tmp_path).but(operator="normaliser"), base) as session:
            session.build()
            values = {
                float(session.score(arm, rollout)[1]["selected_logprob"][last])
                for rollout in (base, *(self._edited(base, last, step) for step in (1, 2, 3)))
            }
        assert len(values) == 1, f"the row of the last token changes with that token: {sorted(values)}"

    def test_the_injected_operator_runs(self, side: str, arm: str, tmp_path: Path) -> None:
        """Failing means that the bound backend is not what scored. Call `instantiate(spec.operators[...])`.

        Scores through an operator that is lower by exactly 1 must be lower by 1, up to one rounding of the column.
        """
        if "selected_logprob" not in self.descriptor.operators:
            pytest.skip("the runtime injects no selected_logprob")
        base = tiny_rollout(vocabulary=self.vocabulary)
        found = []
        for name in ("plain", "shifted"):
            with Session(self.setup_of(side, tmp_path).but(operator=name), base) as session:
                session.build()
                found.append(session.score(arm, base)[1]["selected_logprob"].double().numpy()[base.active])
        rounding = float(np.finfo(np.float32).eps) * (np.abs(found[0]) + 2 * operators.SHIFT)
        assert bool((np.abs(found[0] - found[1] - operators.SHIFT) <= rounding).all()), f"{found[0]} -> {found[1]}"

    def test_close_after_a_failed_build(self, side: str, tmp_path: Path) -> None:
        """Failing means that an error while building hides behind an error while closing. `close` never raises."""
        setup = self.setup_of(side, tmp_path).but(checkpoint=str(tmp_path / "absent"))
        session = Session(setup, tiny_rollout(vocabulary=self.vocabulary))
        with contextlib.suppress(Exception):  # whether it raises or reports is up to the adapter
            session.build()
        session.adapter.close()

    def _edited(self, base: Any, index: int, step: int = 1) -> Any:
        edits = {index: _other(int(base.token_ids[index]) + step - 1, self.vocabulary)}
        return tiny_rollout(vocabulary=self.vocabulary, edits=edits)

    def _applications(self, setup: Setup, arm: str) -> tuple[Any, ...]:
        """Those of a build and one score; an engine that refuses to build or to score applied nothing."""
        rollout = tiny_rollout(vocabulary=self.vocabulary)
        with Session(setup, rollout) as session:
            try:
                report = session.build()
                if report.error:
                    return ()
                return (*report.applications, *session.score(arm, rollout)[0].applications)
            except Exception:  # noqa: BLE001 - an engine refuses in its own way
                return ()


def _foreign(capability: Capability) -> Any:
    """Return a value of the same type that is not among the capability's values."""
    sample = capability.values[0]
    if isinstance(sample, bool):
        return not sample if len(set(capability.values)) == 1 else NO_SUCH_VALUE
    if isinstance(sample, int):
        return max(value for value in capability.values if isinstance(value, int)) + 1
    return NO_SUCH_VALUE


def _other(token: Any, vocabulary: int) -> int:
    """Return another token id than `token`, in [1, vocabulary)."""
    return int(token) % (vocabulary - 1) + 1
