from __future__ import annotations

from xcfg.plugin import hookimpl
from xcfg.schema.knobs import Choice, KnobDefinition
from xcfg.schema.names import Lifecycle, SourceClass, Target


def knob(name: str) -> KnobDefinition:
    return KnobDefinition(
        name=name,
        summary="A knob of a test.",
        source_class=SourceClass.EXECUTION,
        lifecycle=Lifecycle.REQUEST,
        targets=Target.BOTH,
        domain=Choice(values=("a", "b")),
    )


@hookimpl
def xcfg_knobs():
    return (knob("kit.same"), knob("kit.same"))
