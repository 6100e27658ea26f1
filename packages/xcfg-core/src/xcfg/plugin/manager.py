"""The plugin manager: load what is installed, keep what is usable, answer by name.

Nothing is loaded on import and nothing is global: `PluginManager.load()` returns a value, and the command
line makes one per call. Each step of a load may put a plugin out of use, with a status and a reason:

1. blocked: named in `blocked` or in XCFG_DISABLE_PLUGINS (`*`: all but core); never imported.
2. conflict: two distributions chose the same entry-point name; neither is imported.
3. incompatible: its requirement on core excludes the installed core; not imported. Or another XCFG_API.
4. broken: it raises, or returns what the hook does not ask for.
5. conflict: it offers an id that another plugin offers. Core keeps its own ids; among others nobody wins.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pluggy

from xcfg.errors import MissingDependencyError, PluginError, UnknownNameError, UsageError, did_you_mean
from xcfg.plugin import _offers, known, spec
from xcfg.plugin._compat import CORE, canonical, core_version, excludes_core, unmet
from xcfg.plugin._discovery import Found, discover, implementations, load
from xcfg.plugin._offers import KINDS, Kind, is_planned
from xcfg.plugin._resolve import describe, quiet_stdout
from xcfg.plugin._settle import BUILTIN, DISABLE, block, cure, settle_ids, settle_names
from xcfg.plugin.markers import PROJECT
from xcfg.schema.knobs import KnobDefinition
from xcfg.schema.operators import OperatorBackendDescriptor
from xcfg.schema.runtime import CheckpointDescriptor, RuntimeDescriptor
from xcfg.schema.summary import PluginEntry

if TYPE_CHECKING:
    from xcfg.plugin.provide import (
        CommandProvider,
        DebugMatrix,
        DumpReaderDescriptor,
        Profile,
        RendererDescriptor,
        SignatureDescriptor,
    )
    from xcfg.schema.plan import ExperimentCase
    from xcfg.schema.summary import CaseSummary, RunSummary

BUILTIN_MODULE = "xcfg.plugin.builtin.plugin"
OBSERVERS = ("xcfg_before_case", "xcfg_after_case", "xcfg_after_run")
LISTED = (_offers.KNOBS, _offers.OPERATORS, _offers.RUNTIMES, _offers.RENDERERS)
"""What `provides` of `xcfg plugins list` names (contract, section 8)."""

T = TypeVar("T")
log = logging.getLogger("xcfg.plugin")


@dataclass(frozen=True)
class Provided(Generic[T]):
    """A record and where it comes from: the plugin's entry-point name, its distribution and version."""

    record: T
    plugin: str
    distribution: str
    version: str


