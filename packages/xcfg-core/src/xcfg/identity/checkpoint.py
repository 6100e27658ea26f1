"""What a Hugging Face checkpoint folder holds, as digests: the expectation against which engines attest weights.

torch is imported only by expected_weights, which casts.
"""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path

from xcfg.errors import IdentityError
from xcfg.identity.attest import weight_digest
from xcfg.schema.codec import digest, read_strict

MAX_HEADER = 100 * 1024 * 1024
VOLATILE_CONFIG = ("transformers_version", "_name_or_path")
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
)


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a checkpoint folder, sorted; IdentityError when there is none."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise IdentityError(
            f"the checkpoint folder {str(folder)!r} has no *.safetensors file",
            hint="Save the model with save_pretrained(safe_serialization=True); pickled weights are never read.",
        )
    return files


def stored_tensors(folder: Path) -> dict[str, str]:
    """Return per tensor name `dtype:shape:sha256` of the stored bytes, read in 8 MiB pieces."""
    result: dict[str, str] = {}
    for file in weight_files(folder):
        with file.open("rb") as stream:
            size = struct.unpack("<Q", stream.read(8).ljust(8, b"\0"))[0]
            if size > MAX_HEADER:
                raise IdentityError(
                    f"{file.name} in {str(folder)!r} is no safetensors file: its header says {size} bytes"
                )
            try:
                header = json.loads(stream.read(size))
                entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
                base = 8 + size
                for name, entry in sorted(entries.items()):
                    start, stop = entry["data_offsets"]
                    shape = "x".join(str(length) for length in entry["shape"])
                    stream.seek(base + start)
                    result[name] = f"{entry['dtype']}:{shape}:{_hash_span(stream, stop - start)}"
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise IdentityError(
                    f"{file.name} in {str(folder)!r} is a malformed safetensors file: {error}"
                ) from None
    return result


def _hash_span(stream: object, length: int) -> str:
    state = hashlib.sha256()
    while length > 0:
        piece = stream.read(min(length, 8 << 20))  # type: ignore[attr-defined]
        if not piece:
            raise ValueError("the file ends before its last tensor")
        state.update(piece)
        length -= len(piece)
    return state.hexdigest()


def checkpoint_digest(folder: Path) -> str:
    """Return one SHA-256 over the stored tensors and config.json: equal for equal models, wherever they lie.

    Which library version wrote config.json, and from where, says nothing about the model and is left out.
    """
    file = folder / "config.json"
    config = read_strict(file) if file.exists() else {}
    if isinstance(config, dict):
        config = {name: value for name, value in config.items() if name not in VOLATILE_CONFIG}
    return digest({"tensors": stored_tensors(folder), "config": config})


def tokenizer_digest(folder: Path) -> str:
    """Return one SHA-256 over the tokenizer files present, empty when there is none."""
    present = {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for name in TOKENIZER_FILES
        if (folder / name).exists()
    }
    return digest(present) if present else ""


def expected_weights(folder: Path, dtype: str) -> dict[str, str]:
    """Return name -> SHA-256 of each stored tensor cast to `dtype` (floating tensors only are cast)."""
    import torch
    from safetensors import safe_open

    target = getattr(torch, dtype)
    result: dict[str, str] = {}
    for file in weight_files(folder):
        with safe_open(file, framework="pt") as handle:
            for name in handle.keys():  # noqa: SIM118 - safe_open is no mapping
                tensor = handle.get_tensor(name)
                cast = tensor.to(target) if tensor.is_floating_point() else tensor
                result[name] = weight_digest(cast)
    return result
