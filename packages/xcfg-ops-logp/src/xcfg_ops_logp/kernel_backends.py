"""The Triton kernel of `selected_logprob`, and all backends of `linear_selected_logprob`. No heavy import.

A property is declared where a test on a card holds it: that of the blocks rests on the library's choice of a kernel for
one shape, that of the tiles on the kernel alone.
"""

from __future__ import annotations

from xcfg.schema.knobs import Choice, IntRange
from xcfg.schema.operators import OperatorBackendDescriptor, OptionDefinition

from xcfg_ops_logp.torch_backends import IGNORE

INVARIANT = ("run-to-run", "batch-invariant")
HALF = ("bfloat16", "float16")
LINEAR_SHAPES = "hidden [N, K], weight [V, K] over the whole vocabulary, selected [N]; any N >= 0, V and K >= 1"

TRITON = OperatorBackendDescriptor(
    operation="selected_logprob",
    backend_id="xcfg.triton_logp",
    summary="Triton: one read of the logits, online softmax in float32 in a fixed order, with gradient",
    factory="xcfg_ops_logp.triton_logits:build",
    devices=("cuda",),
    dtypes=(*HALF, "float32"),
    shapes="logits [N, V] over the whole vocabulary, selected [N]; any N >= 0 and V >= 1",
    properties=INVARIANT,
    options=(IGNORE,),
)


def _linear(
    backend: str,
    factory: str,
    summary: str,
    *,
    properties: tuple[str, ...],
    options: tuple[OptionDefinition, ...] = (IGNORE,),
    dtypes: tuple[str, ...] = (*HALF, "float32"),
    devices: tuple[str, ...] = ("cuda",),
    aliases: tuple[str, ...] = (),
    shapes: str = LINEAR_SHAPES,
) -> OperatorBackendDescriptor:
    return OperatorBackendDescriptor(
        operation="linear_selected_logprob",
        backend_id=backend,
        summary=summary,
        factory=f"xcfg_ops_logp.linear.{factory}",
        devices=devices,
        dtypes=dtypes,
        shapes=shapes,
        properties=properties,
        options=options,
        aliases=aliases,
    )


def _rows(default: int) -> OptionDefinition:
    return OptionDefinition(
        name="chunk_rows",
        domain=IntRange(minimum=1),
        default=default,
        summary="rows of logits that exist at a time; bounds memory",
    )


LINEAR_REFERENCE = _linear(
    "xcfg.reference_linear_logp",
    "reference:build",
    "product and log-softmax in float64, a block of rows at a time",
    properties=("run-to-run",),
    options=(_rows(32), IGNORE),
    dtypes=(*HALF, "float32", "float64"),
    devices=("cpu", "cuda"),
    aliases=("reference",),
)
TORCH = _linear(
    "xcfg.torch_linear_logp",
    "chunked:build",
    "torch's product in the dtype of the weights and log_softmax in float32, a block of rows at a time, with gradients",
    properties=("run-to-run",),
    options=(_rows(512), IGNORE),
    dtypes=(*HALF, "float32", "float64"),
    devices=("cpu", "cuda"),
    aliases=("chunked_linear_ce",),
)
BLOCKS = _linear(
    "xcfg.triton_blocks_linear_logp",
    "fused:build_blocks",
    "the library's product of 2,048 padded rows and 16,896 columns, summed up by Triton before the next; gradients",
    properties=INVARIANT,
)
TILES = _linear(
    "xcfg.triton_tiles_linear_logp",
    "fused:build_tiles",
    "one Triton kernel of product and online softmax that writes no logit, with gradients",
    properties=INVARIANT,
    options=(
        OptionDefinition(
            name="downcast_at",
            domain=Choice(values=("logits", "never")),
            default="logits",
            summary="whether logits are rounded to the dtype of the weights before they are summed up",
        ),
        IGNORE,
    ),
    dtypes=HALF,
    shapes=f"{LINEAR_SHAPES}, K a multiple of 8",
)
LIGER = _linear(
    "xcfg.liger_linear_logp",
    "liger:build",
    "Liger's fused linear cross entropy as it is, without gradients",
    properties=("run-to-run",),
)

KERNEL_BACKENDS = (TRITON, LINEAR_REFERENCE, TORCH, BLOCKS, TILES, LIGER)
