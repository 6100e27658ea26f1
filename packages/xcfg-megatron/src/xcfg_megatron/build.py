"""From a worker's specification to a live GPTModel on one rank, loaded with the checkpoint's weights."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from xcfg.errors import LaunchError
from xcfg.plugin.operators import BoundOperator, instantiate
from xcfg.plugin.protocols import RankContext, ShardedLogprob
from xcfg.schema._base import Value
from xcfg.schema.worker import WorkerSpec

from xcfg_megatron.convert import Shape, pieces
from xcfg_megatron.engine import Engine
from xcfg_megatron.errors import UnsupportedBuildError
from xcfg_megatron.head import place, refuse_early
from xcfg_megatron.load import hf_config, load
from xcfg_megatron.options import parse_options
from xcfg_megatron.parallel import join
from xcfg_megatron.patches import apply_cpu_patches, patch_rotary_slice
from xcfg_megatron.switches import LAYER_SPEC, TENSOR_PARALLEL, config_fields, unusual

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}

_DELETED: dict[str, str] = {}
_SET_BY_MEGATRON: dict[str, str] = {}


def build_engine(spec: WorkerSpec, context: RankContext) -> Engine:
    """Return the engine of this rank.

    Raises ConfigError, LaunchError, PluginError; UnsupportedBuildError where Megatron-core refuses a knob.
    """
    options = parse_options(spec.options)
    dtype = str(spec.knobs.get("training.compute_dtype", "bfloat16"))
    config = hf_config(Path(spec.checkpoint))
    tensor = int(str(spec.knobs.get(TENSOR_PARALLEL, 1)))
    shape = Shape.of(config, tensor, options.vocab_divisor)
    patches = apply_cpu_patches(context.device)
    _find_megatron()
    patches += unset_variables()
    ranks = join(context, tensor, spec.seed)
    if ranks.context > 1:
        patches += patch_rotary_slice(context.device)
    operators = {operation: instantiate(binding) for operation, binding in spec.operators.items()}
    _refuse_early(spec.knobs, dtype)
    refuse_early(operators, tensor)
    try:
        model, mcore = _model(config, shape, DTYPES[dtype], context, spec.knobs, operators)
    except UnsupportedBuildError:
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {str(error)[:300]}"
        named = unusual(spec.knobs)
        if named:
            raise UnsupportedBuildError(f"Megatron-core refuses {', '.join(named)}: {said}") from error
        raise LaunchError(f"Megatron-core did not build: {said}") from error
    finally:
        _SET_BY_MEGATRON.update({key: value for key, value in os.environ.items() if key.startswith("NVTE_")})
    name = str(spec.knobs.get(LAYER_SPEC, "local"))
    parts = pieces(shape, fused_norms=name != "local")
    load(model, parts, Path(spec.checkpoint), ranks)
    engine = Engine(model, mcore, shape, parts, operators, options, ranks, context.device, dtype, name, patches)
    if isinstance(engine.operator.function, ShardedLogprob):
        engine.operator.function.place(ranks.tensor_group, ranks.tensor_rank * (shape.padded // ranks.tensor))
    from xcfg_megatron.watch import watch

    watch(engine)
    place(engine)
    return engine


def _find_megatron() -> None:
    try:
        import megatron.core
    except ImportError as error:
        raise LaunchError(
            f"Megatron-core cannot be imported: {error}", hint="pip install 'xcfg-megatron[cpu]'"
        ) from error
    del megatron


def unset_variables() -> list[str]:
    """Delete every NVTE_* variable; return what the process was started with of them, for every engine it builds.

    GPTModel sets some when it is built and asserts that they are unset or equal when it is built again; those it set
    itself are not listed.
    """
    for name in [key for key in os.environ if key.startswith("NVTE_")]:
        value = os.environ.pop(name)
        if _SET_BY_MEGATRON.get(name) != value:
            _DELETED[name] = value
    return [f"the environment variable {name}={value} was deleted" for name, value in sorted(_DELETED.items())]


def _refuse_early(knobs: Mapping[str, Value], dtype: str) -> None:
    """Refuse what Megatron-core would accept here and fail at in the middle of a score."""
    from importlib.util import find_spec

    kernel = "scaled_masked_softmax_cuda"
    if knobs.get("training.masked_softmax_fusion") is True and dtype != "float32" and find_spec(kernel) is None:
        raise UnsupportedBuildError(
            f"Megatron-core cannot run training.masked_softmax_fusion=True: there is no module {kernel!r} (CUDA, Apex)"
        )


def _model(
    config: dict[str, Any],
    shape: Shape,
    dtype: torch.dtype,
    context: RankContext,
    knobs: Mapping[str, Value],
    operators: Mapping[str, BoundOperator],
) -> tuple[Any, Any]:
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    from xcfg_megatron.operators import classes
    from xcfg_megatron.spec import layer_spec

    rope = config.get("rope_parameters") or {}
    tensor = int(str(knobs.get(TENSOR_PARALLEL, 1)))
    mcore = TransformerConfig(
        num_layers=shape.layers,
        hidden_size=shape.hidden,
        num_attention_heads=shape.heads,
        num_query_groups=shape.groups,
        kv_channels=shape.head_dim,
        ffn_hidden_size=shape.ffn,
        normalization="RMSNorm",
        layernorm_epsilon=float(config["rms_norm_eps"]),
        qk_layernorm=shape.qk_norm,
        add_bias_linear=False,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype is torch.bfloat16,
        fp16=dtype is torch.float16,
        tensor_model_parallel_size=tensor,
        context_parallel_size=context.world_size // tensor,
        use_cpu_initialization=True,
        perform_initialization=False,
        gradient_accumulation_fusion=False,
        **config_fields(knobs),
    )
    model = GPTModel(
        config=mcore,
        transformer_layer_spec=layer_spec(
            str(knobs.get(LAYER_SPEC, "local")),
            qk_norm=shape.qk_norm,
            layers=shape.layers,
            injected=classes(operators),
        ),
        vocab_size=shape.padded,
        max_sequence_length=int(config.get("max_position_embeddings", 2048)),
        position_embedding_type="rope",
        rotary_base=float(rope.get("rope_theta", config.get("rope_theta", 10000.0))),
        share_embeddings_and_output_weights=shape.tied,
        parallel_output=True,
    )
    return model.to(dtype).to(context.device).eval().requires_grad_(False), mcore
