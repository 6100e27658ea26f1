"""The list: what was planted, where the truth lies, and the experiment that an analysis gets to see.

An experiment holds the cause in its baseline, on one side, or does not hold it at all. Its interventions take the cause
away where it lies in a knob, and change things that are innocent. Nothing in it says which is which, and no operator or
option is named after a fault.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

KNOB, NOT_VARIED, IGNORED, OPTION, HIDDEN, WEIGHTS, SEMANTICS, NONE = (
    "declared knob",
    "declared knob that no case varies",
    "declared knob that the engine ignores",
    "runtime option",
    "neither requested nor reported",
    "weights",
    "transforms",
    "nothing",
)
"""Where the truth can lie."""
UNCOMPARABLE = (WEIGHTS, SEMANTICS, OPTION, IGNORED)
"""Truths that may leave nothing to compare."""
NAMED, WITHIN, OUTSIDE, STOPPED, EXPLAINED, IDLE, MISSED, ACCUSED = (
    "named rightly",
    "named, and within rounding",
    "said to be outside",
    "not compared, and why",
    "explained by precision, nobody accused",
    "said to have no effect",
    "not observed",
    "wrongly accused",
)
"""What an analysis can say, in the order of the columns of the table. The last two are never right."""
ROUNDING = (EXPLAINED, WITHIN)
"""Both are right where the cause only rounds elsewhere: no innocent is accused."""
DENSE = {"training.attention_backend": "sdpa"}
MODEL = {"training.attention_backend": "model_default"}
VLLM = {"rollout.attention_backend": "model_default"}
EAGER = ("training.attention_backend", "eager")
SMALLER = ("batch.size", 2)
LOGPROB = "operators.selected_logprob"
TINY = "tiny-qwen3-512"
PADDED = "tiny-qwen3-500"


@dataclass(frozen=True)
class Planted:
    """One cause. pair: rollout and training runtime. says: what was planted, on which side.

    truth: where it lies. names: knobs of which each is the cause, or words that the page has to hold. right: answers
    that are right. operators: `operation.side` -> backend or (backend, options). hidden: side -> what the engine is
    changed by without a word. tries: (knob, value) of the cases. where_rounded: the answers that are right instead on a
    processor that rounds the operands of float32 products to bfloat16 when it is asked to.
    """

    name: str
    pair: tuple[str, str]
    says: str
    truth: str
    right: tuple[str, ...]
    names: tuple[str, ...] = ()
    knobs: dict[str, Any] = field(default_factory=dict)
    operators: dict[str, Any] = field(default_factory=dict)
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    hidden: dict[str, dict[str, Any]] = field(default_factory=dict)
    tries: tuple[tuple[str, Any], ...] = (SMALLER,)
    model: str = TINY
    where_rounded: tuple[str, ...] = ()


TORCH = ("torch", "torch")
LAB = ("torch", "lab-torch")
SERVED = ("vllm", "torch")
BOTH = ("vllm", "megatron")
MCORE = ("torch", "megatron")
LAB_MCORE = ("torch", "lab-megatron")


def _operator(name: str, pair: tuple[str, str], place: str, options: dict[str, Any], says: str, **more: Any) -> Planted:
    """Return an operator with a wrong option on one side; a case puts the engine's own in its place."""
    operation, _, side = place.partition(".")
    path = f"operators.{place}"
    other = EAGER if pair[1] == "torch" else SMALLER
    return Planted(
        name=name,
        pair=pair,
        says=f"{says}, {side}",
        truth=KNOB,
        right=more.pop("right", (NAMED,)),
        names=(path,),
        operators={place: (f"lab.{operation}", options)},
        tries=((path, "native"), other, *(() if other is SMALLER else (SMALLER,))),
        **more,
    )


