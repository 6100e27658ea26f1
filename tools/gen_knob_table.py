"""Turn finished runs into the rows of the knob tables that adapter packages ship.

    xcfg run examples/sweep/vllm.json --rollout vllm --training torch
    xcfg run examples/sweep/megatron.json --rollout torch --training megatron
    xcfg run examples/sweep/torch.json
    python tools/gen_knob_table.py runs/sweep-vllm runs/sweep-megatron runs/sweep-torch

Each argument is the folder of one experiment. Every sealed case that differs from the baseline in one knob becomes a
row of the table of each runtime on whose side that knob acts; a row replaces the one with the same key (knob, side,
value, baseline, platform, runner, dtype), and rows of other platforms stay. Figures are computed here from the stored
scores: |case - baseline| of the arms of that side, in nats.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from xcfg.artifacts.store import Store
from xcfg.artifacts.stored import StoredAttempt
from xcfg.flow.documents import Actual, Failure, Requested
from xcfg.plugin.arguments import GENERATED
from xcfg.plugin.manager import PluginManager
from xcfg.schema import codec
from xcfg.schema.arguments import ROWS, ArgumentRow, Effect, Generated, Outcome
from xcfg.schema.names import Target
from xcfg.schema.runtime import KnobApplication, RuntimeDescriptor

ARMS = {"rollout": ("rollout_prefill", "rollout_decode"), "training": ("training",)}
OUTCOMES = {"fallback": Outcome.IGNORED, "unobservable": Outcome.UNOBSERVABLE, "unsupported": Outcome.REFUSED}
REFUSALS = ("LAUNCH_FAILED", "UNSUPPORTED")
"""How a case ends whose engine did not build; an arm beside it means that the engine was asked, and said so."""
UNOBSERVED = "unobserved"
RUNNER = re.compile(r"vllm\.v1\.worker\.gpu\.")
"""Where vLLM's second runner lives; its first is every other class."""


class Run:
    """The newest valid attempt of every case of one experiment folder."""

    def __init__(self, folder: Path) -> None:
        """Open `folder` (runs/<experiment>); nothing is read yet."""
        self.name = folder.name
        self.store = Store(folder.parent, folder.name)
        experiment = codec.read_strict(folder / "experiment.json")["experiment"]
        self.model = str(experiment.get("scenario", {}).get("model", ""))

    def cases(self) -> Iterator[tuple[StoredAttempt, Requested]]:
        """Yield each case that is no control, with what it asked for."""
        for case in self.store.case_ids():
            for attempt in self.store.attempts(case).valid[:1]:
                requested = _document(attempt, "requested.json", Requested)
                if requested.role == "case":
                    yield attempt, requested


def _document(attempt: StoredAttempt, name: str, kind: type[Any]) -> Any:
    return codec.decode_json(attempt.read(name), kind, source=str(attempt.path / name))


def rows(folder: Path, manager: PluginManager) -> Iterator[tuple[str, ArgumentRow]]:
    """Yield (runtime, row) for every case of the experiment in `folder` that varies one knob."""
    run = Run(folder)
    cases = list(run.cases())
    baselines = [item for item in cases if not item[1].delta and "actual.json" in item[0].seal.files]
    if not baselines:
        raise SystemExit(f"{folder}: there is no finished baseline to compare with")
    baseline = baselines[0]
    for attempt, requested in cases:
        if len(requested.delta) != 1:
            continue
        (place,) = requested.delta
        path, _, only = place.partition("@")
        if path not in manager.knobs():
            continue
        targets = manager.knob(path).record.targets
        for side in (only,) if only else ("rollout", "training") if targets is Target.BOTH else (targets.value,):
            if side in ARMS:
                runtime = requested.runtimes[side]
                yield runtime, _row(run, manager, baseline, attempt, requested, path, side)


