"""The records of the backends of this package. No heavy import."""

from __future__ import annotations

from xcfg.schema.operators import OperatorBackendDescriptor

NORM_SHAPES = "x [..., H], weight [H], eps float -> [..., H] in the dtype of x"
ACTIVATION_SHAPES = "gate [..., d], up [..., d] -> [..., d] in their dtype"

BACKENDS = (
    OperatorBackendDescriptor(
        operation="norm",
        backend_id="torch.rms_norm_float32",
        summary="RMS norm in float32, weight included, rounded once to the input dtype",
        factory="xcfg_ops_gemm.norm:float32",
        aliases=("reference",),
        shapes=NORM_SHAPES,
        properties=("run-to-run",),
    ),
    OperatorBackendDescriptor(
        operation="norm",
        backend_id="torch.rms_norm_input_dtype",
        summary="RMS norm with every intermediate in the input dtype",
        factory="xcfg_ops_gemm.norm:input_dtype",
        shapes=NORM_SHAPES,
        properties=("run-to-run",),
    ),
    OperatorBackendDescriptor(
        operation="activation",
        backend_id="torch.swiglu_float32",
        summary="silu(gate) * up in float32, rounded once to the input dtype",
        factory="xcfg_ops_gemm.activation:float32",
        aliases=("reference",),
        shapes=ACTIVATION_SHAPES,
        properties=("run-to-run",),
    ),
    OperatorBackendDescriptor(
        operation="activation",
        backend_id="torch.swiglu_input_dtype",
        summary="silu(gate) * up in the input dtype, rounded after silu and after the product",
        factory="xcfg_ops_gemm.activation:input_dtype",
        shapes=ACTIVATION_SHAPES,
        properties=("run-to-run",),
    ),
    OperatorBackendDescriptor(
        operation="row_linear",
        backend_id="torch.row_linear_float32",
        summary="the partial product of a row-parallel linear layer in float32; ranks are added in float32",
        factory="xcfg_ops_gemm.row_linear:float32",
        aliases=("reference",),
        shapes="x [..., K_local], weight [N, K_local] -> partial [..., N] in float32; the runtime adds and rounds",
        properties=("run-to-run",),
    ),
)
