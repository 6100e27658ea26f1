"""Whether what a runtime or checkpoint needs is installed, from metadata alone."""

from __future__ import annotations

from collections.abc import Iterable

from packaging.requirements import InvalidRequirement, Requirement

from xcfg.errors import MissingDependencyError
from xcfg.runtime.environment import version_of


def unmet(requirements: Iterable[str]) -> list[str]:
    """Return the requirement strings (`torch>=2.6`, or `a | b` for one of several) that do not hold."""
    return [item for item in requirements if not any(_holds(option.strip()) for option in item.split("|"))]


def _holds(requirement: str) -> bool:
    try:
        parsed = Requirement(requirement)
    except InvalidRequirement:
        return False
    version = version_of(parsed.name)
    return bool(version) and parsed.specifier.contains(version, prereleases=True)


def require(what: str, requirements: Iterable[str], install_hint: str) -> None:
    """Raise MissingDependencyError naming every unmet requirement of `what` and the command that installs them."""
    missing = unmet(requirements)
    if missing:
        raise MissingDependencyError(
            f"{what} needs {', '.join(repr(item) for item in missing)}, which is not installed",
            hint=install_hint or "Install it beside xcfg.",
        )
