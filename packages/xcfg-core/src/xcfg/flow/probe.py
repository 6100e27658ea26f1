"""The journey of a search: chosen combinations of an experiment's align entries, run as `xcfg run` runs its cases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from xcfg.flow.inputs import load_inputs
from xcfg.flow.options import RunOptions
from xcfg.flow.run import describe, run_loaded
from xcfg.plugin.manager import PluginManager
from xcfg.schema.codec import digest
from xcfg.schema.experiment import Combination
from xcfg.schema.summary import RunSummary


@dataclass(frozen=True)
class Probed:
    """What ran. folder: `runs/<experiment>`. experiment: the digest of the revision that planned it.

    cases: the case id of each combination: the production point's where it changes nothing, empty where filtered.
    """

    summary: RunSummary
    folder: Path
    experiment: str
    cases: tuple[str, ...]


def probe(file: Path, manager: PluginManager, options: RunOptions, combinations: Sequence[Combination]) -> Probed:
    """Run the baseline of the experiment in `file` and `combinations`; what is sealed already is not scored again.

    Raises UsageError and IdentityError before anything is started.
    """
    loaded = load_inputs(file, manager, combinations=combinations)
    summary = run_loaded(loaded, manager, options)
    folder = options.output_root / loaded.experiment.experiment_id
    return Probed(summary, folder, digest(describe(loaded)), loaded.plan.combinations)
