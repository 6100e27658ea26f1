"""The records: one backend per operation with an option that is neutral by default, and two runtimes."""

from __future__ import annotations

from xcfg.plugin import hookimpl
from xcfg.schema.codec import evolve
from xcfg.schema.knobs import Choice, FloatRange
from xcfg.schema.operators import OperatorBackendDescriptor, OptionDefinition
from xcfg.schema.runtime import RuntimeDescriptor
from xcfg_megatron.backends import BACKENDS
from xcfg_megatron.capabilities import MEGATRON
from xcfg_torch.capabilities import TORCH

OWN = evolve(BACKENDS[0], backend_id="lab.vocab_parallel_logprob", runtimes=("lab-megatron",))
"""Megatron's own log probability once more, since a backend names the runtimes that it exists in."""
OPTIONS = {
    "norm": (OptionDefinition(name="eps", domain=FloatRange(minimum=0.0), default=1e-6),),
    "activation": (OptionDefinition(name="gate", domain=Choice(values=("silu", "gelu_tanh")), default="silu"),),
    "rotary": (OptionDefinition(name="turn", domain=FloatRange(), default=1.0),),
    "attention": (OptionDefinition(name="scale", domain=FloatRange(minimum=0.0), default=1.0),),
    "row_linear": (OptionDefinition(name="gain", domain=FloatRange(), default=1.0),),
    "selected_logprob": (
        OptionDefinition(name="temperature", domain=FloatRange(minimum=0.0), default=1.0),
        OptionDefinition(name="soft_cap", domain=FloatRange(minimum=0.0), default=0.0),
        OptionDefinition(name="dtype", domain=Choice(values=("float32", "bfloat16")), default="float32"),
    ),
}


@hookimpl
def xcfg_operator_backends() -> tuple[OperatorBackendDescriptor, ...]:
    """Return them."""
    mine = (
        OperatorBackendDescriptor(
            operation=operation,
            backend_id=f"lab.{operation}",
            summary=f"{operation} in float32, with {' and '.join(item.name for item in options)} to choose",
            factory=f"lab.operators:{operation}",
            devices=("cpu",),
            options=options,
        )
        for operation, options in OPTIONS.items()
    )
    return (OWN, *mine)


@hookimpl
def xcfg_runtimes() -> tuple[RuntimeDescriptor, ...]:
    """Return the embedded runtime and Megatron-core, each with the option `model_overrides`."""
    arms = {side: arms for side, arms in TORCH.arms.items() if side != "reference"}
    return (
        evolve(
            TORCH,
            name="lab-torch",
            adapter="lab.embedded:Adapter",
            placement="lab.placement:torch",
            arms=arms,
            sources=("xcfg_torch", "lab"),
            generates=False,
        ),
        evolve(
            MEGATRON,
            name="lab-megatron",
            adapter="lab.mcore:Adapter",
            placement="lab.placement:megatron",
            sources=("xcfg_megatron", "lab"),
            policies={"selected_logprob": {"production": OWN.backend_id}},
            operators=("selected_logprob",),
        ),
    )
