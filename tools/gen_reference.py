"""Write the tables of docs from the code, or check that they are what the code says.

    python tools/gen_reference.py            rewrite them
    python tools/gen_reference.py --check    end with 1 and a diff when one is out of date

A page keeps its prose; what stands between `<!-- generated: NAME -->` and `<!-- end generated -->` belongs to
the function NAME below. Run it in an environment where all packages are installed.
"""

from __future__ import annotations

import difflib
import inspect
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click
import knob_pages
import msgspec
from xcfg import errors
from xcfg.artifacts.layout import STATUS_PAYLOADS
from xcfg.binding import DeterminismSpec, fields_of
from xcfg.cli._output import Session
from xcfg.cli.cmd_schema import documents
from xcfg.cli.main import cli
from xcfg.contract import load_contract
from xcfg.dumps import columns
from xcfg.plugin import provide, spec
from xcfg.plugin.manager import PluginManager
from xcfg.schema import (
    analysis,
    arguments,
    attempt,
    cube,
    doctor,
    experiment,
    kept,
    knobs,
    operators,
    plan,
    result,
    rules,
    runtime,
    worker,
)
from xcfg.schema._base import Input, Record
from xcfg_ops_logp.contract import LogProbContract

PAGES = Path(__file__).resolve().parent.parent / "docs"
BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end generated -->)", re.DOTALL)


def cell(text: object) -> str:
    """Return `text` fit for one cell of a Markdown table."""
    return " ".join(str(text).split()).replace("|", "\\|")


