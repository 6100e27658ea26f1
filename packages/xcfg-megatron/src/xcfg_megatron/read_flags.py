"""Readers of flags of TransformerConfig. A flag that the configuration shows as set says nothing about what runs.

On a CPU with the local spec Megatron-core accepts many flags that change nothing. Such a flag is never `applied`: it
is a fallback where another value was seen to run, and unobservable where what it would change leaves no trace.
"""

from __future__ import annotations

import torch
from xcfg.plugin.readback import Reading, execution, state
from xcfg.schema._base import Value
from xcfg.schema.names import Exercised

from xcfg_megatron import switches
from xcfg_megatron.engine import Engine
from xcfg_megatron.readers import Layout, Reader, ran
from xcfg_megatron.switches import BY_PATH

WHY_UNSEEN = {
    "training.deterministic_mode": "on the local spec it selects the embedding's backward pass, and a score has none",
    "training.bias_dropout_fusion": "without bias and dropout the fused function is the same addition, so that which "
    "of the two ran leaves no trace",
    "training.rope_fusion": "Megatron-core built with it, and nothing counts the calls of its fused kernel",
    "training.batch_invariant_mode": "Megatron-core built with it, and nothing counts the calls of its kernels",
}
NO_BACKWARD = "activations are recomputed in a backward pass, and a score has none"


def _unseen(path: str) -> Reader:
    """Return the reader of a flag that, once set, cannot be seen; not set, nothing of it can run."""

    def read(engine: Engine, layout: Layout, requested: Value) -> Reading:
        value = bool(getattr(engine.config, BY_PATH[path].field))
        evidence = (state("TransformerConfig of the live model", f"{BY_PATH[path].field}={value}"),)
        reason = WHY_UNSEEN[path] if value else ""
        return Reading(value, None if value else False, evidence, exercised=Exercised.NO, reason=reason)

    return read


def _fused_swiglu(engine: Engine, layout: Layout, requested: Value) -> Reading:
    calls, expected = engine.calls["fused_swiglu"], engine.forwards * engine.shape.layers
    evidence = (execution("calls of the fused SwiGLU; forwards", f"{calls}; {engine.forwards}"),)
    actual = {0: False, expected: True}.get(calls) if expected else None
    return Reading(bool(engine.config.bias_activation_fusion), actual, evidence, exercised=ran(engine))


def _scaling(engine: Engine, layout: Layout, requested: Value) -> Reading:
    factors = [
        float(layer.self_attention.core_attention.softmax_scale) * engine.shape.head_dim**0.5
        for layer in engine.model.decoder.layers
    ]
    scaled = any(abs(factor - 1) > 0.001 for factor in factors)
    evidence = (state("softmax scale times sqrt(head_dim), by layer", ", ".join(f"{item:.3g}" for item in factors)),)
    many = Exercised.YES if len(factors) > 1 and engine.forwards else Exercised.UNKNOWN
    return Reading(bool(engine.config.apply_query_key_layer_scaling), scaled, evidence, exercised=many)


def _softmax_fusion(engine: Engine, layout: Layout, requested: Value) -> Reading:
    fused, total = engine.calls["fused_softmax"], engine.calls["softmax"]
    evidence = (execution("calls of the fused kernel; of the softmax", f"{fused}; {total}"),)
    configured = bool(engine.config.masked_softmax_fusion)
    if not total and not configured:
        evidence = (state("TransformerConfig of the live model", "masked_softmax_fusion=False"),)
        return Reading(False, False, evidence, exercised=Exercised.NO)
    actual = {0: False, total: True}.get(fused) if total else None
    return Reading(configured, actual, evidence, exercised=ran(engine))


def _softmax_dtype(engine: Engine, layout: Layout, requested: Value) -> Reading:
    """Scores that enter in float32 were computed so, whatever the flag says; narrow ones are widened by the kernel."""
    evidence = (execution("dtype of the scores that entered the softmax: calls", dict(engine.softmax_inputs)),)
    configured = bool(engine.config.attention_softmax_in_fp32)
    wide = set(engine.softmax_inputs) == {"float32"}
    narrow_weights = engine.dtype != "float32"
    reason = "" if engine.softmax_inputs else "no softmax of Megatron's own core attention ran"
    if engine.softmax_inputs and not wide:
        reason = "torch's softmax widens narrow scores inside its kernel, so that the precision of its sums is not seen"
    exercised = Exercised.YES if narrow_weights and wide else Exercised.NO
    return Reading(configured, True if wide else None, evidence, exercised=exercised, reason=reason)


