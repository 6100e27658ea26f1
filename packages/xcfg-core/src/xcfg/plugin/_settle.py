"""Decide between plugins: which are blocked, and which stand in each other's way. Core never goes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import pluggy

from xcfg.errors import UsageError
from xcfg.plugin._compat import CORE, canonical
from xcfg.plugin._discovery import Found, unload
from xcfg.plugin._offers import KINDS

BUILTIN = "core"
DISABLE = "XCFG_DISABLE_PLUGINS"
log = logging.getLogger("xcfg.plugin")


def cure(item: Found) -> str:
    """Return what a person does about a plugin that is not active."""
    return {
        "blocked": f"Take it out of {DISABLE} and --no-plugin.",
        "conflict": "Uninstall one of them, or leave one out with --no-plugin.",
        "incompatible": f"pip install --upgrade {item.distribution} {CORE}",
        "broken": f"Reinstall {item.distribution}, or leave it out with --no-plugin {item.name}.",
    }.get(item.status, "")


def block(found: Sequence[Found], names: Sequence[str]) -> None:
    """Put plugins out of use by entry-point or distribution name, `*` all; UsageError for core."""
    if BUILTIN in names or CORE in names:
        raise UsageError(f"the plugin {BUILTIN!r} cannot be blocked", hint="It is xcfg itself.")
    for name in names:
        hit = [item for item in found if name in ("*", item.name) or canonical(name) == canonical(item.distribution)]
        for item in hit:
            item.reject("blocked", f"by {DISABLE} or --no-plugin")
        if not hit and name != "*":
            log.warning("nothing to block: no plugin %r is installed", name)


def settle_names(found: list[Found]) -> None:
    """Put plugins out of use that share an entry-point name, before any of them is imported."""
    for item in [item for item in found if item.active]:
        others = [
            other for other in found if other.name == item.name and other is not item and other.status != "blocked"
        ]
        if item.name == BUILTIN:
            item.reject("conflict", f"the plugin name {BUILTIN!r} belongs to {CORE}")
        elif others:
            names = " and ".join(f"{one.distribution} {one.version}" for one in (item, *others))
            item.reject("conflict", f"the plugin name {item.name!r} is used by {names}")


def settle_ids(core: Found, third: Sequence[Found], hooks: pluggy.PluginManager) -> None:
    """Put plugins out of use that offer an id which another offers; found on all of them before any goes."""
    reasons: dict[int, list[str]] = {}
    for what, items in _owners((core, *third)).items():
        who = " and ".join(item.label for item in items)
        for item in items if len(items) > 1 else ():
            reasons.setdefault(id(item), []).append(f"the {what} is offered by {who}")
    for item in third:
        if id(item) in reasons:
            unload(item, hooks, "conflict", "; ".join(reasons[id(item)]))


def _owners(found: Iterable[Found]) -> dict[str, list[Found]]:
    """Map each id, such as `runtime 'vllm'`, to the plugins that offer it."""
    owners: dict[str, list[Found]] = {}
    for item in found:
        for kind in KINDS:
            for record in item.offers.get(kind.hook, ()):
                for name in dict.fromkeys(kind.ids(record)):
                    owners.setdefault(f"{kind.noun} {name!r}", []).append(item)
    return owners
