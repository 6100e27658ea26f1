"""The experiment of a run as a file again, with what would tell most next; to be run as it is."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xcfg.errors import UsageError
from xcfg.schema.codec import pretty_json
from xcfg.schema.experiment import V2

from xcfg_analysis.cube.load import Evidence

SAME = ("experiment_id", "scenario_id", "strategy", "strict_fallback", "baseline", "pairwise_paths", "operators")
"""Fields that a file spells as the sealed experiment does."""
OPTIONAL = ("scenario", "align", "fixed", "constraints", "slices", "controls", "runtime_options", "requires")


def write_next(path: Path, evidence: Evidence, changes: Mapping[str, Any]) -> None:
    """Write the experiment with `changes` to a new file. Raises UsageError where there is one, or none can be.

    changes: `interventions` are added where the experiment has none for that path, `controls` are raised,
    `pairwise_paths` are listed beside those that are.
    """
    document = experiment_document(evidence, changes, path.absolute().parent)
    try:
        with path.open("xb") as stream:
            stream.write(pretty_json(document))
    except FileExistsError:
        raise UsageError(f"{str(path)!r} exists", hint="Nothing is overwritten; name another file.") from None
    except OSError as error:
        raise UsageError(f"{str(path)!r} cannot be written: {error.strerror}") from None


def experiment_document(evidence: Evidence, changes: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the experiment as plain JSON for a file in `folder`; its frozen rollout is the copy that the run keeps."""
    sealed = evidence.run.experiment
    document = {"schema_version": V2} | {name: sealed[name] for name in SAME if name in sealed}
    document |= {name: sealed[name] for name in OPTIONAL if sealed.get(name)}
    document |= {"contract_source": sealed["contract"]["source"], "contract_version": sealed["contract"]["version"]}
    document["limits"] = {"max_cases": sealed["max_cases"]}
    document["identity"] = _identity(evidence, sealed["identity"], folder)
    document["interventions"] = _interventions(sealed["interventions"], changes.get("interventions", ()))
    if "pairwise_paths" in changes:
        document["strategy"] = "pairwise"
        document["pairwise_paths"] = [*map(list, sealed.get("pairwise_paths") or ()), *changes["pairwise_paths"]]
    if "controls" in changes:
        planned = dict(sealed.get("controls") or {})
        document["controls"] = planned | {
            name: max(count, int(planned.get(name, 0))) for name, count in changes["controls"].items()
        }
    return document


def _identity(evidence: Evidence, sealed: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    kept = {name: value for name, value in sealed.items() if value is not None}
    if "rollout" in kept:
        place = Path(os.path.relpath(evidence.run.rollout.path, folder)).as_posix()
        kept["rollout"] = dict(kept["rollout"]) | {"path": place}
    return kept


def _interventions(planned: Any, added: Any) -> list[dict[str, Any]]:
    known = [{name: value for name, value in item.items() if value is not None} for item in planned]
    paths = {(item["path"], item.get("side")) for item in known}
    return known + [item for item in added if (item["path"], item.get("side")) not in paths]
