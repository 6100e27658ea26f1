"""The main journey: experiment file -> plan -> side scores -> judgements -> sealed attempts -> summary."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from xcfg.artifacts.busy import Busy
from xcfg.artifacts.store import Store
from xcfg.artifacts.stored import StoredAttempt
from xcfg.errors import ArtifactError, InterruptedRunError
from xcfg.flow.checkpoints import Checkpoint, find_checkpoint
from xcfg.flow.defaults import of_applications
from xcfg.flow.documents import Actual, Failure
from xcfg.flow.engines import Engines, engines
from xcfg.flow.inputs import Loaded, load_inputs
from xcfg.flow.judge import deciding_arms, judge
from xcfg.flow.operators import check_operators
from xcfg.flow.options import RunOptions
from xcfg.flow.prepare import PreparedCase, Preparer, ScoreJob
from xcfg.flow.recheck import decode
from xcfg.flow.record import Recorder, failure_document, failure_of
from xcfg.flow.resume import resumable, what_differed
from xcfg.flow.runtimes import choose_runtimes
from xcfg.flow.scores import ScoreFailure, Scorer, SideScore
from xcfg.flow.summary import case_summary, run_summary, unstored_summary
from xcfg.plugin.manager import PluginManager
from xcfg.runtime.environment import forget_environment
from xcfg.schema.codec import evolve, plain
from xcfg.schema.names import Status
from xcfg.schema.runtime import KnobApplication
from xcfg.schema.summary import CaseSummary, RunSummary


def run(file: Path, manager: PluginManager, options: RunOptions) -> RunSummary:
    """Run the experiment in `file`; every finished case is sealed, whatever happens to the others.

    Raises UsageError and IdentityError before anything is started. Ctrl-C ends with exit_code 130 in the summary.
    """
    return run_loaded(load_inputs(file, manager, options.selection, root=options.output_root), manager, options)


def run_loaded(loaded: Loaded, manager: PluginManager, options: RunOptions, kept: Engines | None = None) -> RunSummary:
    """Run an experiment that has been loaded and planned, as `run` does. kept: engines that stay alive afterwards."""
    if kept is None:  # engines that live on run what was read when the first of them started
        forget_environment()
    runtimes = choose_runtimes(loaded.experiment, manager, options)
    check_operators(loaded.experiment, manager, {side: runtimes.of(side).name for side in ("rollout", "training")})
    checkpoint = find_checkpoint(
        loaded.rollout.manifest.checkpoint.uri,
        manager,
        synthetic={runtimes.rollout.synthetic, runtimes.training.synthetic} - {""},
        base_dir=loaded.experiment.base_dir,
        digest=loaded.rollout.manifest.checkpoint.digest,
    )
    store = Store(options.output_root, loaded.experiment.experiment_id, on_boundary=options.on_boundary)
    rollout_folder = store.put_rollout(loaded.rollout)
    preparer = Preparer(loaded, manager, options, runtimes, checkpoint, str(rollout_folder))
    prepared = [preparer.prepare(case) for case in loaded.plan.cases]
    revision = store.open_experiment(
        describe(loaded), [plain(case) for case in loaded.plan.cases], plain(loaded.plan.identity)
    )
    recorder = Recorder(
        store=store,
        loaded=loaded,
        checkpoint=checkpoint,
        definitions=preparer.definitions,
        runtimes={"rollout": options.rollout, "training": options.training},
        revision=revision,
        baseline=prepared[0],
        strict=loaded.experiment.strict_fallback,
    )
    with contextlib.ExitStack() as stack:
        shared = kept or stack.enter_context(engines(options))
        busy = stack.enter_context(Busy(store.folder))
        for other in busy.others():
            reason = f"{other.described}; both go on, and each takes over what the other has sealed"
            options.on_event({"event": "busy", "label": "another run is at this experiment", "reason": reason})
        return Run(loaded, checkpoint, manager, options, recorder, prepared, shared, busy).execute()


def describe(loaded: Loaded) -> dict[str, object]:
    """Return experiment.json: the normalised experiment without paths of this machine."""
    document: dict[str, object] = plain(loaded.experiment)
    left_out = ("base_dir", "source", *(() if loaded.experiment.combinations else ("combinations",)))
    return {name: value for name, value in document.items() if name not in left_out}


WITHOUT_COMPARISON = (Status.UNSUPPORTED, Status.WORKER_FAILED)
"""Statuses that an engine's own readback can end in after it has scored; their attempts say why and hold no figure."""


