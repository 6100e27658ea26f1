"""Every reason for which a gate closes: its kind, its exit code, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass

from xcfg.schema.gate import Finding
from xcfg.schema.names import LAUNCH_STATUSES, Status


@dataclass(frozen=True)
class Kind:
    """code: 1 a number says no, 3 nothing can be said, 4 an engine failed. cure: what to do."""

    code: int
    cure: str


KINDS = {
    "mismatch": Kind(1, "`xcfg analyze RUN` names what drifts; a known mismatch is held by a --baseline."),
    "above_corridor": Kind(1, "The drift grew. Compare what changed since the baseline was written."),
    "below_corridor": Kind(1, "The drift shrank. If that is meant, write a new baseline."),
    "status_changed": Kind(1, "If the change is meant, write a new baseline."),
    "assessment_changed": Kind(1, "Rounding explained the drift in one of them and not in the other."),
    "zero_tokens": Kind(3, "No token was compared: look at the active mask of the frozen rollout."),
    "non_finite": Kind(3, "A log probability or a figure is NaN, infinite or absent; look at the side scores."),
    "no_common_key": Kind(3, "The two sides share no token: check sample ids and positions."),
    "no_common_case": Kind(3, "The baseline is of another experiment; name its own, or write one."),
    "missing_case": Kind(
        3, "Run it again: it goes on where it stopped. If it no longer plans the case, write a new baseline."
    ),
    "case_changed": Kind(3, "Settings behind the same label changed; write a baseline of the new experiment."),
    "contract_changed": Kind(3, "Another numerical contract judged; write a baseline under the new one."),
    "rollout_changed": Kind(3, "Other tokens were scored; write a baseline of the new rollout."),
    "tokens_changed": Kind(3, "Another number of tokens was compared; write a baseline once that is explained."),
    "environment_changed": Kind(3, "Runtimes or devices differ; keep one baseline per environment."),
    "altered_evidence": Kind(3, "Put it back from a copy, or run again with --no-resume; `xcfg verify` has the list."),
    "stale_run": Kind(3, "The folder is older than the run; look at how the run ended."),
    "run_failed": Kind(3, "What lies in the folder is from before; mend the run first."),
    "nothing_measured": Kind(3, "No case holds a number; `xcfg verify` and the case folders say why."),
    "not_measured": Kind(3, "The status says why; `failure.json` of the attempt has the details."),
    "engine_failed": Kind(4, "Look at the worker logs of the attempt, and run again."),
}
OF_STATUS = {
    Status.MISMATCH: "mismatch",
    Status.ZERO_ACTIVE_TOKENS: "zero_tokens",
    Status.EMPTY_JOIN: "no_common_key",
    Status.INVALID_ARTIFACT: "non_finite",
    **dict.fromkeys(LAUNCH_STATUSES, "engine_failed"),
}
PRECEDENCE = (4, 3, 1)


def finding(kind: str, text: str) -> Finding:
    """Return a finding of `kind`, with the cure of its kind at the end of `text`."""
    known = KINDS[kind]
    return Finding(kind=kind, text=f"{text} {known.cure}", exit_code=known.code)


def worst(codes: set[int]) -> int:
    """Return the exit code that stands for all of `codes`: 4 before 3 before 1; 0 for none."""
    return next((code for code in PRECEDENCE if code in codes), 0)
