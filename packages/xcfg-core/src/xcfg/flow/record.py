"""Writing the attempt of one case: documents, copies of its side scores, comparison, seal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xcfg.artifacts.revisions import Revision
from xcfg.artifacts.store import Store
from xcfg.artifacts.stored import CaseFacts, StoredAttempt, StoredScore
from xcfg.artifacts.tensors import save_pt
from xcfg.flow.checkpoints import Checkpoint
from xcfg.flow.documents import (
    ACTUAL,
    FAILURE,
    IDENTITY,
    MATERIALIZED,
    REQUESTED,
    Actual,
    Failure,
    IdentityDocument,
    KnobFacts,
    Materialized,
    Requested,
)
from xcfg.flow.inputs import Loaded
from xcfg.flow.judge import Judgement
from xcfg.flow.prepare import PreparedCase
from xcfg.flow.scores import ScoreFailure, SideScore
from xcfg.runtime.keys import case_scoring_key, comparison_key
from xcfg.schema.codec import plain, pretty_json
from xcfg.schema.knobs import KnobDefinition
from xcfg.schema.names import Status
from xcfg.schema.runtime import KnobApplication


def score_file(table: str, verdict_arm: str) -> str:
    """Return the file of a side score in an attempt; the verdict arm's is score_rollout.pt."""
    return "score_rollout.pt" if table == verdict_arm else f"score_{table}.pt"


def stored_column(name: str) -> str:
    """Return the column of token_diffs.pt for the comparator's `<edge>.<part>`: `<edge>__<part>`."""
    return name.replace(".", "__")


