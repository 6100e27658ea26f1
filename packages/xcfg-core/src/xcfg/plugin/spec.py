"""All hook specifications, in the order in which a run reaches them.

Registration hooks are called once, plugin by plugin, when the CLI or an API user loads the plugins; each returns
a tuple of frozen records, and two plugins that offer the same id are a conflict that names both. Observation
hooks are called while cases run; what they return is ignored and what they raise is logged, never fatal.
Each may be implemented by any plugin module found through the entry-point group `xcfg`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xcfg.plugin.markers import hookspec

if TYPE_CHECKING:
    from xcfg.plugin.provide import (
        CommandProvider,
        DebugMatrix,
        DumpReaderDescriptor,
        Profile,
        RendererDescriptor,
        SignatureDescriptor,
    )
    from xcfg.schema.knobs import KnobDefinition
    from xcfg.schema.operators import OperatorBackendDescriptor
    from xcfg.schema.plan import ExperimentCase
    from xcfg.schema.runtime import CheckpointDescriptor, RuntimeDescriptor
    from xcfg.schema.summary import CaseSummary, RunSummary

# --- registration -----------------------------------------------------------------------------------------


@hookspec
def xcfg_knobs() -> tuple[KnobDefinition, ...]:  # type: ignore[empty-body]
    """Return the knobs that this package makes controllable. Id: `name`."""


@hookspec
def xcfg_operator_backends() -> tuple[OperatorBackendDescriptor, ...]:  # type: ignore[empty-body]
    """Return the operator backends of this package. Id: (`operation`, `backend_id`); aliases count as ids."""


@hookspec
def xcfg_runtimes() -> tuple[RuntimeDescriptor, ...]:  # type: ignore[empty-body]
    """Return the runtimes of this package. Id: `name`."""


@hookspec
def xcfg_checkpoints() -> tuple[CheckpointDescriptor, ...]:  # type: ignore[empty-body]
    """Return checkpoints that this package brings, named `builtin:NAME`. Id: `name`."""


@hookspec
def xcfg_debug_matrices() -> tuple[DebugMatrix, ...]:  # type: ignore[empty-body]
    """Return the debug matrices of this package. Id: `module`."""


@hookspec
def xcfg_renderers() -> tuple[RendererDescriptor, ...]:  # type: ignore[empty-body]
    """Return the renderers of this package. Id: `name`."""


@hookspec
def xcfg_dump_readers() -> tuple[DumpReaderDescriptor, ...]:  # type: ignore[empty-body]
    """Return the dump readers of this package. Id: `name`."""


@hookspec
def xcfg_signatures() -> tuple[SignatureDescriptor, ...]:  # type: ignore[empty-body]
    """Return the fault signatures of this package, which `xcfg analyze` tries. Id: `name`."""


@hookspec
def xcfg_profiles() -> tuple[Profile, ...]:  # type: ignore[empty-body]
    """Return named presets over the planner. Id: `name`."""


@hookspec
def xcfg_commands() -> tuple[CommandProvider, ...]:  # type: ignore[empty-body]
    """Return the commands that this package adds to `xcfg`. Id: `name`; core's own names are taken."""


# --- observation ------------------------------------------------------------------------------------------


@hookspec
def xcfg_before_case(case: ExperimentCase) -> None:
    """Observe that the scores of `case` have all ended and it is about to be judged. Called in the supervisor.

    Cases come in the order in which their last score ends, which need not be that of the plan. A case that needs no
    score in this run is left out: one that is unsupported, and one that an earlier run sealed.
    """


@hookspec
def xcfg_after_case(case: ExperimentCase, summary: CaseSummary) -> None:
    """Observe how `case` ended. Called in the supervisor, once for every case that ends in this run.

    Failed, unsupported and resumed cases are among them, also those for which `xcfg_before_case` was not called.
    """


@hookspec
def xcfg_after_run(summary: RunSummary, folder: str, experiment: str) -> None:
    """Observe that a run has ended and everything of it is sealed. Called in the supervisor, not after Ctrl-C.

    folder: `runs/<experiment>`, for `xcfg.open_run`. experiment: the digest of the revision that ran.
    """
