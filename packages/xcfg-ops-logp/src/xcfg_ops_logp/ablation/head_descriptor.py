"""What `xcfg.ablation_linear_logp` declares, and its options as knobs `logprob.*`. No heavy import.

No name here is one of `xcfg.ablation_logp`, because a knob is an option of one operator alone.
"""

from __future__ import annotations

from xcfg.schema.knobs import Choice, IntRange
from xcfg.schema.names import SourceClass, Tier
from xcfg.schema.operators import OperatorBackendDescriptor

from xcfg_ops_logp.ablation.descriptor import option
from xcfg_ops_logp.ablation.knobs import option_knobs
from xcfg_ops_logp.kernel_backends import LINEAR_SHAPES
from xcfg_ops_logp.torch_backends import IGNORE

OPERATION = "linear_selected_logprob"
MATERIALIZATIONS = ("full_prefill", "chunked", "last_token_only")
KERNELS = ("torch", "fixed_order")
GEMM_DTYPES = ("as_is", "bfloat16", "float32", "float64")
FUSIONS = ("none", "chunked_linear_ce")
CHUNK_ROWS = 64
BLOCK_COLUMNS = 8192
BLOCKS = "it acts where fusion_impl is chunked_linear_ce and vocab_block_size is below the vocabulary"
ACTS_WHERE = {
    "materialization": f"it acts where a call has more rows than one product; of chunked, chunk_size (0: {CHUNK_ROWS})",
    "chunk_size": "it acts where materialization is chunked and a call has more rows",
    "head_gemm_dtype": "it acts where the weights have another dtype",
    "fusion_impl": BLOCKS,
    "vocab_block_size": BLOCKS,
}
"""As descriptor.ACTS_WHERE."""


OPTIONS = (
    option(
        "materialization",
        Choice(values=MATERIALIZATIONS),
        MATERIALIZATIONS[0],
        "rows of one head product: all that are handed over, chunk_size of them, or one, as a decode step has",
    ),
    option(
        "chunk_size",
        IntRange(minimum=0),
        0,
        f"rows of one head product where materialization is chunked; 0 takes {CHUNK_ROWS}",
    ),
    option(
        "head_gemm_kernel",
        Choice(values=KERNELS),
        KERNELS[0],
        "the head product: the library's, or one whose order over K is the same for a row in every batch",
    ),
    option(
        "head_gemm_dtype",
        Choice(values=GEMM_DTYPES),
        GEMM_DTYPES[0],
        "dtype that hidden states and head are cast to before their product, and that logits come out in",
    ),
    option(
        "fusion_impl",
        Choice(values=FUSIONS),
        FUSIONS[0],
        "whether logits are formed, or the vocabulary is multiplied and summed up block by block",
    ),
    option(
        "vocab_block_size",
        IntRange(minimum=0),
        0,
        f"columns of one block of chunked_linear_ce; 0 takes {BLOCK_COLUMNS}, or half of a smaller vocabulary",
    ),
    IGNORE,
)

ABLATION_LINEAR = OperatorBackendDescriptor(
    operation=OPERATION,
    backend_id="xcfg.ablation_linear_logp",
    summary="one factor of the head at a time: rows of a product, its kernel and dtype, fusion and tiling are options",
    factory="xcfg_ops_logp.ablation.head:AblationLinear",
    shapes=LINEAR_SHAPES,
    properties=("run-to-run",),
    options=OPTIONS,
    runtimes=("torch", "megatron"),
)

KNOBS = option_knobs(
    OPERATION,
    OPTIONS,
    {
        "materialization": (SourceClass.EXECUTION, Tier.RECORDED),
        "chunk_size": (SourceClass.EXECUTION, Tier.RECORDED),
        "head_gemm_kernel": (SourceClass.REDUCTION, Tier.RECORDED),
        "head_gemm_dtype": (SourceClass.REPRESENTATION, Tier.IDENTICAL),
        "fusion_impl": (SourceClass.EXECUTION, Tier.RECORDED),
        "vocab_block_size": (SourceClass.REDUCTION, Tier.RECORDED),
    },
)
