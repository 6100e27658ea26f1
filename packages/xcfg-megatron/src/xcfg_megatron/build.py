"""From a worker's specification to a live GPTModel on one rank, loaded with the checkpoint's weights."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from xcfg.errors import LaunchError
from xcfg.plugin.operators import BoundOperator, instantiate
from xcfg.plugin.protocols import RankContext
from xcfg.schema.worker import WorkerSpec

from xcfg_megatron.convert import Piece, Shape, pieces, to_megatron
from xcfg_megatron.logprob import VocabParallel
from xcfg_megatron.options import MegatronOptions, parse_options
from xcfg_megatron.patches import apply_cpu_patches

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
KNOWN = ("qwen3", "llama")


@dataclass
class Engine:
    """One rank: the model, where it stands, and what its hooks saw.

    entered: token ids of every forward. rotary: (positions, offset) that the rotary embedding was asked for.
    fused_calls: of Megatron's fused SwiGLU.
    """

    model: Any
    config: Any
    shape: Shape
    pieces: list[Piece]
    operator: BoundOperator
    options: MegatronOptions
    rank: int
    ranks: int
    device: str
    dtype: str
    patches: list[str]
    linear_inputs: Counter[str] = field(default_factory=Counter)
    entered: list[torch.Tensor] = field(default_factory=list)
    rotary: list[tuple[int, int]] = field(default_factory=list)
    fused_calls: int = 0
    forwards: int = 0
    last_fold: str = ""

    @property
    def group(self) -> Any:
        """The tensor-parallel process group."""
        from megatron.core import parallel_state

        return parallel_state.get_tensor_model_parallel_group()

    def clear(self) -> None:
        """Forget what the hooks saw."""
        self.linear_inputs.clear()
        self.entered.clear()
        self.rotary.clear()
        self.fused_calls = 0
        self.forwards = 0
        self.operator.calls = 0


def build_engine(spec: WorkerSpec, context: RankContext) -> Engine:
    """Return the engine of this rank. Raises ConfigError, LaunchError, PluginError."""
    options = parse_options(spec.options)
    dtype = str(spec.knobs.get("training.compute_dtype", "bfloat16"))
    config = _hf_config(Path(spec.checkpoint))
    shape = Shape.of(config, context.world_size, options.vocab_divisor)
    patches = apply_cpu_patches(context.device)
    _find_megatron()
    _join(context, spec.seed)
    try:
        model, mcore = _model(config, shape, DTYPES[dtype], context, spec.knobs)
    except Exception as error:
        raise LaunchError(f"Megatron-core did not build: {type(error).__name__}: {str(error)[:300]}") from error
    parts = pieces(shape)
    _load(model, parts, Path(spec.checkpoint), DTYPES[dtype], context)
    operator = instantiate(spec.operators["selected_logprob"])
    engine = Engine(
        model, mcore, shape, parts, operator, options, context.rank, context.world_size, context.device, dtype, patches
    )
    if isinstance(operator.function, VocabParallel):
        operator.function.group = engine.group
        operator.function.start = context.rank * (shape.padded // context.world_size)
        operator.function.vocab = shape.vocab
    _watch(engine)
    return engine


def _hf_config(checkpoint: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    kind = config.get("model_type")
    if kind not in KNOWN:
        raise LaunchError(f"xcfg-megatron converts {', '.join(KNOWN)}, not {kind!r}")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    scaled = rope.get("rope_type", rope.get("type", "default"))
    for name, wrong in {
        f"rope_type {scaled!r}": scaled not in ("default", None),
        "use_sliding_window": bool(config.get("use_sliding_window")),
        "layers of another attention": set(config.get("layer_types") or ()) - {"full_attention"} != set(),
        "partial_rotary_factor": rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)) != 1.0,
        "attention_bias": bool(config.get("attention_bias")),
        "mlp_bias": bool(config.get("mlp_bias")),
        f"hidden_act {config.get('hidden_act')!r}": config.get("hidden_act") != "silu",
    }.items():
        if wrong:
            raise LaunchError(f"the checkpoint has {name}, which xcfg-megatron does not convert")
    return config


def _find_megatron() -> None:
    try:
        import megatron.core
    except ImportError as error:
        raise LaunchError(
            f"Megatron-core cannot be imported: {error}", hint="pip install 'xcfg-megatron[cpu]'"
        ) from error
    del megatron


def _join(context: RankContext, seed: int) -> None:
    import torch.distributed as dist
    from megatron.core import parallel_state, tensor_parallel

    torch.manual_seed(seed)
    backend = "nccl" if context.device.startswith("cuda") else "gloo"
    if context.device.startswith("cuda"):
        torch.cuda.set_device(context.device)
    dist.init_process_group(backend, init_method=context.rendezvous, rank=context.rank, world_size=context.world_size)
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=context.world_size)
    if backend == "nccl":
        tensor_parallel.model_parallel_cuda_manual_seed(seed)
    else:
        from megatron.core.tensor_parallel.random import initialize_rng_tracker

        initialize_rng_tracker(inference_rng_tracker=True)


def leave() -> None:
    """Destroy the process groups of this rank, as far as they were made."""
    import torch.distributed as dist

    try:
        from megatron.core import parallel_state
    except ImportError:
        return
    if parallel_state.model_parallel_is_initialized():
        parallel_state.destroy_model_parallel()
    if dist.is_initialized():
        dist.destroy_process_group()


def _model(
    config: dict[str, Any], shape: Shape, dtype: torch.dtype, context: RankContext, knobs: dict[str, Any]
) -> tuple[Any, Any]:
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    rope = config.get("rope_parameters") or {}
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
        tensor_model_parallel_size=context.world_size,
        use_cpu_initialization=True,
        perform_initialization=False,
        masked_softmax_fusion=False,
        bias_activation_fusion=bool(knobs.get("training.bias_activation_fusion", False)),
        bias_dropout_fusion=False,
        apply_query_key_layer_scaling=bool(knobs.get("training.query_key_layer_scaling", False)),
        persist_layer_norm=False,
        apply_rope_fusion=False,
        gradient_accumulation_fusion=False,
    )
    model = GPTModel(
        config=mcore,
        transformer_layer_spec=get_gpt_layer_local_spec(qk_layernorm=shape.qk_norm, normalization="RMSNorm"),
        vocab_size=shape.padded,
        max_sequence_length=int(config.get("max_position_embeddings", 2048)),
        position_embedding_type="rope",
        rotary_base=float(rope.get("rope_theta", config.get("rope_theta", 10000.0))),
        share_embeddings_and_output_weights=shape.tied,
        parallel_output=True,
    )
    return model.to(dtype).to(context.device).eval().requires_grad_(False), mcore


def _load(model: Any, parts: list[Piece], checkpoint: Path, dtype: torch.dtype, context: RankContext) -> None:
    stored = Stored(checkpoint, dtype)
    own = dict(model.named_parameters())
    wanted = {piece.name: piece for piece in parts}
    if set(own) != set(wanted):
        odd = sorted(set(own) ^ set(wanted))
        raise LaunchError(f"Megatron-core's parameters are not those of the conversion: {', '.join(odd[:5])}")
    with torch.no_grad():
        for name, parameter in own.items():
            share = to_megatron(stored, wanted[name], context.rank, context.world_size)
            if share.shape != parameter.shape:
                raise LaunchError(f"{name} is {tuple(parameter.shape)}, the checkpoint's share {tuple(share.shape)}")
            parameter.copy_(share)


class Stored(dict[str, torch.Tensor]):
    """The checkpoint's tensors, cast, read one at a time."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        """Find which file holds which tensor."""
        super().__init__()
        self._dtype = dtype
        self._files: dict[str, Path] = {}
        for file in sorted(folder.glob("*.safetensors")):
            with safe_open(file, framework="pt") as opened:
                self._files.update(dict.fromkeys(opened.keys(), file))

    def __missing__(self, name: str) -> torch.Tensor:
        """Read one tensor; LaunchError when the checkpoint has none of that name."""
        if name not in self._files:
            raise LaunchError(f"the checkpoint has no tensor {name!r}")
        with safe_open(self._files[name], framework="pt") as opened:
            value: torch.Tensor = opened.get_tensor(name)
        return value.to(self._dtype)


