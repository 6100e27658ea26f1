"""What to do next: the most telling step in words, and as a command that can be pasted."""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xcfg.schema.analysis import Cause, Floor
from xcfg.schema.minimization import Minimization
from xcfg.schema.names import Assessment, Status

from xcfg_analysis.cube.load import Evidence
from xcfg_analysis.cube.rows import Row
from xcfg_analysis.floors.floors import MEASURED
from xcfg_analysis.page.causes import Said, is_excess
from xcfg_analysis.rules.points import Points, why_no_pairs

CONTROLS = {"repeats": 1, "fresh_processes": 2, "shuffled": 1}
REFERENCE, PRECISE = "reference", "float32"
SWAPS = (
    {"path": "operators.selected_logprob.training", "values": [REFERENCE]},
    {"path": "operators.selected_logprob.rollout", "values": [REFERENCE]},
    {"path": "training.compute_dtype", "values": [PRECISE]},
    {"path": "rollout.dtype", "values": [PRECISE]},
)
"""Interventions that show which side leaves the reference."""
NEW_TOKENS = "xcfg freeze --help"


@dataclass(frozen=True)
class Next:
    """A step. changes: what the experiment gains; None where the step is no run of it."""

    step: str
    command: str
    changes: Mapping[str, Any] | None = field(default=None)


def next_step(
    evidence: Evidence,
    baseline: Row | None,
    floors: Sequence[Floor],
    said: Said | None,
    points: Points,
    here: Path,
    *,
    unvaried: Mapping[str, Any] | None = None,
    enough: Minimization | None = None,
) -> Next:
    """Return what to do next. baseline: the row with figures; None, and said None, where there is none.

    here: the folder in which the command is to work. unvaried: as of unvaried.settings_of_one_side. enough: as of
    smallest.smallest.
    """
    cube, place = evidence.cube, place_of(evidence, here)
    least = evidence.run.contract.assessment.min_sequences
    if cube.missing:
        return _run(evidence, here, f"{len(cube.missing)} planned cases have no valid attempt: go on with the run", {})
    if baseline is None or said is None:
        return Next("see which files of the run are whole, and why the baseline has no figures", f"xcfg verify {place}")
    if evidence.sequences < least:
        why = f"{evidence.sequences} sequences give no interval: freeze {least} at least, and run again"
        return Next(why, NEW_TOKENS)
    if points.profiles:
        return _of_profiles(evidence, points, here)
    narrowing = [cause for cause in said.causes if cause.direction == "narrows"]
    failing = baseline.status == Status.MISMATCH.value
    if narrowing and enough is not None and (failing or is_excess(baseline)):
        return _after_cause(evidence, baseline, narrowing, enough, here)
    if unvaried:
        asked = [{"path": key, "values": [value]} for key, value in unvaried.items()]
        tries = ", ".join(f"{key} = {value}" for key, value in unvaried.items())
        why = f"vary {tries}: the sides differ there, and no case changes it"
        return _run(evidence, here, why, {"interventions": asked})
    if is_excess(baseline):
        return _without_cause(evidence, baseline, here)
    if not any(item.status == MEASURED for item in floors):
        why = "add controls: without one only equal bits exonerate, and no interval can"
        return _run(evidence, here, why, {"controls": CONTROLS})
    if said.lists["not_exercised"]:
        idle = ", ".join(said.lists["not_exercised"])
        return Next(f"freeze more or longer sequences, so that {idle} has something to do", NEW_TOKENS)
    if baseline.status == Status.PASS.value:
        target = shlex.quote(f"{cube.experiment_id}-baseline.json")
        why = "nothing has to be aligned: keep this run as the baseline that later ones are held against"
        return Next(why, f"xcfg gate {place} --write-baseline {target}{_pair(evidence)}")
    return Next("look at every case", f"xcfg cube {place}{_pair(evidence)}")


def _after_cause(
    evidence: Evidence, baseline: Row, narrowing: Sequence[Cause], enough: Minimization, here: Path
) -> Next:
    """Return the step where a cause is named: what the grid leaves open, and where it answers, what would refute it."""
    name, best = enough.objective, enough.sets[0] if enough.sets else None
    if best is not None and best.minimal:
        why = (
            f"{' + '.join(best.align)} is enough for {name!r} on these tokens: run the experiment on other frozen "
            "sequences, which refute it where it is not enough (prompts.jsonl: prompts of yours)"
        )
        return Next(why, _freeze(evidence))
    known = "no set that was run is enough" if best is None else f"less than {' + '.join(best.align)} may be enough"
    if evidence.cube.experiment.get("align") and not enough.complete:
        file = shlex.quote(f"{evidence.cube.experiment_id}-next.json")
        write = f"xcfg analyze {place_of(evidence, here)} --next {file}{_pair(evidence)}"
        search = f"xcfg minimize {file} --objective {shlex.quote(name)}{_options(evidence, here)}"
        return Next(f"{known} for {name!r}: search beyond the cases that were run", f"{write}; {search}", {})
    pairs = _untried_pairs(evidence, narrowing, enough)
    if pairs:
        why = f"{known} for {name!r}: run {', '.join(' + '.join(pair) for pair in pairs)} together"
        return _run(evidence, here, why, {"pairwise_paths": pairs})
    if best is not None:
        why = f"{known} for {name!r}, and that is open: freeze more sequences, which narrow every interval"
        return Next(f"{why} (prompts.jsonl: prompts of yours)", _freeze(evidence))
    if is_excess(baseline):
        return _without_cause(evidence, baseline, here)
    return Next(f"{known} for {name!r}: vary what the experiment leaves alone", "xcfg knobs list")