def _row(
    run: Run,
    manager: PluginManager,
    baseline: tuple[StoredAttempt, Requested],
    attempt: StoredAttempt,
    requested: Requested,
    path: str,
    side: str,
) -> ArgumentRow:
    runtime = manager.runtime(requested.runtimes[side]).record
    ground = _document(baseline[0], "actual.json", Actual)
    arm = next(arm for arm in reversed(ARMS[side]) if arm in ground.provenance)
    facts = ground.provenance[arm]
    environment = facts["environment"]
    effects = tuple(_effects(baseline[0], attempt, side))
    found, failure = _applications(attempt, path, side)
    coupled, unseen = _changes(attempt, side, path)
    exercised = _exercised((*found, *_of(path, side, ground)))
    outcome, note = _outcome(runtime, _value(requested, path, side), path, side, effects, found, exercised, failure)
    return ArgumentRow(
        side=side,
        knob=path,
        value=_value(requested, path, side),
        baseline=_value(baseline[1], path, side),
        platform="cuda" if any(name.startswith("accelerator:") for name in environment) else "cpu",
        outcome=outcome,
        runner=_runner(facts),
        dtype=ground.compute_dtypes.get(arm, ""),
        device=environment.get("accelerator:model_and_driver", environment.get("processor", "")),
        model=run.model,
        effects=effects,
        exercised=exercised if found else "",
        coupled=coupled,
        unseen=unseen,
        versions=_versions(runtime, environment),
        status=attempt.seal.status,
        note=note,
        experiment=run.name,
        case=attempt.seal.case_id,
        attempt=attempt.seal.attempt_id,
        label=requested.label,
    )


def _value(requested: Requested, path: str, side: str) -> Any:
    return requested.knobs.get(f"{path}@{side}", requested.knobs.get(path))


def _effects(baseline: StoredAttempt, attempt: StoredAttempt, side: str) -> Iterator[Effect]:
    for arm in ARMS[side]:
        first, second = (_score(item, arm) for item in (attempt, baseline))
        if first is None or second is None:
            continue
        active = second["active"].astype(bool)
        if not np.array_equal(first["active"].astype(bool), active):
            raise SystemExit(f"{attempt.path}: {arm} has another active mask than the baseline")
        one, other = (item["selected_logprob"].astype(np.float64)[active] for item in (first, second))
        difference = np.abs(one - other)
        if not difference.size or not np.isfinite(difference).all():
            continue
        yield Effect(
            arm=arm,
            tokens=int(difference.size),
            differing=int(np.count_nonzero(one != other)),
            mean_abs=float(difference.mean()),
            max_abs=float(difference.max()),
            case=attempt.seal.scores[arm],
            baseline=baseline.seal.scores[arm],
        )


def _score(attempt: StoredAttempt, arm: str) -> dict[str, Any] | None:
    names = [f"score_{arm}.pt", *(["score_rollout.pt"] if arm == "rollout_decode" else [])]
    held = [name for name in names if name in attempt.seal.files]
    return attempt.tensors(held[0])[0] if held and arm in attempt.seal.scores else None


def _applications(attempt: StoredAttempt, path: str, side: str) -> tuple[list[KnobApplication], Failure | None]:
    """Return what the ranks said about the knob, and why there is no number where there is none."""
    failure = _document(attempt, "failure.json", Failure) if "failure.json" in attempt.seal.files else None
    known: list[KnobApplication] = list(failure.applications) if failure else []
    found = [item for item in known if item.path == path and item.side == side]
    if "actual.json" in attempt.seal.files:
        found += _of(path, side, _document(attempt, "actual.json", Actual))
    return found, failure


def _of(path: str, side: str, actual: Actual) -> list[KnobApplication]:
    held = (item for arm in ARMS[side] for item in actual.applications.get(arm, ()))
    return [item for item in held if item.path == path and item.side == side]


def _outcome(
    runtime: RuntimeDescriptor,
    value: Any,
    path: str,
    side: str,
    effects: tuple[Effect, ...],
    found: list[KnobApplication],
    exercised: str,
    failure: Failure | None,
) -> tuple[Outcome, str]:
    """Return the outcome, and in words why.

    The application of the knob itself decides, never the status of the case: that may come from another knob.
    exercised: by the case or by the baseline; one of the two values must have been at work for a zero to mean much.
    """
    if failure is not None and not found:
        refused = failure.details.get("unsupported", {}).get(path, "")
        if refused and not _offered(runtime, path, side, value):
            return Outcome.NOT_RUN, f"the adapter does not offer it: {refused}"
        at_build = failure.status in REFUSALS and failure.arm in ARMS[side]
        return (Outcome.REFUSED if refused or at_build else Outcome.NOT_RUN), refused or _first(failure.reason)
    worst = [item for item in found if item.status.value != "applied"]
    if worst:
        first = worst[0]
        said = first.reason or f"asked for {first.requested}, running {first.actual}"
        return OUTCOMES.get(first.status.value, Outcome.NOT_RUN), said
    if not effects or not found:
        return Outcome.NOT_RUN, _first(failure.reason) if failure else "no score on both sides of the comparison"
    if any(effect.differing for effect in effects):
        return Outcome.APPLIED, ""
    if exercised == "yes":
        return Outcome.NO_EFFECT, "applied and exercised; every token has equal bits"
    return Outcome.NOT_RUN, "applied, with equal bits, by a case that could not have shown an effect"