EMBEDDED = (
    Planted("clean-torch", TORCH, "nothing; sdpa on both sides", NONE, (EXPLAINED,), tries=(EAGER, SMALLER)),
    Planted(
        "clean-torch-eager", TORCH, "nothing; eager against sdpa", NONE, (EXPLAINED,),
        knobs={"rollout.attention_backend": "sdpa", "training.attention_backend": "eager"},
        tries=(SMALLER, ("batch.padding_side", "left")),
    ),
    Planted("clean-lab", LAB, "nothing; an engine that can be changed", NONE, (EXPLAINED,), tries=(EAGER, SMALLER)),
    Planted(
        "idle-sharding", TORCH, "FSDP over two ranks, training: moves no bit", KNOB, (IDLE,),
        names=("training.sharding",), knobs={"training.sharding": "fsdp"},
        tries=(("training.sharding", "unsharded"), SMALLER),
    ),
    Planted(
        "dtype-training", TORCH, "float32 against bfloat16, training", KNOB, ROUNDING,
        names=("training.compute_dtype",), knobs={"training.compute_dtype": "float32"},
        tries=(("training.compute_dtype", "bfloat16"), EAGER, SMALLER),
    ),
    Planted(
        "dtype-rollout", TORCH, "float16 against float32, rollout", KNOB, ROUNDING,
        names=("rollout.dtype",), knobs={"rollout.dtype": "float16", "training.compute_dtype": "float32"},
        tries=(("rollout.dtype", "float32"), EAGER, SMALLER),
    ),
    _operator("temperature-training", TORCH, "selected_logprob.training", {"temperature": 0.9}, "temperature 0.9"),
    _operator("temperature-rollout", TORCH, "selected_logprob.rollout", {"temperature": 1.05}, "temperature 1.05"),
    _operator("soft-cap", TORCH, "selected_logprob.rollout", {"soft_cap": 4.0}, "logits capped softly at 4"),
    _operator(
        "bf16-softmax", TORCH, "selected_logprob.training", {"dtype": "bfloat16"}, "log-softmax in bfloat16: rounds",
        right=ROUNDING,
    ),
    _operator(
        "temperature-tiny", TORCH, "selected_logprob.training", {"temperature": 1.0002}, "temperature 1.0002: little",
        right=ROUNDING,
    ),
    Planted(
        "option-eps", LAB, "rms_norm_eps 0.01 for 1e-6, training", OPTION, (OUTSIDE,), names=("model_overrides",),
        options={"training": {"model_overrides": {"rms_norm_eps": 0.01}}}, tries=(EAGER, SMALLER),
    ),
    Planted(
        "option-soft-cap", LAB, "final logits capped softly at 4, training", OPTION, (OUTSIDE,),
        names=("model_overrides",), options={"training": {"model_overrides": {"final_logit_softcapping": 4.0}}},
        tries=(EAGER, SMALLER),
    ),
    Planted(
        "option-matmul", TORCH, "float32_matmul_precision medium, float32 training", OPTION, ROUNDING,
        knobs={"rollout.dtype": "float32", "training.compute_dtype": "float32"},
        options={"training": {"float32_matmul_precision": "medium"}}, tries=(EAGER, SMALLER), where_rounded=(OUTSIDE,),
    ),
    Planted(
        "hidden-scale", LAB, "attention scores scaled by 0.8, training", HIDDEN, (OUTSIDE,),
        hidden={"training": {"attention_scale": 0.8}}, tries=(EAGER, SMALLER),
    ),
    Planted(
        "stale-weights", LAB, "one matrix of layer 1 larger by 1 %, training", WEIGHTS, (STOPPED,),
        names=("INVALID_IDENTITY", "model.layers.1.mlp.down_proj.weight"),
        hidden={"training": {"layer_1_gain": 1.01}},
    ),
)  # fmt: skip
"""Seconds each: the embedded runtime on both sides."""

