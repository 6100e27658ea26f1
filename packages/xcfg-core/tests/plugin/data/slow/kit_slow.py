from __future__ import annotations

import time

from xcfg.plugin import hookimpl
from xcfg.schema.knobs import Choice, KnobDefinition
from xcfg.schema.names import Lifecycle, SourceClass, Target

time.sleep(0.05)


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
    return (knob("kit.slow"),)