def _offered(runtime: RuntimeDescriptor, path: str, side: str, value: Any) -> bool:
    for record in runtime.capabilities:
        if record.path == path and record.side == side:
            return not record.values or any(_same(value, allowed) for allowed in record.values)
    return False


def _same(first: Any, second: Any) -> bool:
    return type(first) is type(second) and first == second


def _first(reason: str) -> str:
    return reason.splitlines()[0] if reason else ""


def _exercised(found: Iterable[KnobApplication]) -> str:
    said = {item.exercised.value for item in found}
    return next((word for word in ("yes", "unknown", "no") if word in said), "")


def _changes(attempt: StoredAttempt, side: str, path: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the other paths that changed unasked, and those that the case could not read back."""
    if "comparison.json" not in attempt.seal.files:
        return (), ()
    found = attempt.json("comparison.json").get("coupled_changes", [])
    mine = [item for item in found if item.get("side") == side and item.get("path") != path]
    unseen = {str(item["path"]) for item in mine if item.get("case") == UNOBSERVED}
    return tuple(sorted({str(item["path"]) for item in mine} - unseen)), tuple(sorted(unseen))


def _runner(facts: dict[str, Any]) -> str:
    names = [str(item.get("runner", "")) for item in facts.get("mechanism", ()) if isinstance(item, dict)]
    if not any(names):
        return ""
    return "v2" if all(RUNNER.search(name) for name in names) else "v1"


def _versions(runtime: RuntimeDescriptor, environment: dict[str, str]) -> dict[str, str]:
    wanted = {
        re.split(r"[^A-Za-z0-9_.-]", option.strip())[0] for line in runtime.requires for option in line.split("|")
    }
    return {name: environment[f"version:{name}"] for name in sorted(wanted) if f"version:{name}" in environment}


def key(row: ArgumentRow) -> tuple[str, ...]:
    """Return what makes a row replace another."""
    parts = (row.side, row.knob, row.value, row.baseline, row.platform, row.runner, row.dtype)
    return tuple(codec.canonical_json(part).decode() for part in parts)


def merged(old: Iterable[ArgumentRow], new: Iterable[ArgumentRow]) -> tuple[ArgumentRow, ...]:
    """Return both in a stable order; a new row takes the place of an old one with its key."""
    return tuple(row for _, row in sorted({key(row): row for row in (*old, *new)}.items()))


def table_file(runtime: RuntimeDescriptor) -> Path:
    """Return where the package of `runtime` keeps its rows."""
    package = runtime.arguments.partition(":")[0].partition(".")[0]
    spec = find_spec(package) if package else None
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"the runtime {runtime.name!r} declares no table of arguments")
    return Path(next(iter(spec.submodule_search_locations))) / GENERATED


def main(words: list[str]) -> int:
    """Read the runs, write the tables, print one line per table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folders", nargs="+", type=Path, help="runs/<experiment>")
    parser.add_argument("--fresh", action="store_true", help="forget the rows that are there")
    given = parser.parse_args(words)
    manager = PluginManager.load()
    found: dict[str, list[ArgumentRow]] = {}
    for folder in given.folders:
        for runtime, row in rows(folder, manager):
            found.setdefault(runtime, []).append(row)
    for runtime, new in sorted(found.items()):
        file = table_file(manager.runtime(runtime).record)
        old: tuple[ArgumentRow, ...] = ()
        if file.exists() and not given.fresh:
            old = codec.decode_json(file.read_bytes(), Generated, source=str(file)).rows
        document = Generated(schema_version=ROWS, rows=merged(old, new))
        file.write_bytes(codec.pretty_json(document))
        print(f"{runtime}: {len(new)} rows from these runs, {len(document.rows)} in {file.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
