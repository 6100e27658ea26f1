from __future__ import annotations

import click
from xcfg.plugin import CommandProvider, RendererDescriptor, hookimpl
from xcfg.schema.knobs import Choice, KnobDefinition
from xcfg.schema.names import Lifecycle, SourceClass, Target
from xcfg.schema.operators import OperatorBackendDescriptor
from xcfg.schema.runtime import RuntimeDescriptor


@hookimpl
def xcfg_knobs():
    return (
        KnobDefinition(
            name="kit.switch",
            summary="A knob of a test.",
            source_class=SourceClass.EXECUTION,
            lifecycle=Lifecycle.REQUEST,
            targets=Target.BOTH,
            domain=Choice(values=("a", "b")),
            aliases={"first": "a"},
        ),
    )


@hookimpl
def xcfg_operator_backends():
    return [
        OperatorBackendDescriptor(
            operation="kit_operation",
            backend_id="kit.backend",
            summary="A backend of a test.",
            factory="kit_good:build",
            aliases=("kit",),
        )
    ]


@hookimpl
def xcfg_runtimes():
    return (
        RuntimeDescriptor(
            name="kit-runtime",
            summary="A runtime of a test.",
            adapter="kit_good:Adapter",
            placement="kit_good:place",
            arms={"training": ("training",)},
            operators=("kit_operation",),
            policies={"kit_operation": {"production": "kit.backend"}},
        ),
        RuntimeDescriptor(
            name="kit-engine",
            summary="A runtime whose engine is not installed.",
            adapter="kit_good:Adapter",
            placement="kit_good:place",
            arms={"training": ("training",)},
            requires=("xcfg-kit-engine>=2 | xcfg-kit-engine-cpu>=2",),
            install_hint="pip install 'kit-good[engine]'",
        ),
        RuntimeDescriptor(
            name="kit-later",
            summary="A runtime that is only announced.",
            adapter="",
            placement="",
            arms={"training": ("training",)},
            status="planned",
            missing="its adapter is not written",
        ),
    )


@hookimpl
def xcfg_renderers():
    return (RendererDescriptor(name="kit-text", summary="A renderer of a test.", factory="kit_good:render"),)


@hookimpl
def xcfg_commands():
    return (
        CommandProvider(name="kit-hello", summary="Say hello.", factory="kit_good:hello"),
        CommandProvider(name="kit-lost", summary="Point nowhere.", factory="kit_good:nowhere"),
        CommandProvider(name="kit-exit", summary="Leave at once.", factory="kit_good:leave"),
        CommandProvider(
            name="kit-later",
            summary="Do it later.",
            factory="",
            status="planned",
            missing="it is not written",
        ),
    )


@click.command()
def hello():
    click.echo("hello")


@click.command()
@click.argument("code", type=int)
def leave(code):
    raise SystemExit(code)
