"""The plugin `dumps`: announces readers of foreign dumps that this version does not have yet."""

from __future__ import annotations

from xcfg.plugin import DumpReaderDescriptor, hookimpl

FRAMEWORKS = {
    "slime": "slime rollout and training dumps",
    "miles": "miles rollout and training dumps",
    "nemo-rl": "NeMo-RL log probability dumps",
    "prime-rl": "prime-rl log probability dumps",
    "vllm-json": "log probabilities in the JSON answers of a vLLM server",
}
"""Name of the format -> what it holds."""


@hookimpl
def xcfg_dump_readers() -> tuple[DumpReaderDescriptor, ...]:
    """Return the readers of this package; each is listed and refused when named."""
    return tuple(
        DumpReaderDescriptor(
            name=name,
            summary=f"Reads {what}.",
            factory="",
            framework=name,
            status="planned",
            missing="no reader of a foreign dump is part of this version",
        )
        for name, what in FRAMEWORKS.items()
    )
