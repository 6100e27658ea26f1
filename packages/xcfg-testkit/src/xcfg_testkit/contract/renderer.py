"""What a renderer must fulfil: every case with its status, the same bytes each time, nothing invented."""

from __future__ import annotations

from typing import ClassVar

from xcfg.plugin import RendererDescriptor
from xcfg.plugin.operators import load_factory
from xcfg.schema.summary import RUN_SUMMARY, CaseSummary, ContractSummary, EdgeSummary, RunSummary, Seconds

from xcfg_testkit.contract.guard import Contract

FIGURES = EdgeSummary(
    active_tokens=37, mismatches=5, max_abs=0.342, mean_abs=0.0414, rms=0.0512, p99_abs=0.21, approx_kl0=0.0017
)
NO_FIGURES = EdgeSummary(
    active_tokens=0, mismatches=0, max_abs=None, mean_abs=None, rms=None, p99_abs=None, approx_kl0=None
)


def run_summary(cases: tuple[CaseSummary, ...]) -> RunSummary:
    """Return a run of the given cases."""
    return RunSummary(
        schema_version=RUN_SUMMARY,
        experiment_id="testkit-renderer",
        exit_code=3,
        runtimes={"rollout": "left", "training": "right"},
        contract=ContractSummary(source="ws1", version="current", digest="0" * 64),
        cases=cases,
    )


def case_summary(index: int, status: str, label: str, edge: EdgeSummary) -> CaseSummary:
    """Return one case with recognisable text."""
    return CaseSummary(
        case_id=f"case-{index:020x}",
        attempt_id=f"attempt-{index}",
        label=label,
        status=status,
        assessment="UNDECIDED",
        reason="",
        resumed=False,
        threshold=None,
        edges={"training_vs_rollout": edge},
        seconds=Seconds(build=1.0, score=2.0, compare=0.5),
    )


CASES = (
    case_summary(1, "PASS", "baseline", FIGURES),
    case_summary(2, "MISMATCH", "batch.size=1", FIGURES),
    case_summary(3, "ZERO_ACTIVE_TOKENS", "rollout.dtype=float16", NO_FIGURES),
    case_summary(4, "WORKER_FAILED", "training.sharding=fsdp", NO_FIGURES),
)


class RendererContract(Contract):
    """Give `descriptor`. shows_cases: whether the format can hold text of each case (a picture may not)."""

    needs = ("descriptor",)
    descriptor: ClassVar[RendererDescriptor]
    shows_cases: ClassVar[bool] = True

    def render(self, run: RunSummary) -> bytes:
        """Render with the factory of the descriptor."""
        result = load_factory(self.descriptor.factory)(run)
        assert isinstance(result, bytes), f"the renderer returned {type(result).__name__}, not bytes"
        return result

    def test_descriptor(self) -> None:
        """Failing means that no file name selects the renderer. Suffixes start with a dot."""
        assert self.descriptor.name.strip(), "no name"
        assert self.descriptor.summary.strip(), "no summary"
        assert self.descriptor.suffixes, "no suffixes"
        assert all(suffix.startswith(".") and len(suffix) > 1 for suffix in self.descriptor.suffixes)

    def test_renders_bytes(self) -> None:
        """Failing means an empty file, or text where bytes are due."""
        assert self.render(run_summary(CASES))

    def test_same_bytes_each_time(self) -> None:
        """Failing means a clock, a path or an unordered set in the output. Take times from the run."""
        assert self.render(run_summary(CASES)) == self.render(run_summary(CASES))

    def test_every_case_and_status_is_there(self) -> None:
        """Failing means that a case is left out, the failed ones first of all. List every case with its status."""
        if not self.shows_cases:
            return
        text = self.render(run_summary(CASES)).decode()
        for case in CASES:
            assert case.case_id in text or case.label in text, f"{case.label} is missing"
            assert case.status in text, f"{case.status} is missing"

    def test_a_failure_is_no_pass(self) -> None:
        """Failing means that a run without a PASS is shown with one. Print the status of the case, nothing else."""
        if not self.shows_cases:
            return
        text = self.render(run_summary(CASES[2:])).decode()
        assert "PASS" not in text.replace("EXPLAINED_BY", "")

    def test_statuses_change_the_output(self) -> None:
        """Failing means that the output does not depend on the status. It must, also in a picture."""
        changed = case_summary(1, "MISMATCH", "baseline", FIGURES)
        assert self.render(run_summary(CASES[:1])) != self.render(run_summary((changed,)))

    def test_no_cases(self) -> None:
        """Failing means that an empty run crashes or counts as passed."""
        assert b"PASS" not in self.render(run_summary(()))

    def test_markup_is_escaped(self) -> None:
        """Failing means that a label of an experiment runs as script in the reader's browser. Escape text."""
        hostile = case_summary(5, "MISMATCH", "<script>alert(1)</script>&\"'", FIGURES)
        data = self.render(run_summary((hostile,)))
        if any(word in self.descriptor.media_type for word in ("html", "xml", "svg")):
            assert b"<script>alert(1)</script>" not in data