def _matmul(engine: Engine, layout: Layout, requested: Value) -> Reading:
    value = bool(engine.config.disable_bf16_reduced_precision_matmul)
    on_cuda = engine.device.startswith("cuda")
    allowed = torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    evidence = (
        state("torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction", allowed),
        state("TransformerConfig of the live model", f"disable_bf16_reduced_precision_matmul={value}"),
    )
    if on_cuda:
        return Reading(value, not allowed, evidence, exercised=ran(engine))
    if not value:
        return Reading(False, False, evidence, exercised=Exercised.NO)
    return Reading(True, None, evidence, exercised=Exercised.NO, reason="the flag is CUDA's, and no CUDA runs")


def _persistent(engine: Engine, layout: Layout, requested: Value) -> Reading:
    kinds = sorted({type(item).__name__ for item in engine.model.modules() if "Norm" in type(item).__name__})
    live = bool(kinds) and all("Persist" in kind or kind == "FusedLayerNorm" for kind in kinds)
    evidence = (state("norms of the live model", ", ".join(kinds)),)
    configured = bool(engine.config.persist_layer_norm)
    return Reading(configured, live and configured, evidence, exercised=Exercised.NO)


def _recompute(engine: Engine, layout: Layout, requested: Value) -> Reading:
    value = engine.config.recompute_granularity or "none"
    evidence = (
        state("TransformerConfig of the live model", f"recompute_granularity={value}"),
        state("modes of the live model", f"training={engine.model.training}"),
    )
    if value == "none":
        return Reading("none", "none", evidence, exercised=Exercised.NO)
    return Reading(value, None, evidence, exercised=Exercised.NO, reason=NO_BACKWARD)


def _fp8(engine: Engine, layout: Layout, requested: Value) -> Reading:
    """8-bit products have 8-bit weights or Transformer Engine's linear layers; neither is what is seen otherwise."""
    kinds = {type(module).__name__ for module in engine.model.decoder.modules() if "Linear" in type(module).__name__}
    stored = sorted({str(item.dtype).removeprefix("torch.") for item in engine.model.parameters()})
    evidence = (
        execution("inputs of the linear layers of the decoder", dict(engine.linear_inputs)),
        state("linear layers and parameters", f"{', '.join(sorted(kinds))}; {', '.join(stored)}"),
    )
    outside = not any(kind.startswith("TE") for kind in kinds)
    actual = "none" if outside or engine.config.fp8 is None else None
    reason = "" if actual else "Transformer Engine does not show in which format a product ran"
    return Reading(engine.config.fp8 or "none", actual, evidence, exercised=Exercised.NO, reason=reason)


def _layer_spec(engine: Engine, layout: Layout, requested: Value) -> Reading:
    layers = engine.model.decoder.layers
    homes = sorted({type(layer.self_attention.linear_qkv).__module__ for layer in layers})
    evidence = (state("modules that the qkv projections come from", ", ".join(homes)),)
    of_te = {"transformer_engine" in home for home in homes}
    actual = None if len(of_te) != 1 else "transformer_engine" if True in of_te else "local"
    return Reading(engine.layer_spec, actual, evidence, exercised=ran(engine))


READERS: dict[str, Reader] = {
    **{path: _unseen(path) for path in WHY_UNSEEN},
    "training.bias_activation_fusion": _fused_swiglu,
    "training.query_key_layer_scaling": _scaling,
    "training.masked_softmax_fusion": _softmax_fusion,
    "training.softmax_in_fp32": _softmax_dtype,
    "training.disable_bf16_reduced_precision_matmul": _matmul,
    "training.persist_layer_norm": _persistent,
    switches.RECOMPUTE: _recompute,
    switches.FP8: _fp8,
    switches.LAYER_SPEC: _layer_spec,
}
