"""Identity before numerics: what every rank attests to, against the frozen rollout and the checkpoint.

Nothing attested is a violation, never a pass (contract, section 2).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from xcfg.comparison.weights_gate import weight_errors
from xcfg.identity.attest import expected_attestations
from xcfg.identity.rollout import Rollout
from xcfg.schema.identity import MODEL_S_OWN, SequenceAttestation
from xcfg.schema.worker import BuildReport, ScoreReport

FIELDS = ("length", "token_ids", "position_ids", "selected_ids")
SHOWN = 3
SCORING_ROLES = ("owner", "replica")


def identity_errors(
    rollout: Rollout,
    expected_weights: Mapping[str, str] | None,
    build_reports: Sequence[BuildReport],
    score_reports: Sequence[ScoreReport],
    *,
    transforms_of: Sequence[ScoreReport] = (),
) -> list[str]:
    """Return every violation of one arm's identity; empty when all ranks scored the frozen problem.

    expected_weights: Hugging Face name -> SHA-256 of the checkpoint cast to the compute dtype; None when
    there is none to compare with, which only a probe (lossy or packed formats, RECORDED) may pass.
    transforms_of: the training arm's reports, whose transform chain must equal this arm's and the rollout
    manifest's.
    """
    if not score_reports:
        return ["no rank reported a score, so nothing is attested"]
    return [
        *_input_errors(rollout, score_reports),
        *weight_errors(expected_weights, build_reports),
        *_state_errors(build_reports, score_reports),
        *transform_errors(score_reports, transforms_of, rollout.manifest.sampling.transform_chain),
    ]


def transform_errors(
    reports: Sequence[ScoreReport], training: Sequence[ScoreReport], recorded: tuple[str, ...]
) -> list[str]:
    """Return where the ordered chain of transforms differs: between ranks, sides, or the manifest.

    What the checkpoint's own head does (MODEL_S_OWN) must be equal on all ranks of both sides; a manifest, which says
    how tokens were sampled, need not name it.
    """
    told = any(_is_model_s_own(item) for item in recorded)
    faulty: set[tuple[str, ...]] = set()
    sound: dict[tuple[str, ...], str] = {}
    errors = []
    for label, group in (("", reports), ("training ", training)):
        for report in group:
            who, chain = f"{label}rank {report.rank}", report.transforms
            if chain is None:
                errors.append(f"{who} does not say which transforms its values went through")
                continue
            if chain in faulty or chain in sound:
                continue
            sampled = chain if told else tuple(item for item in chain if not _is_model_s_own(item))
            if sampled != recorded:
                errors.append(_differs(who, chain, "the rollout manifest", recorded))
                faulty.add(chain)
                continue
            errors += [_differs(who, chain, whose, other) for other, whose in list(sound.items())[:1]]
            sound[chain] = who
    return errors


def _is_model_s_own(item: str) -> bool:
    return item.partition(":")[0] in MODEL_S_OWN


def _differs(who: str, chain: tuple[str, ...], other: str, theirs: tuple[str, ...]) -> str:
    return f"{who} applied the transforms {list(chain)}, {other} has {list(theirs)}"


def _input_errors(rollout: Rollout, reports: Sequence[ScoreReport]) -> Iterator[str]:
    full = expected_attestations(rollout)
    short = expected_attestations(rollout, consumed_last=False)
    attested: set[int] = set()
    for report in reports:
        seen = {item.index for item in report.attestations}
        attested |= seen
        found = [text for item in report.attestations for text in _attestation_errors(item, full, short)]
        yield from _few([f"rank {report.rank}: {text}" for text in found])
        missing = [index for index in _scored(report, rollout) if index not in seen]
        if missing:
            yield f"rank {report.rank} scored and did not attest to {_sequences(missing)}"
    never = [index for index in range(rollout.sequence_count) if index not in attested]
    if never:
        yield f"no rank attests to what it consumed for {_sequences(never)}"


def _attestation_errors(
    item: SequenceAttestation, full: Sequence[SequenceAttestation], short: Sequence[SequenceAttestation]
) -> Iterator[str]:
    """Compare with the full form, or with the form in which the last token did not enter the model."""
    if not 0 <= item.index < len(full):
        yield f"attests to a sequence {item.index} of {len(full)}"
        return
    wanted = short[item.index] if item.length == short[item.index].length else full[item.index]
    wrong = [name for name in FIELDS if getattr(item, name) != getattr(wanted, name)]
    if wrong:
        yield f"{', '.join(wrong)} of sequence {item.index} are not the frozen rollout's"


def _scored(report: ScoreReport, rollout: Rollout) -> list[int]:
    """Return the sequences in which an owner or replica has active tokens."""
    record = report.record
    if record is None or record.role not in SCORING_ROLES:
        return []
    found = set()
    for start, stop in record.ranges:
        for index in range(rollout.sequence_count):
            span = rollout.span(index)
            inside = slice(max(start, span.start), min(stop, span.stop))
            if inside.start < inside.stop and bool(rollout.active[inside].any()):
                found.add(index)
    return sorted(found)


def _state_errors(builds: Sequence[BuildReport], reports: Sequence[ScoreReport]) -> Iterator[str]:
    """The read-only proof: parameters and buffers fold to one digest at build, before and after the score."""
    built = {build.rank: build.weights.fold for build in builds if build.weights is not None}
    for report in reports:
        folds = {
            "build": built.get(report.rank, ""),
            "before": report.fold_before,
            "after": report.fold_after,
        }
        absent = [name for name, fold in folds.items() if not fold]
        if absent:
            yield f"rank {report.rank} has no weight fold of {', '.join(absent)}"
        elif len(set(folds.values())) > 1:
            said = ", ".join(f"{name} {fold}" for name, fold in folds.items())
            yield f"rank {report.rank}: parameters or buffers changed ({said})"
        if report.state_unchanged is None:
            yield f"rank {report.rank} does not say whether the score left modes, buffers and RNG as they were"
        elif not report.state_unchanged:
            yield f"rank {report.rank}: modes, buffers or RNG are not as they were before the score"


def _few(texts: list[str]) -> list[str]:
    return texts[:SHOWN] + (
        [f"{texts[0].partition(':')[0]}: and {len(texts) - SHOWN} more"] if len(texts) > SHOWN else []
    )


def _sequences(indices: list[int]) -> str:
    shown = ", ".join(str(index) for index in indices[:SHOWN])
    return f"sequence {shown}" + (f" and {len(indices) - SHOWN} more" if len(indices) > SHOWN else "")