@dataclass
class Run:
    """The state of one run: which cases still wait for which scores."""

    loaded: Loaded
    checkpoint: Checkpoint
    manager: PluginManager
    options: RunOptions
    recorder: Recorder
    prepared: list[PreparedCase]
    engines: Engines
    busy: Busy
    summaries: dict[str, CaseSummary] = field(default_factory=dict)
    attempts: dict[str, StoredAttempt] = field(default_factory=dict)
    charged: set[str] = field(default_factory=set)

    def execute(self) -> RunSummary:
        """Return the summary after every case has ended, been resumed, or been cancelled."""
        interrupted = False
        self.scorer = Scorer(
            self.recorder.store,
            self.engines.pool,
            self.loaded.rollout,
            self.recorder.definitions,
            strict=self.recorder.strict,
            on_event=self.options.on_event,
            reuse=self.options.resume,
            made=self.engines.scored,
            busy=self.busy,
        )
        try:
            waiting = [item for item in self.prepared if not self._ends_at_once(item)]
            jobs: dict[str, ScoreJob] = {}
            for item in waiting:
                for job in (*item.jobs.values(), *item.reference.values()):
                    jobs.setdefault(job.key, job)
            self.scorer.obtain(jobs.values(), lambda _: self._advance(waiting), self._wanted)
            self._advance(waiting)
        except (KeyboardInterrupt, InterruptedRunError):  # the second is what a busy worker makes of the first
            interrupted = True
        ended = {case_id: attempt.seal.attempt_id for case_id, attempt in self.attempts.items()}
        self.recorder.store.put_ended(self.recorder.revision.experiment_digest, ended)
        summary = run_summary(self.loaded, self.options, self.prepared, self.summaries, interrupted=interrupted)
        if not interrupted:
            revision = self.recorder.revision.experiment_digest
            self.manager.observe_after_run(summary, str(self.recorder.store.folder), revision)
        return summary

    def _ends_at_once(self, item: PreparedCase) -> bool:
        if self.options.resume or item.case.case_id in self.engines.judged:
            try:
                attempt = resumable(self.recorder, item)
                differed = [] if attempt is not None else what_differed(self.recorder, item)
            except ArtifactError as error:  # no folder of ours, a link perhaps: nothing can be sealed there either
                self._finish(unstored_summary(item.case, error.message), item)
                return True
            if attempt is not None:
                self._done(item, attempt, resumed=True)
                return True
            for line in differed:
                self.options.on_event({"event": "rescored", "label": item.case.label, "reason": line})
        if not item.unsupported:
            return False
        reason = "; ".join(f"{path}: {why}" for path, why in sorted(item.unsupported.items()))
        self._fail(item, failure_document(Status.UNSUPPORTED, reason, unsupported=item.unsupported), time.monotonic())
        return True

    def _advance(self, waiting: list[PreparedCase]) -> None:
        """Judge every waiting case whose scores, and the baseline's, have all ended."""
        baseline = self.prepared[0]
        for item in list(waiting):
            if item.case.case_id in self.summaries:
                continue
            needed = [*item.keys, *(job.key for job in baseline.jobs.values() if baseline in waiting)]
            if self._lost(item) or all(key in self.scorer.outcomes for key in needed):
                self._judge(item)

    def _lost(self, item: PreparedCase) -> bool:
        """Return whether an arm that decides the verdict has failed: nothing else can save the case."""
        deciding = (item.jobs[arm].key for arm in deciding_arms(item.verdict_arm) if arm in item.jobs)
        return any(isinstance(self.scorer.outcomes.get(key), ScoreFailure) for key in deciding)

    def _wanted(self, job: ScoreJob) -> bool:
        """Return whether a case that has not ended needs `job`; all are held against the baseline's."""
        open_cases = [item for item in self.prepared if item.case.case_id not in self.summaries]
        baseline = self.prepared[0].jobs.values() if open_cases else ()
        return any(job.key in item.keys for item in open_cases) or job.key in {item.key for item in baseline}

    def _judge(self, item: PreparedCase) -> None:
        self.manager.observe_before_case(item.case)
        started = time.monotonic()
        outcomes = {
            arm: self.scorer.outcomes[job.key] for arm, job in item.jobs.items() if job.key in self.scorer.outcomes
        }
        failed = {arm: outcome for arm, outcome in outcomes.items() if isinstance(outcome, ScoreFailure)}
        for arm in deciding_arms(item.verdict_arm):
            if arm in failed:
                note = self._defaults(item, failed[arm].applications)
                self._fail(item, failure_of(arm, failed[arm], note), started, failed[arm].logs)
                return
        scores = {arm: outcome for arm, outcome in outcomes.items() if isinstance(outcome, SideScore)}
        for name, job in item.reference.items():
            outcome = self.scorer.outcomes[job.key]
            if isinstance(outcome, SideScore):
                scores[name] = outcome
        documents = (
            self.recorder.requested(item),
            self.recorder.actual(scores, self._baseline(), {arm: lost.reason for arm, lost in failed.items()}),
            self.recorder.identity(scores, self._weights(scores)),
        )
        columns = {name: score.columns for name, score in scores.items()}
        try:
            judgement = judge(*documents, columns, self.loaded.rollout, self.loaded.contract)
        except ArtifactError as error:
            self._fail(item, failure_document(Status.INVALID_ARTIFACT, error.message), started)
            return
        status = Status(judgement.comparison.status)
        arms = deciding_arms(item.verdict_arm)
        note = self._defaults(item, [one for arm in arms for one in documents[1].applications.get(arm, ())])
        note = note if status in (Status.FALLBACK, Status.UNSUPPORTED) else ""
        if status in WITHOUT_COMPARISON:
            applications = tuple(record for score in scores.values() for record in score.applications)
            reason = judgement.comparison.reason
            self._fail(item, failure_document(status, f"{reason}{note}", applications=applications), started)
            return
        self._seal(item, lambda: self.recorder.write(item, documents, scores, judgement), started, note=note)

    def _fail(
        self, item: PreparedCase, failure: Failure, started: float, logs: Mapping[str, Path] | None = None
    ) -> None:
        self._seal(item, lambda: self.recorder.write_failure(item, failure, logs or {}), started, failure.reason)

    def _defaults(self, item: PreparedCase, applications: Iterable[KnobApplication]) -> str:
        """Return what a case that ended by its settings has to say of those that its file does not set."""
        return of_applications(applications, item.case, self.loaded.experiment, self.recorder.definitions)

    def _seal(
        self,
        item: PreparedCase,
        write: Callable[[], StoredAttempt],
        started: float,
        reason: str = "",
        note: str = "",
    ) -> None:
        """Write the attempt; a case whose folder refuses it ends INVALID_ARTIFACT, and the run goes on."""
        try:
            attempt = write()
        except ArtifactError as error:
            self._finish(unstored_summary(item.case, error.message), item)
            return
        self._done(item, attempt, reason=reason, note=note, seconds=self._charge(item, started))

    def _baseline(self) -> dict[str, tuple[KnobApplication, ...]]:
        """Return what the baseline's arms really were: from their scores, else from its sealed attempt."""
        sealed = self.attempts.get(self.prepared[0].case.case_id)
        found: dict[str, tuple[KnobApplication, ...]] = {}
        if sealed is not None and "actual.json" in sealed.seal.files:
            found |= decode(sealed, "actual.json", Actual).applications
        for arm, job in self.prepared[0].jobs.items():
            outcome = self.scorer.outcomes.get(job.key) or self.scorer.stored(job)
            if isinstance(outcome, SideScore):
                found[arm] = outcome.applications
        return found

    def _weights(self, scores: Mapping[str, SideScore]) -> dict[str, dict[str, str]]:
        dtypes = {build.weights.dtype for score in scores.values() for build in score.builds if build.weights}
        return {dtype: self.checkpoint.weights(dtype) for dtype in sorted(dtypes)}

    def _charge(self, item: PreparedCase, started: float) -> dict[str, float]:
        """Return the seconds of a case; a shared score counts for the first case that needed it."""
        total = {"build": 0.0, "score": 0.0}
        for key in item.keys:
            outcome = self.scorer.outcomes.get(key)
            if outcome is not None and key not in self.charged:
                self.charged.add(key)
                for name in total:
                    total[name] += outcome.seconds.get(name, 0.0)
        return {**total, "compare": time.monotonic() - started}

    def _done(
        self,
        item: PreparedCase,
        attempt: StoredAttempt,
        *,
        resumed: bool = False,
        reason: str = "",
        note: str = "",
        seconds: Mapping[str, float] | None = None,
    ) -> None:
        """Keep the summary of a sealed case. note: beside the reason of a comparison, which verify makes again."""
        self.attempts[item.case.case_id] = attempt
        self.engines.judged.add(item.case.case_id)
        summary = case_summary(item.case, attempt, resumed=resumed, reason=reason, seconds=seconds or {})
        self._finish(evolve(summary, reason=f"{summary.reason}{note}"), item)

    def _finish(self, summary: CaseSummary, item: PreparedCase) -> None:
        self.summaries[item.case.case_id] = summary
        self.options.on_event({"event": "case", "summary": summary, "total": len(self.prepared)})
        self.manager.observe_after_case(item.case, summary)