def _watch(engine: Engine) -> None:
    """Hook the embedding (what entered) and every linear layer of the decoder (in which dtype it computed)."""

    def entering(module: Any, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
        ids: torch.Tensor = named["input_ids"] if "input_ids" in named else positional[0]
        engine.entered.append(ids.detach().clone())
        engine.forwards += 1

    def linear(module: Any, positional: tuple[Any, ...]) -> None:
        engine.linear_inputs[str(positional[0].dtype).removeprefix("torch.")] += 1

    def rotating(module: Any, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
        length = named["max_seq_len"] if "max_seq_len" in named else positional[0]
        offset = named.get("offset", positional[1] if len(positional) > 1 else 0)
        engine.rotary.append((int(length), int(offset)))

    _count_fused(engine)
    engine.model.embedding.register_forward_pre_hook(entering, with_kwargs=True)
    engine.model.rotary_pos_emb.register_forward_pre_hook(rotating, with_kwargs=True)
    for module in engine.model.decoder.modules():
        if type(module).__name__ in ("ColumnParallelLinear", "RowParallelLinear"):
            module.register_forward_pre_hook(linear)


def _count_fused(engine: Engine) -> None:
    """Count the calls of Megatron's fused SwiGLU in this process, through the name by which its MLP finds it."""
    from megatron.core.transformer import mlp

    plain = getattr(mlp.bias_swiglu_impl, "xcfg_plain", mlp.bias_swiglu_impl)

    def counting(*arguments: Any, **named: Any) -> Any:
        engine.fused_calls += 1
        return plain(*arguments, **named)

    counting.xcfg_plain = plain  # type: ignore[attr-defined]
    mlp.bias_swiglu_impl = counting