def table(headers: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a Markdown table."""
    head = list(headers)
    lines = [head, ["---"] * len(head), *([cell(item) for item in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def type_name(annotation: object) -> str:
    """Return a type as a person would write it."""
    text = (
        annotation.__name__
        if isinstance(annotation, type) and not hasattr(annotation, "__origin__")
        else str(annotation)
    )
    for noise in (
        "typing.",
        "xcfg.schema.",
        "experiment.",
        "knobs.",
        "operators.",
        "worker.",
        "runtime.",
        "identity.",
        "names.",
    ):
        text = text.replace(noise, "")
    return text.replace("bool | int | float | str | None", "Value")


def default_text(field: Any) -> str:
    """Return the default of a Struct field as JSON would show it, or `required`."""
    if field.required:
        return "required"
    if field.default_factory is not msgspec.NODEFAULT:
        made = field.default_factory()
        return "`{}`" if isinstance(made, (dict, msgspec.Struct)) else "`[]`"
    if isinstance(field.default, msgspec.Struct):
        return "`{}`"
    return f"`{msgspec.json.encode(field.default).decode()}`"


def struct(kind: Any, level: str = "###") -> str:
    """Return the heading, the docstring and the fields of one Struct."""
    words = inspect.getdoc(kind) or ""
    rows = [
        (f"`{field.encode_name}`", f"`{type_name(field.type)}`", default_text(field))
        for field in msgspec.structs.fields(kind)
    ]
    return f"{level} {kind.__name__}\n\n{words}\n\n{table(('field', 'type', 'default'), rows)}"


def signature(hook: Callable[..., Any]) -> str:
    """Return `name(arguments) -> type` of a hook as its specification has it."""
    return hook.__name__ + str(inspect.signature(hook)).replace("'", "")


def hook_table() -> str:
    """Return every hook in firing order: signature and docstring."""
    found = [item for _, item in inspect.getmembers(spec, inspect.isfunction) if item.__name__.startswith("xcfg_")]
    found.sort(key=lambda item: item.__code__.co_firstlineno)
    return "\n".join(
        f"### {item.__name__}\n\n```python\n{signature(item)}\n```\n\n{inspect.getdoc(item)}\n" for item in found
    )


def hook_records() -> str:
    """Return the records that hooks return."""
    kinds = (
        knobs.KnobDefinition,
        knobs.AlignSpec,
        knobs.Constraint,
        operators.OperatorBackendDescriptor,
        operators.OptionDefinition,
        runtime.RuntimeDescriptor,
        runtime.Capability,
        runtime.Incompatible,
        arguments.ArgumentTable,
        arguments.EngineArgument,
        arguments.Condition,
        arguments.Trap,
        arguments.ArgumentRow,
        arguments.Effect,
        runtime.CheckpointDescriptor,
        *(getattr(provide, name) for name in sorted(vars(provide)) if _is_record(getattr(provide, name))),
    )
    return "\n".join(struct(kind) for kind in kinds)


def _is_record(item: object) -> bool:
    return (
        isinstance(item, type)
        and issubclass(item, Record)
        and item is not Record
        and item.__module__ == provide.__name__
    )


def knob_table() -> str:
    """Return every knob of the installed plugins."""
    from xcfg.cli.cmd_knobs import default, domain

    manager = PluginManager.load()
    rows = [
        (
            f"`{name}`",
            manager.knob(name).distribution,
            knob.targets.value,
            knob.lifecycle.value,
            knob.source_class.value,
            default(knob),
            domain(knob.domain),
            knob.summary,
        )
        for name, knob in sorted(manager.knobs().items())
    ]
    return table(("path", "package", "side", "lifecycle", "source class", "default", "values", "what it is"), rows)


def command_pages() -> str:
    """Return every command with its usage and options."""
    context = click.Context(cli, info_name="xcfg", obj=Session())
    shared: set[str | None] = {option.name for option in cli.params}
    parts = [_command(context, name, cli.get_command(context, name), shared) for name in cli.list_commands(context)]
    return "\n".join(parts)


def _command(parent: click.Context, name: str, command: click.Command | None, shared: set[str | None]) -> str:
    if command is None:
        return ""
    context = click.Context(command, info_name=name, parent=parent, obj=parent.obj)
    title = context.command_path
    if isinstance(command, click.Group):
        inner = (
            _command(context, child, command.get_command(context, child), shared)
            for child in command.list_commands(context)
        )
        return f"## {title}\n\n{inspect.cleandoc(command.help or '')}\n\n" + "\n".join(inner)
    level = "##" if parent.parent is None else "###"
    usage = " ".join([title, *command.collect_usage_pieces(context)])
    words = f"{level} {title}\n\n{inspect.cleandoc(command.help or '')}\n\n```text\n{usage}\n```\n"
    records = [option.get_help_record(context) for option in command.params if option.name not in shared]
    rows = [(f"`{record[0]}`", record[1]) for record in records if record]
    return words + ("\n" + table(("option", "meaning"), rows) if rows else "")


def shared_options() -> str:
    """Return the options that every command has."""
    context = click.Context(cli, info_name="xcfg", obj=Session())
    records = [option.get_help_record(context) for option in cli.params]
    return table(("option", "meaning"), [(f"`{record[0]}`", record[1]) for record in records if record])


def error_table() -> str:
    """Return the tree of errors: class, kind, exit code, meaning."""
    rows: list[tuple[object, ...]] = []

    def walk(kind: type[errors.XcfgError], depth: int) -> None:
        name = "&nbsp;" * 4 * depth + f"`{kind.__name__}`"
        rows.append((name, f"`{kind.kind}`", kind.exit_code, (inspect.getdoc(kind) or "").splitlines()[0]))
        for child in kind.__subclasses__():
            if child.__module__ == errors.__name__:
                walk(child, depth + 1)

    walk(errors.XcfgError, 0)
    return table(("class", "kind", "exit", "meaning"), rows)


def schema_names() -> str:
    """Return the documents that `xcfg schema NAME` knows."""
    return table(
        ("name", "schema_version"),
        ((f"`{name}`", f"`{version}`" if version else "") for name, (version, _) in documents().items()),
    )


def doctor_records() -> str:
    """Return the document of `xcfg doctor`."""
    kinds = (
        doctor.DoctorSummary,
        doctor.Machine,
        doctor.RuntimeHealth,
        doctor.Engine,
        doctor.Absent,
        doctor.Clash,
        doctor.ArgumentCheck,
        doctor.Finding,
        doctor.ConfirmingCase,
    )
    return "\n".join(struct(kind) for kind in kinds)


EXAMPLE = {
    "--rollout-args": "vllm serve my/model --kv-cache-dtype fp8 --tensor-parallel-size 2"
    " --attention-backend TRITON_ATTN",
    "--training-args": "--bf16 --deterministic-mode --log-level debug",
}


def doctor_example() -> str:
    """Return a call of `xcfg doctor` with what it prints."""
    words = ["doctor", "--platform", "cpu", *(word for pair in EXAMPLE.items() for word in pair)]
    done = subprocess.run([sys.executable, "-m", "xcfg", *words], capture_output=True, text=True, check=False)
    call = shlex.join(["xcfg", *words]).replace(" --training-args", " \\\n  --training-args")
    call = call.replace(" --rollout-args", " \\\n  --rollout-args")
    return f"```bash\n{call}\n```\n\n```text\n{done.stdout.rstrip()}\n```\n"


def experiment_v1() -> str:
    """Return the fields of a v1 file."""
    return "\n".join(
        struct(kind) for kind in (experiment.ExperimentV1, experiment.InterventionV1, experiment.InlineIdentity)
    )


def experiment_v2() -> str:
    """Return the fields of a v2 file and of everything inside it."""
    skip = {
        experiment.ExperimentV1,
        experiment.InterventionV1,
        experiment.InlineIdentity,
        experiment.ExperimentV2,
    }
    inner = [
        item
        for item in vars(experiment).values()
        if isinstance(item, type)
        and issubclass(item, Input)
        and item.__module__ == experiment.__name__
        and item not in skip
    ]
    return "\n".join(struct(kind) for kind in (experiment.ExperimentV2, *inner))


def worker_records() -> str:
    """Return the documents of the worker protocol."""
    kinds: tuple[type[Record], ...] = (
        worker.WorkerSpec,
        operators.OperatorBinding,
        worker.BuildReport,
        runtime.KnobApplication,
        runtime.Evidence,
        worker.WeightReport,
        worker.ScoreRequest,
        worker.ScoreReport,
        worker.RankRecord,
    )
    return "\n".join(struct(kind) for kind in kinds)


def score_columns() -> str:
    """Return the columns of a score."""
    rows = (
        (f"`{name}`", meaning, "on request" if name in worker.OPTIONAL_COLUMNS else "")
        for name, meaning in worker.SCORE_COLUMNS.items()
    )
    return table(("column", "dtype, shape, meaning", ""), rows)


def dump_columns() -> str:
    """Return the canonical columns of a dump."""
    rows = [(f"`{name}`", meaning, "required") for name, meaning in columns.REQUIRED.items()]
    rows += [(f"`{name}`", meaning, "") for name, meaning in columns.OPTIONAL.items()]
    return table(("column", "one value per token", ""), rows)


def store_records() -> str:
    """Return the seals and the documents they cover."""
    kinds = (
        attempt.CaseSeal,
        attempt.ScoreSeal,
        kept.KeptComparison,
        plan.ExperimentCase,
        result.Comparison,
        result.EdgeResult,
        result.AssessmentResult,
    )
    return "\n".join(struct(kind) for kind in kinds)


def cube_records() -> str:
    """Return the documents of `xcfg cube`."""
    kinds = (cube.Cube, cube.Row, cube.AxisCell, cube.ArmCell, cube.Pivot)
    return "\n".join(struct(kind) for kind in kinds)


def analysis_records() -> str:
    """Return the document of `xcfg analyze` and `xcfg minimize`."""
    kinds = (
        analysis.Analysis,
        analysis.Cause,
        analysis.Effect,
        analysis.Interaction,
        analysis.Floor,
        analysis.SignatureFinding,
        rules.Findings,
        rules.Level,
        rules.Conclusion,
        rules.Severity,
    )
    return "\n".join(struct(kind) for kind in kinds)


def store_payloads() -> str:
    """Return which files an attempt of each status must and must not hold."""
    rows = [
        (
            f"`{status.value}`",
            ", ".join(f"`{name}`" for name in needed.every),
            " or ".join(f"`{name}`" for name in needed.some),
            ", ".join(f"`{name}`" for name in needed.never),
        )
        for status, needed in STATUS_PAYLOADS.items()
    ]
    return table(("status", "must hold", "and one of", "may not hold"), rows)


def contract_table() -> str:
    """Return what the packaged numerical contract decides by."""
    logprob = load_contract("ws1", "current").accuracy.default["logprob"]
    rows = [(dtype, entry.atol, entry.source, entry.provenance) for dtype, entry in logprob.items()]
    return table(("compute dtype", "threshold, nats", "source", "provenance"), rows)


def tier_rows(kind: type[Record]) -> list[tuple[str, str, str, str]]:
    """Return path, tier of a row, tier end to end and marks of every field of an operator contract."""
    rows = []
    for item in fields_of(kind):
        marks = ["violation"] if item.violation else []
        marks += ["global view"] if item.view else []
        marks += [f"where {item.condition} runs"] if item.condition else []
        rows.append((f"`{item.path}`", item.tier.value, item.end_to_end.value, ", ".join(marks)))
    return rows


def logprob_contract() -> str:
    """Return the fields of LogProbContract with their tiers."""
    return table(("field", "rows and swaps", "end to end", "marks"), tier_rows(LogProbContract))


def determinism_flags() -> str:
    """Return the flags that a worker reads."""
    rows = ((path, tier, marks) for path, tier, _, marks in tier_rows(DeterminismSpec))
    return table(("flag", "tier", "binds"), rows)


def engine_knobs() -> str:
    """Return what became of each value of each knob, by engine, platform and runner."""
    return knob_pages.knob_rows(table)


def engine_traps() -> str:
    """Return what is known of combinations of engine arguments."""
    return knob_pages.trap_rows(table)


def engine_arguments() -> str:
    """Return the engine arguments that `xcfg doctor` understands."""
    return knob_pages.argument_rows(table)


def gate_kinds() -> str:
    """Return every reason for which `xcfg gate` closes."""
    from xcfg_analysis.gate.kinds import KINDS

    rows = sorted((-kind.code, f"`{name}`", kind.code, kind.cure) for name, kind in KINDS.items())
    return table(("kind", "exit", "what to do"), (row[1:] for row in rows))


GENERATORS: dict[str, Callable[[], str]] = {
    item.__name__: item
    for item in (
        command_pages,
        contract_table,
        determinism_flags,
        doctor_example,
        doctor_records,
        dump_columns,
        engine_arguments,
        engine_knobs,
        engine_traps,
        error_table,
        experiment_v1,
        experiment_v2,
        gate_kinds,
        hook_records,
        hook_table,
        knob_table,
        logprob_contract,
        schema_names,
        score_columns,
        shared_options,
        store_payloads,
        store_records,
        cube_records,
        analysis_records,
        worker_records,
    )
}


def filled(text: str) -> str:
    """Return a page with its generated blocks made anew."""
    return BLOCK.sub(lambda match: f"{match[1]}\n{GENERATORS[match[2]]().strip()}\n\n{match[3]}", text)


def main(arguments: list[str]) -> int:
    """Rewrite the pages, or compare them under --check."""
    stale = 0
    for page in sorted(PAGES.rglob("*.md")):
        old = page.read_text(encoding="utf-8")
        new = filled(old)
        if new == old:
            continue
        if "--check" in arguments:
            stale += 1
            sys.stdout.writelines(
                difflib.unified_diff(old.splitlines(True), new.splitlines(True), str(page), "generated", n=1)
            )
        else:
            page.write_text(new, encoding="utf-8")
    if stale:
        print(f"{stale} pages are out of date: run `python tools/gen_reference.py`")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
