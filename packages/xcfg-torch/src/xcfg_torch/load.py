"""Load a Hugging Face causal LM, offline, in one dtype, with a chosen attention implementation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from xcfg.errors import LaunchError

from xcfg_torch.options import TorchOptions

DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
}
COARSE_FIRST = ("bfloat16", "float16", "float32", "float64")


@dataclass(frozen=True)
class Anatomy:
    """The parts of a causal LM that hooks attach to.

    decoder: the module that the head follows. blocks: decoder layers in order. attention: per block its
    attention modules. rotary: modules called with (hidden, position_ids), possibly none.
    """

    model: Any
    decoder: Any
    blocks: tuple[Any, ...]
    attention: tuple[tuple[int, Any], ...]
    rotary: tuple[Any, ...]


def dtype_name(dtype: torch.dtype) -> str:
    """Return `bfloat16` for torch.bfloat16."""
    return str(dtype).removeprefix("torch.")


def prepare_process(options: TorchOptions, device: str, seed: int) -> None:
    """Set torch's global switches of this worker; LaunchError when the device is not there."""
    if device.startswith("cuda"):
        if not torch.cuda.is_available():
            raise LaunchError(
                f"the device {device!r} was asked for and torch {torch.__version__} sees no CUDA device",
                hint="Name cpu (--devices, --rollout-devices, --training-devices), or install a CUDA build of torch.",
            )
        count = torch.cuda.device_count()
        if (torch.device(device).index or 0) >= count:
            raise LaunchError(
                f"the device {device!r} was asked for and torch sees {count} CUDA devices",
                hint=f"Use cuda:0 to cuda:{count - 1}; CUDA_VISIBLE_DEVICES hides and renumbers devices.",
            )
        torch.cuda.set_device(torch.device(device))
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    torch.use_deterministic_algorithms(options.deterministic_algorithms)
    torch.set_float32_matmul_precision(options.float32_matmul_precision)
    torch.manual_seed(seed)


def load_model(folder: Path, dtype: torch.dtype, attention: str, device: str) -> Any:
    """Return the model in `folder` in eval mode without gradients.

    attention: a Hugging Face attention implementation, or `model_default`. Raises LaunchError when the folder
    is no whole causal LM: a tensor that is missing would otherwise be random.
    """
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    quiet: Any = logging
    quiet.disable_progress_bar()
    loader: Any = AutoModelForCausalLM
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        if getattr(config, "quantization_config", None):
            raise LaunchError(
                f"the checkpoint {folder.name!r} is quantised, which this runtime does not score",
                hint="Save it dequantised, or score it with a runtime that has its kernels.",
            )
        chosen = {} if attention == "model_default" else {"attn_implementation": attention}
        model, info = loader.from_pretrained(
            folder, dtype=dtype, local_files_only=True, output_loading_info=True, **chosen
        )
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise LaunchError(
            f"{folder.name!r} cannot be loaded as a causal LM: {type(error).__name__}: {error}",
            hint="The folder needs config.json and *.safetensors of an architecture that transformers knows.",
        ) from error
    _refuse_incomplete(folder, info)
    model.to(device)
    model.eval()
    model.requires_grad_(False)
    return model


def _refuse_incomplete(folder: Path, info: dict[str, Any]) -> None:
    faults = {
        name: sorted(map(str, info.get(name) or ())) for name in ("missing_keys", "mismatched_keys", "error_msgs")
    }
    found = [f"{name}: {', '.join(values[:3])}" for name, values in faults.items() if values]
    if found:
        raise LaunchError(
            f"the checkpoint {folder.name!r} does not fill the model: {'; '.join(found)}",
            hint="A parameter without a stored tensor would be random; complete the checkpoint.",
        )


def anatomy(model: Any) -> Anatomy:
    """Return the parts of `model`; LaunchError when its decoder blocks cannot be found."""
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else getattr(model, "model", model)
    count = model.config.get_text_config().num_hidden_layers
    lists = [part for part in decoder.children() if isinstance(part, torch.nn.ModuleList) and len(part) == count]
    if not lists:
        raise LaunchError(
            f"no list of {count} decoder blocks was found in {type(decoder).__name__}",
            hint="This runtime scores decoder-only models that hold their blocks in one ModuleList.",
        )
    blocks = tuple(lists[0])
    attention = tuple(
        (index, part)
        for index, block in enumerate(blocks)
        for part in block.modules()
        if "attention" in type(part).__name__.lower() and hasattr(part, "layer_idx")
    )
    rotary = tuple(part for part in decoder.modules() if "rotaryembedding" in type(part).__name__.lower())
    return Anatomy(model, decoder, blocks, attention, rotary)
