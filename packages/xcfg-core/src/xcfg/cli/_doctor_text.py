"""The human form of `xcfg doctor`."""

from __future__ import annotations

from collections.abc import Iterator

from xcfg.cli._output import fields, table
from xcfg.schema import codec
from xcfg.schema.doctor import COUNTED, ArgumentCheck, DoctorSummary, Finding, Machine, RuntimeHealth, Verdict


def show_doctor(summary: DoctorSummary) -> str:
    """Return the findings about arguments, or else the state of the installation."""
    lines = _arguments(summary.arguments) if summary.arguments is not None else _installation(summary)
    return "\n".join(lines)


def _installation(summary: DoctorSummary) -> Iterator[str]:
    yield fields([("xcfg", summary.core or "from a folder"), *_machine(summary.machine)])
    yield ""
    yield table(
        ("runtime", "usable", "engine", "sides", "devices (not here)", "missing: command"),
        map(_runtime, summary.runtimes),
    )
    if not summary.runtimes:
        yield "no runtime is installed: pip install 'xcfg-torch'"
    if summary.absent:
        yield ""
        rows = ((item.package, item.brings, item.reason, item.cure) for item in summary.absent)
        yield table(("not here", "would bring", "why", "command"), rows)
    if summary.clashes:
        yield ""
        shown = (
            (item.package, item.other, "BROKEN NOW" if item.installed else "would break", item.reason)
            for item in summary.clashes
        )
        yield table(("cannot share an environment", "with", "", "why"), shown)
    if summary.variables:
        yield ""
        yield table(("variable that chooses kernels", "value"), summary.variables.items())


def _machine(machine: Machine) -> Iterator[tuple[str, str]]:
    features = [name if there else f"no {name}" for name, there in machine.features.items()]
    memory = "" if machine.memory_gib is None else f", {machine.memory_gib:g} GiB"
    yield "python", f"{machine.python} on {machine.platform}"
    yield "processor", f"{machine.processor}, {machine.cores} cores{memory}"
    yield "features", ", ".join(features)
    yield "accelerators", "; ".join(machine.accelerators) or "none"
    usable = {True: "it can use them", False: "it cannot use them", None: ""}[machine.cuda]
    notes = ", ".join(part for part in (usable, machine.cuda_note) if part)
    yield "torch", (machine.torch or "not installed") + (f" ({notes})" if notes else "")


def _runtime(item: RuntimeHealth) -> tuple[str, ...]:
    engines = ", ".join(f"{engine.distribution} {engine.version or 'missing'}" for engine in item.engines)
    lacks = "; ".join(item.missing)
    away = "" if item.here or lacks else f"it runs on {', '.join(item.devices)}, which is not here"
    cure = f": {item.cure}" if item.cure else ""
    usable = "yes" if item.usable else "no"
    devices = ",".join(name if name in item.here else f"({name})" for name in item.devices)
    return item.name, usable, engines or "-", ",".join(item.sides), devices, lacks + cure + away


def _arguments(check: ArgumentCheck) -> Iterator[str]:
    graver = [item for item in check.findings if item.verdict in COUNTED]
    other = [item for item in check.findings if item.verdict not in COUNTED]
    for item in graver:
        yield from _finding(item)
        yield ""
    for item in other:
        unknown = item.verdict is Verdict.UNKNOWN
        parts = ("" if unknown else item.verdict.value.replace("_", " "), item.happens, item.measured)
        yield _clean(f"{item.side}: {_call(item)}: " + "; ".join(part for part in parts if part))
    if other:
        yield ""
    pair = f"{check.rollout} and {check.training} on {check.platform}"
    counted = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in check.counts.items())
    yield f"{pair}: {counted or 'nothing was given'}; no model was loaded"


def _finding(item: Finding) -> Iterator[str]:
    yield _clean(f"{item.verdict.value.upper().replace('_', '-')}  {item.side}: {_call(item)}")
    yield _clean(f"  {item.happens}")
    if item.measured:
        yield _clean(f"  measured: {item.measured}")
    if item.source:
        yield _clean(f"  source: {item.source}")
    if item.case is not None:
        case = {"path": item.case.path, "values": list(item.case.values)}
        yield _clean(f"  confirm: {codec.canonical_json(case).decode()} in `interventions`, then")
        yield _clean(f"           {item.case.command}")
    elif item.confirm:
        yield _clean(f"  confirm: {item.confirm}")


def _call(item: Finding) -> str:
    if item.flag.isupper():
        return f"{item.flag}={item.value}"
    if not item.value:
        return item.flag
    if item.value in ("true", "false"):
        return f"--{item.flag}" if item.value == "true" else f"--no-{item.flag}"
    return f"--{item.flag} {item.value}"


def _clean(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text).rstrip()