@dataclass(frozen=True)
class Recorder:
    """Holds what is equal for every attempt of one run."""

    store: Store
    loaded: Loaded
    checkpoint: Checkpoint
    definitions: Mapping[str, KnobDefinition]
    runtimes: Mapping[str, str]
    revision: Revision
    baseline: PreparedCase
    strict: bool

    def requested(self, prepared: PreparedCase) -> Requested:
        """Return requested.json of a case."""
        case = prepared.case
        paths = sorted({key.partition("@")[0] for key in case.knobs})
        return Requested(
            schema_version=REQUESTED,
            case_id=case.case_id,
            label=case.label,
            role=case.role,
            index=case.index,
            knobs=case.knobs,
            delta=case.delta,
            operators=plain(case.operators),
            runtime_options=case.runtime_options,
            definitions={
                path: KnobFacts(tier=self.definitions[path].tier, critical=self.definitions[path].critical)
                for path in paths
            },
            strict=self.strict,
            verdict_arm=prepared.verdict_arm,
            runtimes=dict(self.runtimes),
        )

    def materialized(self, prepared: PreparedCase) -> Materialized:
        """Return materialized.json: placement, fingerprints and operator bindings with their traces."""
        sides: dict[str, Any] = {}
        for arm, job in prepared.jobs.items():
            if job.launch is not None:
                sides[arm] = {
                    "runtime": job.launch.spec.runtime,
                    "knobs": job.knobs,
                    "options": job.launch.spec.options,
                    "placement": plain(job.launch.placement),
                    "fingerprints": plain(job.launch.fingerprints),
                    "operators": plain(job.bindings),
                }
        return Materialized(schema_version=MATERIALIZED, sides=sides)

    def actual(
        self,
        scores: Mapping[str, SideScore],
        baseline: Mapping[str, tuple[KnobApplication, ...]],
        failures: Mapping[str, str],
    ) -> Actual:
        """Return actual.json from the side scores of the case, the baseline's applications and what failed."""
        return Actual(
            schema_version=ACTUAL,
            applications={arm: score.applications for arm, score in scores.items()},
            baseline=dict(baseline),
            compute_dtypes={arm: score.compute_dtype for arm, score in scores.items()},
            provenance={
                arm: {"environment": score.stored.seal.environment.get("environment", {}), **_provenance(score)}
                for arm, score in scores.items()
            },
            replica_disagreements={
                arm: score.replica_disagreements for arm, score in scores.items() if score.replica_disagreements
            },
            failures=dict(failures),
        )

    def identity(self, scores: Mapping[str, SideScore], weights: Mapping[str, dict[str, str]]) -> IdentityDocument:
        """Return identity.json: the expectation and what every rank of every arm attests to."""
        return IdentityDocument(
            schema_version=IDENTITY,
            rollout=self.loaded.rollout.sha256,
            checkpoint={"uri": self.checkpoint.uri, "digest": self.checkpoint.digest},
            manifest=plain(self.loaded.rollout.manifest),
            expected_weights=dict(weights),
            builds={arm: score.builds for arm, score in scores.items()},
            reports={arm: score.reports for arm, score in scores.items()},
        )

    def write(
        self,
        prepared: PreparedCase,
        documents: tuple[Requested, Actual, IdentityDocument],
        scores: Mapping[str, SideScore],
        judgement: Judgement,
    ) -> StoredAttempt:
        """Seal the attempt of a judged case."""
        requested, actual, identity = documents
        comparison = judgement.comparison
        files: dict[str, bytes | Path] = {
            "requested.json": pretty_json(requested),
            "materialized.json": pretty_json(self.materialized(prepared)),
            "actual.json": pretty_json(actual),
            "identity.json": pretty_json(identity),
            "comparison.json": pretty_json(comparison),
        }
        if judgement.token_diffs:
            thresholds = {name: edge.threshold for name, edge in comparison.edges.items()}
            columns = {stored_column(name): array for name, array in judgement.token_diffs.items()}
            files["token_diffs.pt"] = save_pt(columns, {"thresholds": thresholds})
        links = {score_file(name, prepared.verdict_arm): score.stored for name, score in scores.items()}
        return self._put(prepared, files, links, scores, comparison.status, comparison.assessment.assessment)

    def write_failure(self, prepared: PreparedCase, failure: Failure, logs: Mapping[str, Path]) -> StoredAttempt:
        """Seal the attempt of a case that holds no numbers."""
        files: dict[str, bytes | Path] = {
            "requested.json": pretty_json(self.requested(prepared)),
            "materialized.json": pretty_json(self.materialized(prepared)),
            "failure.json": pretty_json(failure),
        }
        files |= {name: path for name, path in logs.items() if path.exists()}
        return self._put(prepared, files, {}, {}, failure.status, "")

    def scoring_key(self, prepared: PreparedCase) -> str:
        """Return the scoring key of a case: its side scores or refusals, and the baseline it is held against."""
        named = {name: job.key for name, job in (*prepared.jobs.items(), *prepared.reference.items())}
        extra = {
            "unsupported": prepared.unsupported,
            "verdict_arm": prepared.verdict_arm,
            "delta": plain(prepared.case.delta),
            "baseline": {name: job.key for name, job in self.baseline.jobs.items()},
        }
        return case_scoring_key(named, extra)

    def _put(
        self,
        prepared: PreparedCase,
        files: Mapping[str, bytes | Path],
        links: Mapping[str, StoredScore],
        scores: Mapping[str, SideScore],
        status: str,
        assessment: str,
    ) -> StoredAttempt:
        facts = CaseFacts(
            status=Status(status),
            assessment=assessment,
            experiment=self.revision.experiment_digest,
            plan_line=self.revision.plan_line(prepared.case.case_id),
            contract=self.loaded.contract.digest,
            rollout=self.loaded.rollout.sha256,
            scoring_key=self.scoring_key(prepared),
            comparison_key=comparison_key(self.loaded.contract.digest),
            scores={name: score.stored.seal.key for name, score in scores.items()},
        )
        return self.store.put_attempt(prepared.case.case_id, facts, files, links)


def failure_document(status: Status, reason: str, **details: Any) -> Failure:
    """Return failure.json for `status`."""
    applications = details.pop("applications", ())
    arm = details.pop("arm", "")
    return Failure(
        schema_version=FAILURE, status=status.value, reason=reason, arm=arm, details=details, applications=applications
    )


def failure_of(arm: str, failure: ScoreFailure, note: str = "") -> Failure:
    """Return failure.json for a case whose arm `arm` has no score. note: stands behind its reason."""
    reason = f"{arm}: {failure.reason}{note}"
    return failure_document(failure.status, reason, arm=arm, applications=failure.applications)


def _provenance(score: SideScore) -> dict[str, Any]:
    return {"ranks": [build.provenance for build in score.builds], "mechanism": [r.mechanism for r in score.reports]}
