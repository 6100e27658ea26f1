"""What a Hugging Face checkpoint folder holds, as digests: the expectation against which engines attest weights.

torch is imported only by expected_weights, which casts.
"""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path

from safetensors import SafetensorError, safe_open

from xcfg.errors import IdentityError
from xcfg.identity.attest import weight_digest
from xcfg.schema.codec import digest, read_strict

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
    """Return per tensor name `dtype:shape:sha256` of the stored bytes, read in 8 MiB pieces.

    Raises IdentityError for a malformed file, and where two files hold different tensors under one name.
    """
    result: dict[str, str] = {}
    for file in weight_files(folder):
        for name, stored in _file_tensors(file).items():
            if result.setdefault(name, stored) != stored:
                raise IdentityError(
                    f"two files in {str(folder)!r} hold different tensors {name!r}, one of them {file.name}",
                    hint="Keep the files of one model in the folder.",
                )
    return result


def _file_tensors(file: Path) -> dict[str, str]:
    try:
        with safe_open(file, framework="np"):
            pass  # its reader has checked the layout: every byte after the header belongs to exactly one tensor
        with file.open("rb") as stream:
            size = struct.unpack("<Q", stream.read(8))[0]
            header = json.loads(stream.read(size))
            result = {}
            for name in sorted(set(header) - {"__metadata__"}):
                start, stop = header[name]["data_offsets"]
                shape = "x".join(str(length) for length in header[name]["shape"])
                stream.seek(8 + size + start)
                result[name] = f"{header[name]['dtype']}:{shape}:{_hash_span(stream, stop - start)}"
            return result
    except (SafetensorError, ValueError) as error:
        raise IdentityError(f"{file.name} in {str(file.parent)!r} is a malformed safetensors file: {error}") from None


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
    tensors = stored_tensors(folder)
    try:
        return digest({"tensors": tensors, "config": config})
    except ValueError as error:  # an integer that canonical JSON cannot hold
        raise IdentityError(f"config.json in {str(folder)!r} has no digest: {error}") from None


def vocabulary_size(folder: Path) -> int | None:
    """Return `vocab_size` of config.json, of its text model where that has one; None where it says nothing."""
    return _size(folder, "vocab_size")


def position_limit(folder: Path) -> int | None:
    """Return `max_position_embeddings`, the positions for which the model was made; None where it says nothing."""
    return _size(folder, "max_position_embeddings")


def _size(folder: Path, name: str) -> int | None:
    file = folder / "config.json"
    config = read_strict(file) if file.exists() else {}
    if isinstance(config, dict) and isinstance(config.get("text_config"), dict):
        config = config["text_config"]
    size = config.get(name) if isinstance(config, dict) else None
    return size if type(size) is int and size > 0 else None


def end_of_sequence_ids(folder: Path) -> tuple[int, ...]:
    """Return `eos_token_id` of generation_config.json, else of config.json or its text model; empty without one.

    Raises IdentityError where it is neither an id nor a list of ids.
    """
    for name in ("generation_config.json", "config.json"):
        file = folder / name
        config = read_strict(file) if file.exists() else {}
        parts = [config, config.get("text_config")] if isinstance(config, dict) else []
        for part in parts:
            found = part.get("eos_token_id") if isinstance(part, dict) else None
            if found is None:
                continue
            ids = found if isinstance(found, list) else [found]
            if not all(type(item) is int and item >= 0 for item in ids):
                raise IdentityError(
                    f"eos_token_id in {name} of {str(folder)!r} is {found!r}, neither a token id nor a list of them",
                    hint="Correct the file.",
                )
            return tuple(sorted(set(ids)))
    return ()


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

    target = getattr(torch, dtype, None)
    if not isinstance(target, torch.dtype):
        raise IdentityError(f"{dtype!r} is no dtype in which weights can be expected", hint="The engine reported it.")
    result: dict[str, str] = {}
    for file in weight_files(folder):
        with safe_open(file, framework="pt") as handle:
            for name in handle.keys():  # noqa: SIM118 - safe_open is no mapping
                tensor = handle.get_tensor(name)
                cast = tensor.to(target) if tensor.is_floating_point() else tensor
                result[name] = weight_digest(cast)
    return result