def _untried_pairs(evidence: Evidence, narrowing: Sequence[Cause], enough: Minimization) -> list[list[str]]:
    """Return the pairs of settings that are to be listed, since no case changes just these two.

    The open pairs of the first set that is enough; without one the pairs of what narrows the gap.
    """
    if evidence.cube.experiment.get("strategy") not in ("one_at_a_time", "pairwise"):
        return []
    ran = {frozenset(row.delta) for row in evidence.cube.rows}
    if enough.sets:
        wanted = [[label.partition("=")[0] for label in labels] for labels in enough.sets[0].open if len(labels) == 2]
    else:
        alone = dict.fromkeys(cause.knob for cause in narrowing if " + " not in cause.knob)
        wanted = [list(pair) for pair in itertools.combinations(alone, 2)]
    listed = {item["path"] for item in evidence.cube.experiment["interventions"] if not item.get("side")}
    return [pair for pair in wanted if frozenset(pair) not in ran and listed.issuperset(pair)]


def _freeze(evidence: Evidence) -> str:
    """Return the command that freezes other sequences, sampled as those of the run; NEW_TOKENS if nobody knows how."""
    manifest = evidence.run.rollout.manifest
    runtime, sampling = str(manifest.generator.get("runtime", "")), manifest.sampling
    if not runtime:
        return NEW_TOKENS
    words = ["--checkpoint", manifest.checkpoint.uri, "--prompts", "prompts.jsonl"]
    words += ["--output", f"{evidence.cube.experiment_id}-other", "--runtime", runtime]
    for path, value in manifest.generator.get("settings", {}).items():
        words += ["--set", f"{path}={value if isinstance(value, str) else json.dumps(value)}"]
    words += ["--max-new-tokens", str(sampling.max_new_tokens), "--seed", str(sampling.seed + 1)]
    for name, usual in (("temperature", 1.0), ("top_k", 0), ("top_p", 1.0), ("logprobs_mode", "raw_logprobs")):
        if getattr(sampling, name) != usual:
            words += [f"--{name.replace('_', '-')}", str(getattr(sampling, name))]
    for item in sampling.extra.get("stop_ids", ()):
        words += ["--stop-id", str(item)]
    return f"xcfg freeze {shlex.join(words)}"


def _of_profiles(evidence: Evidence, points: Points, here: Path) -> Next:
    if not why_no_pairs(points) and not points.pairs:
        return _run(evidence, here, "every class passes alone and production fails: run the pairs of classes (A4)", {})
    if points.production is None:
        return _run(evidence, here, "production (A5) was not run: run every point of the profiles", {})
    return Next("look at every point of the profiles", f"xcfg cube {place_of(evidence, here)}{_pair(evidence)}")


def _without_cause(evidence: Evidence, baseline: Row, here: Path) -> Next:
    """Return the step where the gap is too wide and nothing that was varied narrows it."""
    varied = {key for row in evidence.cube.cases for key in row.delta}
    asked = [item for item in SWAPS if item["path"] not in varied and not _has_already(baseline, item)]
    if asked:
        why = "put the reference operator and float32 in on one side at a time: which side leaves the reference?"
        return _run(evidence, here, why, {"interventions": asked})
    word = baseline.assessment.assessment if baseline.assessment is not None else Assessment.NO_REFERENCE.value
    why = f"{word}, and neither operators nor dtypes account for it: vary what the experiment leaves alone"
    return Next(why, "xcfg knobs list")


def _has_already(baseline: Row, item: Mapping[str, Any]) -> bool:
    cell = baseline.axes.get(str(item["path"]))
    return cell is not None and cell.requested in item["values"]


def _run(evidence: Evidence, here: Path, why: str, changes: Mapping[str, Any]) -> Next:
    """Return a step that runs the experiment again, with `changes`."""
    name = shlex.quote(f"{evidence.cube.experiment_id}-next.json")
    write = f"xcfg analyze {place_of(evidence, here)} --next {name}{_pair(evidence)}"
    return Next(why, f"{write}; xcfg run {name}{_options(evidence, here)}", changes)


def place_of(evidence: Evidence, here: Path) -> str:
    """Return the run's folder as a word of a command: relative to `here`, where it lies below."""
    return shlex.quote(_shown(evidence.run.folder, here))


def home_of(evidence: Evidence) -> Path:
    """Return the folder in which `runs/<experiment>` is this run: what is stored depends on no other place."""
    return Path(evidence.run.folder.parent.parent)


def _shown(path: Path, here: Path) -> str:
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _pair(evidence: Evidence) -> str:
    """Return the option that chooses the pair of runtimes, where several ran the experiment."""
    both = evidence.cube.runtimes
    return f" --runtimes {both['rollout']}/{both['training']}" if evidence.cube.others else ""


def _options(evidence: Evidence, here: Path) -> str:
    both = evidence.cube.runtimes
    words = [] if set(both.values()) == {"torch"} else [f"--{side} {name}" for side, name in sorted(both.items())]
    row = evidence.cube.baseline
    for side, arm in (("rollout", row.verdict_arm), ("training", "training")) if row is not None else ():
        ranks = max(1, len(row.arms[arm].processes)) if row is not None and arm in row.arms else 1
        if row is not None and row.devices.get(side, "").startswith("cuda"):
            words.append(f"--{side}-devices {','.join(f'cuda:{rank}' for rank in range(ranks))}")
    root = _shown(evidence.run.folder.parent, here)
    words += [] if root == "runs" else [f"--output-root {shlex.quote(root)}"]
    return "".join(f" {word}" for word in words)
