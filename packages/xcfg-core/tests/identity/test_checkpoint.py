"""What a checkpoint folder is taken to hold, against safetensors' own reader and against arithmetic by hand."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import save_file as save_numpy
from safetensors.torch import save_file
from xcfg.errors import ConfigError, IdentityError
from xcfg.identity.checkpoint import (
    TOKENIZER_FILES,
    checkpoint_digest,
    expected_weights,
    stored_tensors,
    tokenizer_digest,
    weight_files,
)

CONFIG = {"model_type": "tiny", "hidden_size": 4, "transformers_version": "5.0", "_name_or_path": "/a"}


@pytest.fixture
def model() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "embed.weight": torch.randn(5, 4, generator=generator),
        "norm.weight": torch.randn(4, generator=generator).bfloat16(),
        "scale": torch.tensor(2.5, dtype=torch.float16),
        "ids": torch.arange(3),
        "nothing": torch.empty(0, 4),
    }


@pytest.fixture
def folder(tmp_path, model):
    save_file(model, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def test_stored_tensors_are_those_of_the_library_s_own_reader(folder, model):
    expected = {}
    with safe_open(folder / "model.safetensors", framework="pt") as handle:
        for name in handle.keys():  # noqa: SIM118 - safe_open is no mapping
            piece = handle.get_slice(name)
            data = handle.get_tensor(name).contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            shape = "x".join(str(length) for length in piece.get_shape())
            expected[name] = f"{piece.get_dtype()}:{shape}:{hashlib.sha256(data).hexdigest()}"
    assert stored_tensors(folder) == expected
    assert set(expected) == set(model)


def test_a_tensor_larger_than_one_piece_is_hashed_whole(tmp_path):
    data = np.arange(3 << 20, dtype=np.float32)  # 12 MiB, pieces are 8
    save_numpy({"a": data}, tmp_path / "model.safetensors")
    assert stored_tensors(tmp_path)["a"] == f"F32:{3 << 20}:{hashlib.sha256(data.tobytes()).hexdigest()}"


def test_shards_count_as_one_model(folder, model, tmp_path_factory):
    other = tmp_path_factory.mktemp("sharded")
    names = sorted(model)
    save_file({name: model[name] for name in names[:2]}, other / "model-00001-of-00002.safetensors")
    save_file({name: model[name] for name in names[2:]}, other / "model-00002-of-00002.safetensors")
    shutil.copy(folder / "config.json", other)
    assert stored_tensors(other) == stored_tensors(folder)
    assert checkpoint_digest(other) == checkpoint_digest(folder)


def test_a_name_that_two_files_share_is_refused_unless_both_hold_the_same(folder, model):
    save_file({"scale": model["scale"]}, folder / "zz.safetensors")
    assert set(stored_tensors(folder)) == set(model)
    save_file({"scale": model["scale"] + 1}, folder / "zz.safetensors")
    with pytest.raises(IdentityError, match="'scale'"):
        stored_tensors(folder)


U8 = {"dtype": "U8", "shape": [4]}
MALFORMED = {
    "empty file": (b"", b""),
    "shorter than a length": (b"abc", b""),
    "a length beyond the file": (struct.pack("<Q", 1000) + b"{}", b""),
    "a huge length": (struct.pack("<Q", 2**63) + b"{}", b""),
    "a header of 100 MB and more": (struct.pack("<Q", 10**9) + b"{}", b""),
    "a header that is no JSON": (b"{", b""),
    "a header that is a list": (b"[]", b""),
    "a header that is no UTF-8": (b'{"\xff":1}', b""),
    "an entry that is no object": ({"a": 1}, b""),
    "an entry without offsets": ({"a": U8}, b"0000"),
    "one offset": ({"a": {**U8, "data_offsets": [0]}}, b"0000"),
    "offsets as text": ({"a": {**U8, "data_offsets": ["0", "4"]}}, b"0000"),
    "offsets into the header": ({"a": {**U8, "data_offsets": [-4, 0]}}, b"0000"),
    "offsets that fall": ({"a": {**U8, "data_offsets": [4, 0]}}, b"0000"),
    "overlapping tensors": ({"a": {**U8, "data_offsets": [0, 4]}, "b": {**U8, "data_offsets": [0, 4]}}, b"0000"),
    "partly overlapping": ({"a": {**U8, "data_offsets": [0, 4]}, "b": {**U8, "data_offsets": [2, 6]}}, b"000000"),
    "a hole": ({"a": {**U8, "data_offsets": [0, 4]}, "b": {**U8, "data_offsets": [5, 9]}}, b"000000000"),
    "bytes that no tensor has": ({"a": {**U8, "data_offsets": [0, 4]}}, b"00000"),
    "an end beyond the file": ({"a": {**U8, "data_offsets": [0, 4]}}, b"000"),
    "a shape of another size": ({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 4]}}, b"0000"),
    "an unknown dtype": ({"a": {"dtype": "X9", "shape": [4], "data_offsets": [0, 4]}}, b"0000"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_file_is_an_identity_error_that_names_it(case, tmp_path, safetensors):
    header, data = MALFORMED[case]
    whole = case in ("empty file", "shorter than a length") or "length beyond" in case or "huge" in case or "MB" in case
    (tmp_path / "model.safetensors").write_bytes(header if whole else safetensors(header, data))
    with pytest.raises(IdentityError, match=r"model\.safetensors"):
        stored_tensors(tmp_path)


def test_every_truncation_is_refused(folder):
    file = folder / "model.safetensors"
    data = file.read_bytes()
    for length in range(0, len(data), 11):
        file.write_bytes(data[:length])
        with pytest.raises(IdentityError):
            stored_tensors(folder)


def test_pickled_weights_are_no_weights(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"not even read")
    with pytest.raises(IdentityError) as error:
        weight_files(tmp_path)
    assert "never read" in error.value.hint


def test_the_digest_ignores_who_wrote_the_config_and_where_it_lies(folder, tmp_path_factory):
    base = checkpoint_digest(folder)
    for change in ({"transformers_version": "4.1"}, {"_name_or_path": "elsewhere"}):
        (folder / "config.json").write_text(json.dumps({**CONFIG, **change}))
        assert checkpoint_digest(folder) == base
    (folder / "config.json").write_text(
        json.dumps({k: v for k, v in reversed(CONFIG.items()) if k[0] != "_"}, indent=4)
    )
    assert checkpoint_digest(folder) == base
    moved = tmp_path_factory.mktemp("moved") / "copy"
    shutil.copytree(folder, moved)
    (moved / "README.md").write_text("not part of the model")
    assert checkpoint_digest(moved) == base


@pytest.mark.parametrize("change", [{"hidden_size": 5}, {"rope_theta": 1e6}, {"nested": {"transformers_version": "1"}}])
def test_the_digest_is_of_the_config(change, folder):
    base = checkpoint_digest(folder)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **change}))
    assert checkpoint_digest(folder) != base


def test_the_digest_is_of_every_name_dtype_shape_and_bit(folder, model):
    digests = {checkpoint_digest(folder)}
    flipped = model["embed.weight"].clone()
    flipped.view(torch.int32)[3, 1] ^= 1
    for change in (
        {"embed.weight": flipped},
        {"scale": model["scale"].reshape(1)},
        {"norm.weight": model["norm.weight"].view(torch.float16)},
        {"extra": torch.zeros(1)},
    ):
        save_file({**model, **change}, folder / "model.safetensors")
        digests.add(checkpoint_digest(folder))
    assert len(digests) == 5


def test_a_config_that_has_no_digest_is_refused_with_its_name(folder):
    (folder / "config.json").write_text('{"max": 9007199254740993}')
    with pytest.raises(IdentityError, match=r"config\.json"):
        checkpoint_digest(folder)
    (folder / "config.json").write_text('{"a": 1, "a": 2}')
    with pytest.raises(ConfigError, match=r"config\.json"):
        checkpoint_digest(folder)


def test_a_folder_without_config_has_a_digest_of_its_own(folder):
    with_config = checkpoint_digest(folder)
    (folder / "config.json").unlink()
    assert checkpoint_digest(folder) != with_config


def test_the_cast_to_bfloat16_by_hand(folder, model):
    """Round to nearest, ties to even, on the upper half of the bits; integers stay what they are."""
    bits = model["embed.weight"].numpy().view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
    found = expected_weights(folder, "bfloat16")
    assert found["embed.weight"] == hashlib.sha256(rounded.tobytes()).hexdigest()
    assert found["norm.weight"] == hashlib.sha256(model["norm.weight"].view(torch.int16).numpy().tobytes()).hexdigest()
    assert found["ids"] == hashlib.sha256(struct.pack("<3q", 0, 1, 2)).hexdigest()
    assert found["scale"] == hashlib.sha256(b"\x20\x40").hexdigest()  # 2.5 in bfloat16
    assert set(found) == set(model)


def test_the_cast_to_float32_by_hand(folder, model):
    found = expected_weights(folder, "float32")
    wide = model["norm.weight"].view(torch.int16).numpy().astype(np.uint16).astype(np.uint32) << 16
    assert found["norm.weight"] == hashlib.sha256(wide.astype("<u4").tobytes()).hexdigest()
    assert found["scale"] == hashlib.sha256(struct.pack("<f", 2.5)).hexdigest()
    assert found["embed.weight"] == hashlib.sha256(model["embed.weight"].numpy().tobytes()).hexdigest()


def test_the_tokenizer_is_its_files(tmp_path):
    assert tokenizer_digest(tmp_path) == ""
    seen = {""}
    for name in TOKENIZER_FILES:
        (tmp_path / name).write_bytes(name.encode())
        seen.add(tokenizer_digest(tmp_path))
    assert len(seen) == len(TOKENIZER_FILES) + 1
    (tmp_path / "config.json").write_text("{}")
    assert tokenizer_digest(tmp_path) in seen
    (tmp_path / "vocab.json").write_bytes(b"other")
    assert tokenizer_digest(tmp_path) not in seen


def test_the_tokenizer_digest_by_hand(tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(b"{}")
    inner = hashlib.sha256(b"{}").hexdigest()
    expected = hashlib.sha256(f'{{"tokenizer.json":"{inner}"}}'.encode()).hexdigest()
    assert tokenizer_digest(tmp_path) == expected
