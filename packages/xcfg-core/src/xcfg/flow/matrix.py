"""The journey of `xcfg matrix`: choose modules and rows, let their packages run them, give one code."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from xcfg.artifacts.atomic import Writer, disk_errors
from xcfg.errors import ConfigError, NothingSelectedError, PluginError, UnknownNameError, did_you_mean
from xcfg.flow.options import check_root
from xcfg.flow.scratch import locked_folder
from xcfg.plugin._resolve import resolve
from xcfg.plugin.manager import PluginManager, Provided
from xcfg.plugin.protocols import MatrixRequest
from xcfg.plugin.provide import DebugMatrix
from xcfg.schema import codec
from xcfg.schema.matrix import (
    MANIFEST,
    MATRIX,
    ManifestModule,
    MatrixManifest,
    MatrixReport,
    MatrixRow,
    MatrixRowDefinition,
)
from xcfg.schema.names import Status, exit_code

EVERYTHING = "all"
TIERS = ("default", "secondary", "all")
INCOMPLETE = 3
CAPTURED = ".matrix-"
"""How the folder in the output root begins that holds captured logits while a matrix runs."""


def manifest(manager: PluginManager, module: str = EVERYTHING) -> MatrixManifest:
    """Return what is offered as `module`, or everything; planned matrices are in it and say what they lack.

    Raises UnknownNameError.
    """
    found = _offered(manager)
    names = list(found) if module == EVERYTHING else [_known(manager, found, module)]
    return MatrixManifest(schema_version=MANIFEST, modules=tuple(_module(found[name]) for name in names))


def read_manifest(file: Path, manager: PluginManager) -> MatrixManifest:
    """Return an exported manifest that says what is installed; the rows that it lacks are left out.

    Raises ConfigError for another document, and for a row that is not installed as the file has it.
    """
    read = codec.convert(codec.read_strict(file), MatrixManifest, source=str(file))
    if read.schema_version != MANIFEST:
        raise ConfigError(
            f"schema_version is {read.schema_version!r}, not {MANIFEST!r}", source=str(file), path="$.schema_version"
        )
    installed = {item.module: item for item in manifest(manager).modules}
    for index, item in enumerate(read.modules):
        at = f"$.modules[{index}]"
        if item.module not in installed:
            known = ", ".join(installed)
            raise ConfigError(
                f"no active plugin has the matrix {item.module!r}", source=str(file), path=at, hint=f"Known: {known}."
            )
        here = {(row.row, row.probe): row for row in installed[item.module].rows}
        for row_index, row in enumerate(item.rows):
            if here.get((row.row, row.probe)) != row:
                raise ConfigError(
                    f"the row {row.row!r} with the probe {row.probe!r} is not what {item.module!r} offers here",
                    source=str(file),
                    path=f"{at}.rows[{row_index}]",
                    hint="Export the manifest again; it only names rows, and sets none.",
                )
    return read


def run(
    manager: PluginManager,
    module: str,
    file: Path,
    *,
    tier: str = "default",
    rows: MatrixManifest | None = None,
    backend: str = "",
    options: Mapping[str, Any] | None = None,
) -> MatrixReport:
    """Run the matrix `module`, or all that are there, on the replay of the experiment in `file`.

    tier: which probes. rows: run only what this manifest names. options: keywords for `xcfg.run`. Raises XcfgError; of
    `all`, a matrix that is only planned is listed in `missing`, and the exit code is not that of a pass.
    """
    found = _offered(manager)
    names = list(found) if module == EVERYTHING else [_known(manager, found, module)]
    if module != EVERYTHING and found[module].record.status != "available":
        manager.debug_matrix(module)  # raises, and says what is missing
    missing = {name: found[name].record.missing for name in names if found[name].record.status != "available"}
    usable = [name for name in names if name not in missing]
    given = dict(options or {})
    root = Path(given.get("output_root", "runs"))
    check_root(root.absolute())
    done: list[MatrixRow] = []
    for name in usable:
        chosen = _selected(found[name].record, tier, rows)
        if not chosen:
            continue
        runner = resolve(found[name].record.factory, owner=found[name].plugin)
        scratch = functools.partial(_scratch, root)
        done += runner(
            MatrixRequest(file=file, rows=chosen, plugins=manager, backend=backend, options=given, scratch=scratch)
        )
    if not done:
        raise NothingSelectedError(
            f"no row of {module!r} was selected" if usable else f"no matrix of {module!r} can run",
            hint="; ".join(f"{name}: {why}" for name, why in missing.items()) or "`--manifest` lists the rows.",
        )
    devices = {*given.get("training_devices", ("cpu",)), *given.get("rollout_devices", ("cpu",))}
    return MatrixReport(
        schema_version=MATRIX,
        device=",".join(sorted(devices)),
        rows=tuple(done),
        exit_code=code_of([row.status for row in done], complete=not missing),
        experiment_id=str(codec.read_strict(file).get("experiment_id", "")),
        runtimes={side: str(given.get(side, "torch")) for side in ("rollout", "training")},
        backend=backend or "reference",
        missing=missing,
        notes={name: note for name in usable if (note := found[name].record.note)},
    )


@contextlib.contextmanager
def _scratch(root: Path) -> Iterator[Path]:
    """Give a folder in `root` that is removed at the end; remove what matrices left whose process was killed.

    Raises ExecutionError and ArtifactError where the root cannot be written, as a run does.
    """
    Writer().ensure_folder(root)
    with contextlib.ExitStack() as stack:
        with disk_errors(root):
            folder = locked_folder(stack, root, CAPTURED)
        yield folder


def code_of(statuses: Sequence[str], *, complete: bool = True) -> int:
    """Return the code of the contract, section 6; a matrix that is not there keeps `all` from passing."""
    code = exit_code([Status(item) for item in statuses])
    return max(code, INCOMPLETE) if not complete else code


def _offered(manager: PluginManager) -> dict[str, Provided[DebugMatrix]]:
    planned = [item for noun, item in manager.planned() if noun == "debug matrix"]
    return {item.record.module: item for item in sorted((*manager.debug_matrices(), *planned), key=_name)}


def _name(item: Provided[DebugMatrix]) -> str:
    return item.record.module


def _known(manager: PluginManager, found: Mapping[str, Any], module: str) -> str:
    if module in found:
        return module
    if not found:
        raise PluginError("no active plugin has a debug matrix", hint=manager.hint("debug matrix", module))
    raise UnknownNameError(
        f"there is no debug matrix {module!r}",
        hint=f"{did_you_mean(module, (*found, EVERYTHING))} {manager.hint('debug matrix', module)}".strip(),
    )


def _module(item: Provided[DebugMatrix]) -> ManifestModule:
    record = item.record
    return ManifestModule(
        module=record.module,
        summary=record.summary,
        status=record.status,
        distribution=item.distribution,
        version=item.version,
        missing=record.missing,
        rows=record.table,
    )


def _selected(record: DebugMatrix, tier: str, rows: MatrixManifest | None) -> tuple[MatrixRowDefinition, ...]:
    if rows is not None:
        wanted = {(row.row, row.probe) for item in rows.modules if item.module == record.module for row in item.rows}
        return tuple(row for row in record.table if (row.row, row.probe) in wanted)
    allowed = TIERS[: TIERS.index(tier) + 1]
    return tuple(row for row in record.table if row.tier in allowed)
