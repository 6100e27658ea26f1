"""The operator backends of this package. No heavy import."""

from __future__ import annotations

from xcfg.schema.operators import OperatorBackendDescriptor

NATIVE = "megatron.vocab_parallel_logprob"
OWN_HEAD = "megatron.head_then_logprob"
TE_CROSS_ENTROPY = "megatron.cross_entropy_te"
OWN = {
    "norm": "megatron.norm",
    "activation": "megatron.activation",
    "attention": "megatron.core_attention",
    "row_linear": "megatron.row_linear",
}
"""Operation -> the id that stands for what Megatron-core builds itself; binding it injects nothing."""

STANDS_FOR = {
    "norm": ("torch.nn.modules.normalization.RMSNorm",),
    "activation": ("megatron.core.transformer.mlp.MLP",),
    "attention": ("megatron.core.transformer.dot_product_attention.DotProductAttention",),
    "row_linear": ("megatron.core.tensor_parallel.layers.RowParallelLinear",),
}
"""Operation -> the classes that its id in OWN stands for, by full name; Transformer Engine has an RMSNorm too."""

_SUMMARIES = {
    "norm": "the norm that Megatron-core builds into every norm slot: torch.nn.RMSNorm on the local spec",
    "activation": "the gated activation of Megatron-core's MLP, fused or not as its configuration says",
    "attention": "Megatron-core's DotProductAttention: baddbmm, masked softmax, bmm in the parameters' dtype",
    "row_linear": "Megatron-core's RowParallelLinear: product and reduction in the parameters' dtype",
}


def _logprob(
    backend: str, summary: str, factory: str, alias: str = "", devices: tuple[str, ...] = ("cpu", "cuda")
) -> OperatorBackendDescriptor:
    return OperatorBackendDescriptor(
        operation="selected_logprob",
        backend_id=backend,
        summary=summary,
        factory=factory,
        targets=("training",),
        devices=devices,
        properties=("run-to-run",) if "cpu" in devices else (),
        runtimes=("megatron",),
        collectives=("all_reduce",),
        aliases=(alias,) if alias else (),
    )


BACKENDS = (
    _logprob(
        NATIVE,
        "float32 maximum, sum of exponentials and selected logit per vocabulary shard, all-reduced",
        "xcfg_megatron.logprob:VocabParallel",
    ),
    _logprob(
        "megatron.cross_entropy_unfused",
        "Megatron-core's vocab_parallel_cross_entropy, the loss of labels= without fusion, negated",
        "xcfg_megatron.cross_entropy:Unfused",
        "mcore_unfused",
    ),
    _logprob(
        "megatron.cross_entropy_fused",
        "Megatron-core's fused_vocab_parallel_cross_entropy (torch.compile), negated",
        "xcfg_megatron.cross_entropy:Fused",
        "mcore_native_fused",
    ),
    _logprob(
        TE_CROSS_ENTROPY,
        "Transformer Engine's parallel_cross_entropy, negated; ran by hand on an H200, in no test",
        "xcfg_megatron.cross_entropy:TransformerEngine",
        "mcore_te_fused",
        ("cuda",),
    ),
    OperatorBackendDescriptor(
        operation="linear_selected_logprob",
        backend_id=OWN_HEAD,
        summary="the model's own output layer, whose logits `selected_logprob` is handed; nothing is injected",
        factory="xcfg_megatron.own:EnginesOwn",
        targets=("training",),
        runtimes=("megatron",),
    ),
    *(
        OperatorBackendDescriptor(
            operation=operation,
            backend_id=backend,
            summary=_SUMMARIES[operation],
            factory="xcfg_megatron.own:EnginesOwn",
            targets=("training",),
            runtimes=("megatron",),
        )
        for operation, backend in OWN.items()
    ),
)
