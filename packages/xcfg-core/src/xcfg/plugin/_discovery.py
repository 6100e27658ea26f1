"""Find what is installed under the entry-point group `xcfg`, and load it, one entry point at a time.

Finding reads metadata only. Loading imports foreign code: whatever that raises becomes a reason, never the
end of the program. Nothing here decides between plugins; that is the manager's work.
"""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import importlib_metadata
import pluggy

from xcfg.errors import PluginError
from xcfg.plugin._compat import canonical, excludes_api
from xcfg.plugin._offers import KINDS, Kind, check_records
from xcfg.plugin._resolve import describe, quiet_stdout
from xcfg.plugin.markers import PROJECT
from xcfg.schema._base import Record

GROUP = "xcfg"
UNKNOWN = "unknown"
SLOW_SECONDS = 1.0
log = logging.getLogger("xcfg.plugin")


@dataclass
class Found:
    """One entry point: where it comes from, what became of it, and what it offers once it is active."""

    name: str
    distribution: str
    version: str
    value: str = ""
    requires: tuple[str, ...] = ()
    entry_point: importlib_metadata.EntryPoint | None = None
    status: str = "active"
    reason: str = ""
    plugin: Any = None
    offers: dict[str, tuple[Record, ...]] = field(default_factory=dict)

    @property
    def active(self) -> bool:
        """Whether its records and hooks are in use."""
        return self.status == "active"

    @property
    def label(self) -> str:
        """How messages name it: `xcfg-vllm 0.1.0 (vllm)`."""
        return f"{self.distribution} {self.version} ({self.name})".replace("  ", " ")

    def reject(self, status: str, reason: str) -> None:
        """Put it out of use, with the reason on one line."""
        self.status, self.reason, self.plugin = status, " ".join(reason.split()), None
        self.offers = {}


def discover(path: Sequence[str] | None = None) -> list[Found]:
    """Return every entry point of the group, sorted by name and distribution; `path` stands for sys.path.

    Of a distribution that is on the path twice the first counts, as for an import. Metadata is parsed only
    where the entry points name the group, since most of what is installed has nothing to do with xcfg.
    """
    distributions = importlib_metadata.distributions(**({} if path is None else {"path": list(path)}))
    found: list[Found] = []
    seen: set[str] = set()
    for distribution in distributions:
        items = _entry_points(distribution)
        key = canonical(items[0].distribution) if items else ""
        if key not in seen or key == UNKNOWN:
            found.extend(items)
            seen.add(key)
    return sorted(found, key=lambda item: (item.name, item.distribution))


def _entry_points(distribution: Any) -> list[Found]:
    """Return the entry points of one distribution; metadata that cannot be read becomes their reason."""
    try:
        if GROUP not in (distribution.read_text("entry_points.txt") or ""):
            return []
        entries = [entry for entry in distribution.entry_points if entry.group == GROUP]
    except Exception as error:  # noqa: BLE001 - one unreadable folder must not hide the others
        log.debug("entry points that cannot be read: %s", describe(error))
        return []
    try:
        metadata = distribution.metadata  # parsed anew by each access
        name, version = metadata["Name"], metadata.get("Version") or ""
        if not name:
            raise ValueError("there is no Name")
        requires = tuple(metadata.get_all("Requires-Dist") or distribution.requires or ())
    except Exception as error:  # noqa: BLE001 - as above
        items = [Found(entry.name, UNKNOWN, "", entry.value) for entry in entries]
        for item in items:
            item.reject("broken", f"the metadata of its distribution cannot be read: {describe(error)}")
        return items
    return [Found(entry.name, name, version, entry.value, requires, entry) for entry in entries]


def load(found: Found, manager: pluggy.PluginManager) -> None:
    """Import, register and ask one plugin; on any fault unregister it and keep the reason."""
    started = time.perf_counter()
    try:
        with quiet_stdout():
            _load(found, manager)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        log.debug("plugin %r", found.name, exc_info=True)
        _unregister(found, manager)
        if found.active:
            found.reject("broken", error.message if isinstance(error, PluginError) else _import_fault(found, error))
    seconds = time.perf_counter() - started
    if seconds > SLOW_SECONDS:
        log.warning("plugin %r took %.1f s to load; a plugin module should import nothing heavy", found.name, seconds)


def unload(found: Found, manager: pluggy.PluginManager, status: str, reason: str) -> None:
    """Take an active plugin out again."""
    _unregister(found, manager)
    found.reject(status, reason)


def _load(found: Found, manager: pluggy.PluginManager) -> None:
    if found.entry_point is not None:
        found.plugin = found.entry_point.load()
    elif isinstance(found.plugin, str):
        found.plugin = importlib.import_module(found.plugin)
    if reason := excludes_api(found.plugin):
        found.reject("incompatible", reason)
        raise PluginError(reason)
    _refuse_unmarked(found.plugin)
    manager.register(found.plugin, name=found.name)
    _refuse_unknown_hooks(found.plugin, manager)
    for kind in KINDS:
        records = tuple(_ask(found.plugin, manager, kind))
        if records:
            found.offers[kind.hook] = records


def _ask(plugin: object, manager: pluggy.PluginManager, kind: Kind) -> Iterator[Record]:
    for function, _ in implementations(manager, kind.hook, plugin):
        try:
            returned = function()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise PluginError(f"{kind.hook} raised {describe(error)}") from error
        yield from check_records(kind, returned)


def implementations(manager: pluggy.PluginManager, hook: str, plugin: object) -> list[tuple[Any, tuple[str, ...]]]:
    """Return what `plugin` implements of `hook`: the function and the names of its arguments."""
    caller = getattr(manager.hook, hook)
    return [(impl.function, tuple(impl.argnames)) for impl in caller.get_hookimpls() if impl.plugin is plugin]


def _refuse_unmarked(plugin: object) -> None:
    """Refuse a function that is named like a hook and lacks the marker: nobody would ever call it."""
    for name, value in vars(plugin).items() if hasattr(plugin, "__dict__") else ():
        named = name.startswith(f"{PROJECT}_") and isinstance(value, FunctionType)
        if named and not hasattr(value, f"{PROJECT}_impl"):
            raise PluginError(f"{name} is defined without @hookimpl, so it would never be called")


def _refuse_unknown_hooks(plugin: object, manager: pluggy.PluginManager) -> None:
    for caller in manager.get_hookcallers(plugin) or ():
        for impl in caller.get_hookimpls():
            if impl.plugin is not plugin:
                continue
            if not caller.has_spec():
                if not impl.optionalhook:
                    raise PluginError(f"{caller.name} is no hook of xcfg")
            elif impl.wrapper or impl.hookwrapper:
                raise PluginError(f"{caller.name} is a wrapper; xcfg asks each plugin by itself")


def _unregister(found: Found, manager: pluggy.PluginManager) -> None:
    """Undo a registration, also one that failed half-way and left hooks behind."""
    if found.plugin is not None and manager.get_plugin(found.name) is found.plugin:
        manager.unregister(found.plugin, found.name)


def _import_fault(found: Found, error: BaseException) -> str:
    if isinstance(error, pluggy.PluginValidationError):
        return str(error)
    if isinstance(error, SystemExit):
        return f"{found.value} called sys.exit({error.code!r}) while it was loaded"
    return f"{found.value} cannot be loaded: {describe(error)}"