class PluginManager:
    """What the installed plugins offer. Made by `load`; reading it changes nothing."""

    def __init__(self, found: Sequence[Found], hooks: pluggy.PluginManager) -> None:
        """Keep plugins that were loaded, core first, and the pluggy manager that holds their hooks."""
        self._found = tuple(found)
        self._hooks = hooks

    @classmethod
    def load(
        cls,
        *,
        blocked: Iterable[str] = (),
        path: Sequence[str] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> PluginManager:
        """Load core and every installed plugin that is not blocked; a faulty one is kept with its reason.

        blocked: entry-point or distribution names, `*` for all but core. path: folders searched for
        distributions instead of sys.path. environ: instead of os.environ.
        Raises UsageError when core itself is to be blocked.
        """
        variable = (os.environ if environ is None else environ).get(DISABLE, "")
        names = [name.strip() for name in (*blocked, *variable.split(",")) if name.strip()]
        core = Found(BUILTIN, CORE, core_version(), BUILTIN_MODULE, plugin=BUILTIN_MODULE)
        third = discover(path)
        block(third, names)
        settle_names(third)
        hooks = pluggy.PluginManager(PROJECT)
        hooks.add_hookspecs(spec)
        for item in third:
            if item.active and (reason := excludes_core(item.requires, core.version)):
                item.reject("incompatible", reason)
        for item in (core, *third):
            if item.active:
                load(item, hooks)
        settle_ids(core, third, hooks)
        return cls((core, *third), hooks)

    # --- records ------------------------------------------------------------------------------------------

    def knobs(self) -> dict[str, KnobDefinition]:
        """Return every knob by path: the allowlist of an experiment."""
        offered: tuple[Provided[KnobDefinition], ...] = self._usable(_offers.KNOBS)
        return {item.record.name: item.record for item in sorted(offered, key=lambda item: item.record.name)}

    def knob_providers(self) -> dict[str, str]:
        """Return which package brings the knobs that no active plugin provides: path prefix -> distribution.

        A prefix that ends in a dot stands for everything below it.
        """
        return dict(known.KNOB_PREFIXES)

    def operator_backends(self) -> tuple[Provided[OperatorBackendDescriptor], ...]:
        """Return every operator backend."""
        return self._usable(_offers.OPERATORS)

    def runtimes(self) -> tuple[Provided[RuntimeDescriptor], ...]:
        """Return every runtime; whether its engine is installed is what `runtime(name)` checks."""
        return self._usable(_offers.RUNTIMES)

    def checkpoints(self) -> tuple[Provided[CheckpointDescriptor], ...]:
        """Return every packaged checkpoint."""
        return self._usable(_offers.CHECKPOINTS)

    def renderers(self) -> tuple[Provided[RendererDescriptor], ...]:
        """Return every renderer."""
        return self._usable(_offers.RENDERERS)

    def dump_readers(self) -> tuple[Provided[DumpReaderDescriptor], ...]:
        """Return every reader of foreign dumps."""
        return self._usable(_offers.READERS)

    def signatures(self) -> tuple[Provided[SignatureDescriptor], ...]:
        """Return every fault signature."""
        return self._usable(_offers.SIGNATURES)

    def debug_matrices(self) -> tuple[Provided[DebugMatrix], ...]:
        """Return every debug matrix."""
        return self._usable(_offers.MATRICES)

    def profiles(self) -> dict[str, Profile]:
        """Return every profile by name."""
        return {item.record.name: item.record for item in self._usable(_offers.PROFILES)}

    def commands(self, *, planned: bool = False) -> tuple[Provided[CommandProvider], ...]:
        """Return the commands of all plugins, core's first; `planned`: also those that are only announced."""
        offered: tuple[Provided[CommandProvider], ...] = self._offered(_offers.COMMANDS)
        return tuple(item for item in offered if planned or not is_planned(item.record))

    def planned(self) -> tuple[tuple[str, Provided[Any]], ...]:
        """Return what active plugins only announce, each with the noun of its kind (`runtime`, …)."""
        return tuple((kind.noun, item) for kind in KINDS for item in self._offered(kind) if is_planned(item.record))

    # --- by name ------------------------------------------------------------------------------------------

    def knob(self, path: str) -> Provided[KnobDefinition]:
        """Return one knob with its origin. Raises UnknownNameError."""
        return self._by_name(_offers.KNOBS, path)

    def runtime(self, name: str) -> Provided[RuntimeDescriptor]:
        """Return a runtime that can be used now.

        Raises UnknownNameError; PluginError when it is only planned or its plugin is not active;
        MissingDependencyError when its engine is not installed.
        """
        found: Provided[RuntimeDescriptor] = self._by_name(_offers.RUNTIMES, name)
        _need(f"runtime {name!r}", found.record.requires, found.record.install_hint)
        return found

    def checkpoint(self, name: str) -> Provided[CheckpointDescriptor]:
        """Return a packaged checkpoint that can be made now; errors as for `runtime`."""
        found: Provided[CheckpointDescriptor] = self._by_name(_offers.CHECKPOINTS, name)
        _need(f"checkpoint {name!r}", found.record.requires, found.record.install_hint)
        return found

    def renderer(self, name: str) -> Provided[RendererDescriptor]:
        """Return one renderer; errors as for `runtime`."""
        return self._by_name(_offers.RENDERERS, name)

    def dump_reader(self, name: str) -> Provided[DumpReaderDescriptor]:
        """Return one dump reader; errors as for `runtime`."""
        return self._by_name(_offers.READERS, name)

    def signature(self, name: str) -> Provided[SignatureDescriptor]:
        """Return one fault signature; errors as for `runtime`."""
        return self._by_name(_offers.SIGNATURES, name)

    def debug_matrix(self, module: str) -> Provided[DebugMatrix]:
        """Return one debug matrix; errors as for `runtime`."""
        return self._by_name(_offers.MATRICES, module)

    def profile(self, name: str) -> Provided[Profile]:
        """Return one profile; errors as for `runtime`."""
        return self._by_name(_offers.PROFILES, name)

    def command(self, name: str) -> Provided[CommandProvider]:
        """Return one command; errors as for `runtime`."""
        return self._by_name(_offers.COMMANDS, name)

    def hint(self, noun: str, name: str) -> str:
        """Return what to do about a name that nothing provides: nearest names, and the package that has it.

        noun: `knob`, `runtime`, `operator backend`, `command`, … (Kind.noun).
        """
        kind = next(kind for kind in KINDS if kind.noun == noun)
        parts = (did_you_mean(name, self._ids(kind)), self._package_hint(noun, name))
        return " ".join(part for part in parts if part)

    # --- plugins ------------------------------------------------------------------------------------------

    def plugins(self) -> tuple[PluginEntry, ...]:
        """Return every plugin with its status; the reason of an active one says what it lacks or plans."""
        return tuple(_entry(item) for item in self._found)

    def plugin(self, name: str) -> PluginEntry:
        """Return one plugin by entry-point or distribution name, whatever its status."""
        return _entry(self._plugin(name))

    def offers(self, name: str) -> dict[str, tuple[str, ...]]:
        """Return everything that one plugin provides, by plural noun; empty kinds are left out."""
        item = self._plugin(name)
        listed = {kind.plural: _names(item, kind) for kind in KINDS}
        return {plural: names for plural, names in listed.items() if names}

    def require(self, requirements: Iterable[str]) -> tuple[PluginEntry, ...]:
        """Return the plugins that an experiment names; errors as for `require_plugin`."""
        return tuple(self.require_plugin(requirement) for requirement in requirements)

    def require_plugin(self, requirement: str) -> PluginEntry:
        """Return the plugin that an experiment names, which must be active.

        requirement: an entry-point or distribution name, optionally with a version range (`xcfg-vllm>=0.1`).
        Raises MissingDependencyError (a package of the project that is not installed), UnknownNameError
        (nothing installed has this name) or PluginError (it is installed and not active, or another version).
        """
        from packaging.requirements import InvalidRequirement, Requirement

        try:
            wanted = Requirement(requirement)
        except InvalidRequirement:
            raise UsageError(
                f"{requirement!r} is neither a plugin name nor a requirement", hint="As in 'xcfg-vllm>=0.1'."
            ) from None
        item = self._plugin(wanted.name)
        if not item.active:
            raise PluginError(f"plugin {wanted.name!r} is {item.status}: {item.reason}", hint=cure(item))
        if not wanted.specifier.contains(item.version, prereleases=True):
            raise PluginError(
                f"plugin {wanted.name!r} is wanted as {wanted.specifier}, installed is {item.version}",
                hint=f"pip install '{item.distribution}{wanted.specifier}'",
            )
        return self.plugin(item.name)

    # --- observation --------------------------------------------------------------------------------------

    def observe_before_case(self, case: ExperimentCase) -> None:
        """Tell every plugin that `case` is about to be compared; what one raises is logged, never fatal."""
        self._observe("xcfg_before_case", {"case": case})

    def observe_after_case(self, case: ExperimentCase, summary: CaseSummary) -> None:
        """Tell every plugin how `case` ended; what one raises is logged, never fatal."""
        self._observe("xcfg_after_case", {"case": case, "summary": summary})

    def observe_after_run(self, summary: RunSummary, folder: str, experiment: str) -> None:
        """Tell every plugin that a run has ended; what one raises is logged, never fatal."""
        self._observe("xcfg_after_run", {"summary": summary, "folder": folder, "experiment": experiment})

    def _observe(self, hook: str, values: dict[str, Any]) -> None:
        for item in self._found:
            for function, names in implementations(self._hooks, hook, item.plugin) if item.active else ():
                try:
                    with quiet_stdout():
                        function(*(values[name] for name in names))
                except KeyboardInterrupt:
                    raise
                except BaseException as error:
                    log.warning("plugin %r raised in %s: %s", item.name, hook, describe(error))
                    log.debug("plugin %r in %s", item.name, hook, exc_info=True)

    # --- how --------------------------------------------------------------------------------------------

    def _offered(self, kind: Kind) -> tuple[Provided[Any], ...]:
        return tuple(
            Provided(record, item.name, item.distribution, item.version)
            for item in self._found
            for record in item.offers.get(kind.hook, ())
        )

    def _usable(self, kind: Kind) -> tuple[Provided[Any], ...]:
        return tuple(item for item in self._offered(kind) if not is_planned(item.record))

    def _by_name(self, kind: Kind, name: str) -> Provided[Any]:
        for item in self._offered(kind):
            if name in kind.ids(item.record):
                if is_planned(item.record):
                    raise self._planned_error(kind, name, item)
                return item
        message = f"no installed plugin provides the {kind.noun} {name!r}"
        raise UnknownNameError(message, hint=self.hint(kind.noun, name))

    def _planned_error(self, kind: Kind, name: str, item: Provided[Any]) -> PluginError:
        available = did_you_mean("", self._ids(kind))
        return PluginError(
            f"{kind.noun} {name!r} is planned and cannot be used: {_missing(item.record)}",
            hint=f"{item.distribution} {item.version} announces it. {available}".strip(),
        )

    def _ids(self, kind: Kind) -> list[str]:
        return [kind.ids(item.record)[0] for item in self._usable(kind)]

    def _package_hint(self, noun: str, name: str) -> str:
        package = known.package_for(noun, name)
        if not package:
            return ""
        mine = [item for item in self._found if canonical(item.distribution) == package]
        for item in mine:
            if not item.active:
                told = f"{package} {item.version} would provide it and is {item.status}: {item.reason}"
                return f"{told}. {cure(item)}"
        if mine:
            return f"{package} {mine[0].version} is installed; this version does not have it."
        return f"It comes with {package}: pip install {package}"

    def _plugin(self, name: str) -> Found:
        for item in sorted(self._found, key=lambda item: not item.active):
            if name == item.name or canonical(name) == canonical(item.distribution):
                return item
        if canonical(name) in known.PACKAGES:
            raise MissingDependencyError(f"plugin {name!r} is not installed", hint=f"pip install {canonical(name)}")
        hint = did_you_mean(name, [item.name for item in self._found])
        raise UnknownNameError(f"no plugin {name!r} is installed", hint=hint)


def _entry(item: Found) -> PluginEntry:
    return PluginEntry(
        name=item.name,
        distribution=item.distribution,
        version=item.version,
        status=item.status,
        reason=item.reason or "; ".join(_lacks(item)),
        provides={kind.plural: _names(item, kind) for kind in LISTED},
    )


def _names(item: Found, kind: Kind) -> tuple[str, ...]:
    records = (record for record in item.offers.get(kind.hook, ()) if not is_planned(record))
    return tuple(kind.ids(record)[0] for record in records)


def _lacks(item: Found) -> list[str]:
    """Return what an active plugin only plans, and what of it needs something that is not installed."""
    planned: dict[tuple[str, str], list[str]] = {}
    needs: list[str] = []
    for kind in KINDS:
        for record in item.offers.get(kind.hook, ()):
            name = kind.ids(record)[0]
            if is_planned(record):
                planned.setdefault((kind.noun, _missing(record)), []).append(name)
            elif absent := unmet(getattr(record, "requires", ())):
                hint = getattr(record, "install_hint", "")
                needs.append(f"{kind.noun} {name} needs {', '.join(absent)}" + (f": {hint}" if hint else ""))
    return [f"planned: {noun} {', '.join(names)} ({why})" for (noun, why), names in planned.items()] + needs


def _need(what: str, requires: Iterable[str], install_hint: str) -> None:
    if absent := unmet(requires):
        raise MissingDependencyError(f"{what} needs {', '.join(absent)}", hint=install_hint)


def _missing(record: Any) -> str:
    return getattr(record, "missing", "") or "it is not part of this version"
