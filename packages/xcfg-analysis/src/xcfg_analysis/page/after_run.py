"""An analysis in the store of every run that ends."""

from __future__ import annotations

from pathlib import Path

from xcfg.schema.summary import RunSummary

from xcfg_analysis.cube.load import Evidence
from xcfg_analysis.page.analysis import analyze_evidence, store


def keep_analysis(summary: RunSummary, folder: str, experiment: str) -> Path:
    """Analyse what has run in `folder`, and store the document; return its file.

    experiment: digest of the revision. Slices share it, so the cases of `summary` say which plan ran, and its runtimes
    which pair did.
    """
    evidence = Evidence.open(
        Path(folder),
        runtimes=f"{summary.runtimes['rollout']}/{summary.runtimes['training']}",
        experiment=experiment,
        cases=tuple(case.case_id for case in summary.cases),
    )
    return store(evidence, analyze_evidence(evidence))
