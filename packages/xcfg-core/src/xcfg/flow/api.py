"""The journeys as functions of paths, for programs; the command line and these share every line below them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xcfg.artifacts.stored import StoredAttempt
from xcfg.flow import compare as compare_journey
from xcfg.flow import freeze as freeze_journey
from xcfg.flow import freeze_dump as dump_journey
from xcfg.flow import plan as plan_journey
from xcfg.flow import probe as probe_journey
from xcfg.flow import run as run_journey
from xcfg.flow import stored_run
from xcfg.flow import verify as verify_journey
from xcfg.flow.documents import Requested
from xcfg.flow.inputs import Loaded, load_inputs
from xcfg.flow.options import RunOptions
from xcfg.flow.recheck import decode
from xcfg.identity.rollout import Rollout
from xcfg.plugin.manager import PluginManager
from xcfg.schema.experiment import Combination
from xcfg.schema.result import Comparison
from xcfg.schema.summary import PlanSummary, RunSummary, VerifySummary

AnyPath = str | PathLike[str]


def load_plugins(*, blocked: tuple[str, ...] = ()) -> PluginManager:
    """Return the plugins that are installed; pass it to several calls to load them once."""
    return PluginManager.load(blocked=blocked)


def load(file: AnyPath, *, plugins: PluginManager | None = None, combinations: Sequence[Combination] = ()) -> Loaded:
    """Return the experiment in `file`, loaded and planned; nothing is started. Raises XcfgError.

    combinations: plan these combinations of its align entries, as `probe` runs them.
    """
    return load_inputs(Path(file), plugins or load_plugins(), combinations=combinations)


def plan(file: AnyPath, *, plugins: PluginManager | None = None) -> PlanSummary:
    """Return the plan of the experiment in `file`. Raises XcfgError."""
    return plan_journey.plan(Path(file), plugins or load_plugins())


def run(file: AnyPath, *, plugins: PluginManager | None = None, **options: Any) -> RunSummary:
    """Run the experiment in `file`; keywords are the fields of RunOptions. Raises XcfgError."""
    if "output_root" in options:
        options["output_root"] = Path(options["output_root"])
    return run_journey.run(Path(file), plugins or load_plugins(), RunOptions(**options))


def probe(
    file: AnyPath, combinations: Sequence[Combination], *, plugins: PluginManager | None = None, **options: Any
) -> probe_journey.Probed:
    """Run the baseline and these combinations of align entries of the experiment in `file`, as `run` runs its cases.

    Keywords are the fields of RunOptions, without a selection. Raises XcfgError.
    """
    with probing(file, plugins=plugins, **options) as ask:
        return ask(combinations)


def probing(
    file: AnyPath, *, plugins: PluginManager | None = None, **options: Any
) -> AbstractContextManager[probe_journey.Probe]:
    """Give, as a context, a function of combinations that answers each batch as `probe` does, and keeps its engines.

    Engines live from batch to batch as far as `max_workers` and `memory_budget` allow, and end with the context. With
    `resume` off, what older runs have sealed does not count, and what this context has sealed does. Raises XcfgError.
    """
    if "output_root" in options:
        options["output_root"] = Path(options["output_root"])
    return probe_journey.probing(Path(file), plugins or load_plugins(), RunOptions(**options))


def freeze(
    checkpoint: str, prompts: AnyPath, output: AnyPath, *, plugins: PluginManager | None = None, **options: Any
) -> Rollout:
    """Sample and freeze a rollout; keywords are the fields of FreezeOptions. Raises XcfgError."""
    chosen = freeze_journey.FreezeOptions(checkpoint=checkpoint, prompts=Path(prompts), output=Path(output), **options)
    return freeze_journey.freeze(plugins or load_plugins(), chosen)


def freeze_dump(
    checkpoint: str, dump: AnyPath, output: AnyPath, *, plugins: PluginManager | None = None, **options: Any
) -> Rollout:
    """Freeze the tokens and scores of a dump; keywords are the fields of FreezeDumpOptions. Raises XcfgError."""
    if options.get("train") is not None:
        options["train"] = Path(options["train"])
    chosen = dump_journey.FreezeDumpOptions(checkpoint=checkpoint, dump=Path(dump), output=Path(output), **options)
    return dump_journey.freeze_dump(plugins or load_plugins(), chosen)


def compare(dump: AnyPath | compare_journey.Dump, train: AnyPath | None = None, **options: Any) -> Comparison:
    """Return the comparison of a dump that holds both log probabilities, or of a rollout and a training file.

    dump: a file, or what `open_dump` returned. options: those of `open_dump`. Raises XcfgError.
    """
    opened = dump if isinstance(dump, compare_journey.Dump) else open_dump(dump, train, **options)
    return compare_journey.summarise(opened)[1]


def open_dump(
    dump: AnyPath,
    train: AnyPath | None = None,
    *,
    plugins: PluginManager | None = None,
    reader: str | None = None,
    train_reader: str | None = None,
    redacted: bool = False,
) -> compare_journey.Dump:
    """Return a dump as one table over all its tokens, and which reader took it and why.

    train: the file of the other side, joined by sample_id and position. reader, train_reader: names of dump
    readers, for files that none or several recognise. redacted: ids become salted hashes. Raises XcfgError.
    """
    return compare_journey.open_dump(
        Path(dump),
        plugins or load_plugins(),
        reader=reader,
        other=None if train is None else Path(train),
        other_reader=train_reader,
        redacted=redacted,
    )


def open_run(
    path: AnyPath, *, runtimes: str = "", experiment: str = "", cases: Collection[str] = ()
) -> stored_run.StoredRun:
    """Return a finished run as it was sealed: planned cases with their newest valid attempts, and their scores.

    path: `runs/<experiment>`. runtimes: `ROLLOUT/TRAINING` where several pairs ran it; without, the pair that ran the
    baseline last. experiment: the digest of a revision; without, the newest. cases: ids; a revision that plans exactly
    these goes before newer ones. Raises UsageError, NothingSelectedError, UnknownNameError, ArtifactError.
    """
    return stored_run.open_run(Path(path), runtimes=runtimes, experiment=experiment, cases=cases)


def verify(path: AnyPath, *, seals_only: bool = False) -> VerifySummary:
    """Check the evidence under `path` offline. Raises UsageError or NothingSelectedError when there is none."""
    return verify_journey.verify(Path(path), seals_only=seals_only)


@dataclass(frozen=True)
class StoredCase:
    """A sealed attempt that holds numbers: what was requested, what was found, and where it lies."""

    attempt: StoredAttempt
    requested: Requested
    comparison: Comparison

    @property
    def path(self) -> Path:
        """The folder of the attempt."""
        return self.attempt.path

    @property
    def label(self) -> str:
        """The label of the case."""
        return self.requested.label

    def tokens(self) -> dict[str, NDArray[np.generic]]:
        """Return token_diffs.pt: `<edge>__first`, `__second`, `__mask`, `__difference` …, each [T]."""
        return self.attempt.tensors("token_diffs.pt")[0]


def iter_cases(experiment: AnyPath) -> Iterator[StoredCase]:
    """Yield every validly sealed attempt with numbers of one experiment folder, by case, then attempt."""
    places = verify_journey.Places()
    for check in verify(experiment, seals_only=True).attempts:
        folder = Path(check.path)
        if not check.ok or not (folder / "comparison.json").exists():
            continue
        attempt = places.attempt(folder)
        if attempt is not None and "token_diffs.pt" in attempt.seal.files:
            requested = decode(attempt, "requested.json", Requested)
            yield StoredCase(attempt, requested, decode(attempt, "comparison.json", Comparison))
