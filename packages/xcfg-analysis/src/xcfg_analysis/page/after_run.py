"""An analysis in the store of every run that ends."""

from __future__ import annotations

from pathlib import Path

from xcfg_analysis.cube.load import Evidence
from xcfg_analysis.page.analysis import analyze_evidence, store


def keep_analysis(folder: str, experiment: str) -> Path:
    """Analyse the revision `experiment` of the run in `folder` and store the document; return its file."""
    evidence = Evidence.open(Path(folder), experiment=experiment)
    return store(evidence, analyze_evidence(evidence))
