"""A file that cannot be read says what is wrong with it, and a whole file is never called damaged."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save
from xcfg.dumps.damage import damage
from xcfg.errors import ArtifactError
from xcfg.flow.dumps import open_dump
from xcfg.plugin.manager import PluginManager

LINE = b'{"sample_id": "s", "position": 1, "token_id": 2, "active": true, "logp_rollout": -1.0, "logp_train": -1.0}\n'


@pytest.fixture(scope="module")
def manager() -> PluginManager:
    return PluginManager.load(path=[], environ={})


@pytest.fixture
def said(tmp_path: Path, manager: PluginManager) -> Any:
    """said(bytes): message and hint of reading a file that holds them."""

    def read(data: bytes) -> tuple[str, str]:
        path = tmp_path / "a file"
        path.write_bytes(data)
        with pytest.raises(ArtifactError) as caught:
            open_dump(path, manager)
        return caught.value.message, caught.value.hint

    return read


def archive(compression: int = zipfile.ZIP_STORED, names: tuple[str, ...] = ("a.npy", "b.npy")) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", compression) as file:
        for name in names:
            with file.open(name, "w", force_zip64=True) as member:
                member.write(bytes(range(250)) * 8)
    return target.getvalue()


def test_an_empty_file_says_so(said: Any) -> None:
    assert said(b"")[0].endswith("is empty: 0 bytes")


@pytest.mark.parametrize(
    ("data", "name", "command"),
    [
        (gzip.compress(LINE), "gzip", "gzip -dc"),
        (bz2.compress(LINE), "bzip2", "bzip2 -dc"),
        (lzma.compress(LINE), "xz", "xz -dc"),
        (b"\x28\xb5\x2f\xfd" + bytes(40), "Zstandard", "zstd -dc"),
        (b"\x04\x22\x4d\x18" + bytes(40), "lz4", "lz4 -dc"),
    ],
)
def test_a_compressed_file_names_the_command_that_unpacks_it(said: Any, data: bytes, name: str, command: str) -> None:
    message, hint = said(data)
    assert f"is compressed ({name})" in message
    assert command in hint and "a file' > NEW" in hint


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (LINE.decode().encode("utf-16"), "UTF-16"),
        (LINE.decode().encode("utf-16-le"), "UTF-16LE"),
        (LINE.decode().encode("utf-16-be"), "UTF-16BE"),
        (LINE.decode().encode("utf-32"), "UTF-32"),
    ],
)
def test_text_in_another_encoding_names_it(said: Any, data: bytes, name: str) -> None:
    message, hint = said(data)
    assert message.endswith(f"is text in {name}") and f"iconv -f {name} -t UTF-8" in hint


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\xef\xbb\xbf" + LINE, "byte order mark"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "pointer of Git LFS"),
        (b"<!DOCTYPE html><html>", "is a web page"),
        (bytes(100), "begins with 100 zero bytes"),
        (b"\x93NUMPY\x01\x00", "is one .npy array"),
        (archive(names=("dump.jsonl",)), "is a zip archive that holds 1 entries: 'dump.jsonl'"),
        (LINE[:60], "was cut off: 60 bytes of JSON whose brackets stay open"),
        (json.dumps([{"a": 1}] * 9, indent=1).encode()[:-8], "of JSON whose brackets stay open"),
        (b'data: {"id": "x", "choices": [{"te', "of JSON whose brackets stay open"),
    ],
)
def test_other_files_are_called_by_their_kind(said: Any, data: bytes, says: str) -> None:
    assert says in said(data)[0]


def test_a_tar_archive_is_recognised(said: Any) -> None:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as file:
        file.addfile(tarfile.TarInfo("dump.jsonl"))
    assert "is a tar archive" in said(target.getvalue())[0]


@pytest.mark.parametrize("kept", [60, 1000, 2200, 4000])
def test_a_cut_zip_says_how_long_it_should_be_where_a_header_does(said: Any, kept: int) -> None:
    """The members have 2,000 bytes each; what their headers say is computed by hand from the local headers."""
    data = archive()
    message, _ = said(data[:kept])
    first, second = 30 + 5 + 20 + 2000, 2 * (30 + 5 + 20 + 2000)
    assert f"looks like a zip archive (.pt, .npz) that was cut off: {kept} bytes" in message
    assert f"member 'a.npy' says {first}" in message or kept > first
    assert f"member 'b.npy' says {second}" in message or kept < first


def test_a_zip_without_its_directory_says_so(said: Any) -> None:
    """Also where the cut goes through the header that would say the size."""
    for kept in (2 * (30 + 5 + 20 + 2000), 20, 33, 45):
        assert "the directory that zip ends with is missing" in said(archive()[:kept])[0]


def test_a_cut_parquet_file_says_so(said: Any) -> None:
    assert "a Parquet file that was cut off: 14 bytes, the footer" in said(b"PAR1" + b"x" * 10)[0]


def test_a_cut_safetensors_file_says_what_its_header_says(said: Any, columns: dict[str, Any]) -> None:
    data = save(columns)
    header = int.from_bytes(data[:8], "little")
    message, _ = said(data[:-3])
    assert f"cut off: {len(data) - 3} bytes, its header says {len(data)}" in message
    assert f"cut off: 20 bytes, its header alone ends at {8 + header}" in said(data[:20])[0]


def test_half_a_last_line_is_named_beside_what_the_reader_said(said: Any) -> None:
    """Failing means that a killed writer looks like a wrong format."""
    message, hint = said(LINE * 3 + LINE[:40])
    assert f"was cut off: its last line, which begins at byte {3 * len(LINE)} of {3 * len(LINE) + 40}" in message
    assert "the reader jsonl: " in message and "line 4" in message
    assert "sed '$d'" in hint


def test_another_fault_of_a_whole_file_keeps_its_own_message(said: Any) -> None:
    message, _ = said(LINE + LINE.replace(b"-1.0", b'"x"'))
    assert "cut off" not in message and "line 2" in message


def test_folders_and_pipes_are_called_what_they_are(tmp_path: Path, manager: PluginManager) -> None:
    """A pipe is refused before a reader opens it: detection would wait for ever, or use up what it says."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").mkdir()
    for path, says in (
        (tmp_path / "pipe", "is a pipe or a device"),
        (tmp_path / "empty", "is an empty folder"),
        (tmp_path, "is a folder that no reader knows as a dump; it holds 2 entries: 'empty', 'pipe'"),
    ):
        with pytest.raises(ArtifactError) as caught:
            open_dump(path, manager)
        assert says in caught.value.message


def test_a_whole_file_has_no_damage(tmp_path: Path, columns: dict[str, Any]) -> None:
    """Failing means that a file that could be read is called broken when something else is wrong."""
    np.savez(tmp_path / "x.npz", **columns)
    whole = [
        LINE * 2,
        (LINE * 2).rstrip(),
        b'{"a": "a brace { and a quote \\" in a text"}',
        json.dumps([{"a": [1, 2]}], indent=2).encode(),
        b"notes of somebody",
        save(columns),
        save({"x": np.zeros(0)}),
        (tmp_path / "x.npz").read_bytes(),
        b"PAR1" + bytes(20) + b"PAR1",
    ]
    for index, data in enumerate(whole):
        path = tmp_path / f"{index}"
        path.write_bytes(data)
        assert damage(path) is None, data[:40]
