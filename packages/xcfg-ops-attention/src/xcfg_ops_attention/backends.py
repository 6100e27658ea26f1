"""The records of the backends of this package. No heavy import."""

from __future__ import annotations

from xcfg.schema.operators import OperatorBackendDescriptor

SHAPES = "query [Tq, Hq, D], key and value [Tk, Hkv, D], scale float, first int -> [Tq, Hq, D]; one causal sequence"

BACKENDS = (
    OperatorBackendDescriptor(
        operation="rotary",
        backend_id="torch.rotary_float32",
        summary="rotary embedding in float32, halves against each other, rounded once",
        factory="xcfg_ops_attention.rotary:float32",
        aliases=("reference",),
        shapes="query [T, Hq, D], key [T, Hk, D], cos [T, D/2], sin [T, D/2] -> (query, key)",
        properties=("run-to-run",),
    ),
    OperatorBackendDescriptor(
        operation="attention",
        backend_id="torch.attention_float32",
        summary="scores, softmax and products in float32, materialised whole, rounded once",
        factory="xcfg_ops_attention.attention:float32",
        aliases=("reference",),
        shapes=SHAPES,
        properties=("run-to-run",),
    ),
    OperatorBackendDescriptor(
        operation="attention",
        backend_id="torch.sdpa",
        summary="torch's scaled_dot_product_attention in the input dtype, with the kernel that torch picks",
        factory="xcfg_ops_attention.attention:torch_sdpa",
        shapes=SHAPES,
        properties=("run-to-run",),
    ),
)
