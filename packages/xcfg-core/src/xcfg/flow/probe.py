"""The journey of a search: chosen combinations of an experiment's align entries, run as `xcfg run` runs its cases."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from xcfg.flow.engines import Engines, engines
from xcfg.flow.inputs import load_inputs
from xcfg.flow.options import RunOptions
from xcfg.flow.run import describe, run_loaded
from xcfg.plugin.manager import PluginManager
from xcfg.runtime.environment import forget_environment
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


@dataclass(frozen=True)
class Probe:
    """Answers one batch of combinations after another with the same engines, as far as the limits let them live."""

    file: Path
    manager: PluginManager
    options: RunOptions
    engines: Engines

    def __call__(self, combinations: Sequence[Combination]) -> Probed:
        """Run the baseline and `combinations`; what is sealed already is not scored again.

        Where `options.resume` is off, only what this probe has sealed itself counts. Raises UsageError and
        IdentityError before anything is started.
        """
        loaded = load_inputs(self.file, self.manager, combinations=combinations)
        summary = run_loaded(loaded, self.manager, self.options, self.engines)
        folder = self.options.output_root / loaded.experiment.experiment_id
        return Probed(summary, folder, digest(describe(loaded)), loaded.plan.combinations)


@contextlib.contextmanager
def probing(file: Path, manager: PluginManager, options: RunOptions) -> Iterator[Probe]:
    """Give a Probe of the experiment in `file`; its workers end with the context.

    The scoring environment is read once: an engine that lives on is not what a source edited meanwhile would make.
    """
    forget_environment()
    with engines(options) as kept:
        yield Probe(file, manager, options, kept)