MEGATRON = (
    Planted("clean-megatron", MCORE, "nothing", NONE, (EXPLAINED,)),
    _operator("norm-megatron", MCORE, "norm.training", {"eps": 0.01}, "norm with eps 0.01 for 1e-6"),
    _operator("activation-megatron", MCORE, "activation.training", {"gate": "gelu_tanh"}, "GELU in place of SiLU"),
    Planted(
        "vocabulary-knob", MCORE, "softmax over 12 padded columns, training", KNOB, (NAMED,),
        names=("training.vocab_padding_policy",), knobs={"training.vocab_padding_policy": "include"},
        tries=(("training.vocab_padding_policy", "mask"), SMALLER), model=PADDED,
    ),
    Planted(
        "vocabulary-option", MCORE, "softmax over 12 padded columns, training", OPTION, (STOPPED,),
        names=("NOT_COMPARABLE", "sums over padded columns"),
        options={"training": {"vocab_padding_policy": "include"}}, model=PADDED,
    ),
    Planted(
        "layer-scaling", MCORE, "query-key layer scaling, training: rounds elsewhere", KNOB, ROUNDING,
        names=("training.query_key_layer_scaling",), knobs={"training.query_key_layer_scaling": True},
        tries=(("training.query_key_layer_scaling", False), SMALLER),
    ),
    Planted(
        "softmax-switch", MCORE, "softmax_in_fp32 off, training: accepted, ignored on a CPU", IGNORED, (STOPPED,),
        names=("UNOBSERVABLE", "training.softmax_in_fp32"), knobs={"training.softmax_in_fp32": False},
        tries=(("training.softmax_in_fp32", True), SMALLER),
    ),
    Planted(
        "temperature-megatron", MCORE, "temperature 0.7, training", SEMANTICS, (STOPPED,),
        names=("INVALID_IDENTITY", "temperature:0.7"), knobs={"training.temperature": 0.7},
    ),
    Planted(
        "option-rope-megatron", LAB_MCORE, "rope_theta 1e5 for 1e6, training", OPTION, (OUTSIDE,),
        names=("model_overrides",), options={"training": {"model_overrides": {"rope_theta": 1e5}}},
    ),
    Planted(
        "hidden-scale-megatron", LAB_MCORE, "attention scores scaled by 0.8, training", HIDDEN, (OUTSIDE,),
        hidden={"training": {"attention_scale": 0.8}},
    ),
    Planted(
        "stale-weights-megatron", LAB_MCORE, "one matrix of layer 1 larger by 1 %, training", WEIGHTS, (STOPPED,),
        names=("INVALID_IDENTITY", "model.layers.1.mlp.down_proj.weight"), hidden={"training": {"layer_1_gain": 1.01}},
    ),
)  # fmt: skip
"""The embedded runtime against Megatron-core, TP 1."""

KV = "rollout.kv_cache_dtype"
ENGINE = (
    Planted("clean-vllm", SERVED, "nothing", NONE, (EXPLAINED,), tries=(EAGER, SMALLER)),
    Planted("clean-vllm-megatron", BOTH, "nothing", NONE, (EXPLAINED,)),
    Planted(
        "kv-cache", SERVED, "fp8 cache, rollout", KNOB, (NAMED,), names=(KV,), knobs={KV: "fp8"},
        tries=((KV, "auto"), EAGER, SMALLER),
    ),
    Planted(
        "kv-cache-not-varied", SERVED, "fp8 cache, rollout", NOT_VARIED, (OUTSIDE,), names=(KV,), knobs={KV: "fp8"},
        tries=(EAGER, SMALLER),
    ),
    _operator("norm-vllm", SERVED, "norm.rollout", {"eps": 0.01}, "norm with eps 0.01 for 1e-6"),
    _operator("rotary-vllm", SERVED, "rotary.rollout", {"turn": 0.9}, "rotary angles times 0.9"),
    _operator("attention-vllm", BOTH, "attention.rollout", {"scale": 0.8}, "attention scores scaled by 0.8"),
    _operator(
        "soft-cap-vllm", SERVED, "selected_logprob.rollout", {"soft_cap": 15.0}, "logits capped softly at 15: little",
        right=ROUNDING,
    ),
    Planted(
        "custom-ops", SERVED, "custom ops off, rollout: rounds elsewhere", KNOB, ROUNDING,
        names=("rollout.custom_ops",), knobs={"rollout.custom_ops": "none"},
        tries=(("rollout.custom_ops", "all"), EAGER, SMALLER),
    ),
    Planted(
        "option-rope-vllm", SERVED, "rope_theta overridden where this vLLM does not read it, rollout: moves no bit",
        OPTION, (EXPLAINED,), options={"rollout": {"hf_overrides": {"rope_theta": 1e5}}}, tries=(EAGER, SMALLER),
    ),
    Planted(
        "option-rope-parameters-vllm", SERVED, "rope_theta 1e5 for 1e6, rollout", OPTION, (OUTSIDE,),
        names=("hf_overrides",), tries=(EAGER, SMALLER),
        options={"rollout": {"hf_overrides": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e5}}}},
    ),
    Planted(
        "plugin-scale-vllm", SERVED, "a plugin of vLLM scales attention scores by 0.8, rollout", HIDDEN, (OUTSIDE,),
        hidden={"rollout": {"engine_attention_scale": 0.8}}, tries=(EAGER, SMALLER),
    ),
)  # fmt: skip
"""vLLM as the rollout."""

PLANTED = (*EMBEDDED, *MEGATRON, *ENGINE)
