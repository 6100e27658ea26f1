"""The pickle machine: equal to torch on what torch writes, and harmless on everything else."""

from __future__ import annotations

import contextlib
import os
import pickle
import struct
import tracemalloc
import zipfile
from collections import OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from xcfg.errors import ArtifactError
from xcfg_dumps import pickled
from xcfg_dumps.plain import ArrayRef, Numbers, TensorRef
from xcfg_dumps.ptfile import is_pt, open_pt


def plain(value, file=None):
    """What our machine returned, in the types of Python and numpy, to be compared with what went in."""
    if isinstance(value, Numbers):
        flat = []
        for item in value:
            flat.extend(item.tolist() if isinstance(item, np.ndarray) else [plain(item, file)])
        return flat
    if isinstance(value, tuple):
        return tuple(plain(item, file) for item in value)
    if isinstance(value, dict):
        return {key: plain(item, file) for key, item in value.items()}
    if isinstance(value, (TensorRef, ArrayRef)):
        return file.array(value).tolist()
    return value


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8"), max_size=5)
)
NUMBERS = st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(0, 300), max_size=40) | st.lists(
    st.floats(allow_nan=False), max_size=40
)


@given(
    st.recursive(
        SCALARS | NUMBERS,
        lambda inner: (
            st.lists(inner, max_size=5)
            | st.tuples(inner, inner)
            | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=3), inner, max_size=4)
        ),
        max_leaves=20,
    )
)
@settings(max_examples=300, deadline=None)
def test_it_reads_what_pickle_writes(value):
    """The oracle is what went in; runs of numbers take another path through the machine than single ones."""
    data = pickle.dumps(value, protocol=2)
    assert plain(pickled.load(data, 0, len(data), "x")) == value


@pytest.mark.parametrize("length", [0, 1, 2, 999, 1000, 1001, 2500])
def test_lists_of_every_length_and_width(length):
    """pickle writes lists in runs of 1000, and a last single element in its own way."""
    random = np.random.default_rng(length)
    for top in (255, 65_535, 2**31 - 1):
        values = random.integers(0, top, length, endpoint=True).tolist()
        for chosen in (values, [-value for value in values], [value / 3 for value in values]):
            data = pickle.dumps(chosen, protocol=2)
            array = pickled.load(data, 0, len(data), "x").array()
            assert array.tolist() == chosen
            assert array.dtype.itemsize <= 4 or array.dtype == np.float64 or not length


def test_shared_and_nested_objects_are_what_they_were():
    inner = [1.5, 2.5]
    data = pickle.dumps({"a": inner, "b": [inner, inner], "c": OrderedDict(x=1)}, protocol=2)
    found = pickled.load(data, 0, len(data), "x")
    assert found["b"][0] is found["a"]
    assert plain(found) == {"a": inner, "b": [inner, inner], "c": {"x": 1}}


def test_tensors_and_arrays_are_what_torch_saved(tmp_path):
    base = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4)
    saved = {
        "view": base[1].t(),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
        "bf16": torch.tensor([1.5, -0.1]).bfloat16(),
        "bool": torch.tensor([True, False]),
        "long": torch.tensor([2**40, -1]),
        "array": np.array([[1.5, -2.0]]),
        "big": np.arange(40_000, dtype=np.int32),
        "item": np.float32(0.1),
    }
    torch.save(saved, tmp_path / "x.pt")
    file = open_pt(tmp_path / "x.pt")
    found = file.load()
    for name, value in saved.items():
        wanted = value.float().numpy() if name == "bf16" else np.asarray(value)
        got = file.array(found[name])
        assert got.shape == wanted.shape and got.dtype == wanted.dtype, name
        np.testing.assert_array_equal(got, wanted, err_msg=name)
    assert not file.array(found["view"]).flags.writeable


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_global_outside_the_list_is_refused_by_name_and_not_run(tmp_path):
    torch.save({"rollout_id": 1, "samples": [Bomb(tmp_path / "ran")]}, tmp_path / "bomb.pt")
    with pytest.raises(ArtifactError, match=r"names the global 'posix mkdir'; nothing of it was executed"):
        open_pt(tmp_path / "bomb.pt").load()
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "body",
    [
        b"ctorch\nload\n",
        b"cbuiltins\neval\n",
        b"cnumpy.core.multiarray\nfromfile\n",
        b"ctorch._utils\n_rebuild_tensor_v2 \n",
        b"cnumpy\nload\n",
    ],
)
def test_names_near_the_list_are_not_on_it(body):
    with pytest.raises(ArtifactError, match="nothing of it was executed"):
        pickled.load(b"\x80\x02" + body + b".", 0, len(body) + 3, "x")


@pytest.mark.parametrize(
    "body",
    [
        b"",  # no STOP
        b".",  # nothing to return
        b"X\xff\xff\xff\x7fabc.",  # a text of 2 GiB
        b"X\xff\xff\xff\xffabc.",
        b"\x8a\xff\x01.",  # an integer of 255 bytes
        b"K",
        b"G\x00.",
        b"J\x00.",
        b"(K\x01K\x02",
        b"](K\x01K\x02",
        b"e.",
        b"]e.",
        b"u.",
        b"}(K\x01u.",
        b"}(]K\x01u.",  # a list as a key
        b"(K\x01e.",
        b"NK\x01a.",
        b"h\x05.",
        b"j\x05\x00\x00\x00.",
        b"q\x00.",
        b"NR.",
        b"NNR.",
        b"cnumpy\ndtype\nNR.",
        b"ccollections\nOrderedDict\n(K\x01tR.",
        b"ctorch._utils\n_rebuild_tensor_v2\n)R.",
        b"NQ.",
        b"}}b.",
        b"\x85.",
        b"K\x01\x87.",
        b"c" + b"x" * 2000 + b"\n.",
        b"c\xff\xfe\nx\n.",
        b"X\x02\x00\x00\x00\xff\xff.",
        b"\x80\x04.",
        b"i.",
        b"o.",
        b"\x81.",
        b"\x93.",
        b"\x82\x01.",
        b"P1\n.",
        b"0.",
        b"1.",
        b"2.",
    ],
)
def test_malformed_bytes_are_an_artifact_error(body):
    data = b"\x80\x02" + body
    with pytest.raises(ArtifactError):
        pickled.load(data, 0, len(data), "x")


@given(st.binary(max_size=200))
@settings(max_examples=500, deadline=None)
def test_random_bytes_never_escape(data):
    with contextlib.suppress(ArtifactError):
        pickled.load(data, 0, len(data), "x")


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_a_changed_byte_never_escapes(data):
    """Failing means a traceback, a crash or a hang on a file that lost a bit."""
    whole = bytearray(pickle.dumps({"samples": [{"tokens": list(range(300)), "x": (1.5, None, "t")}]}, protocol=2))
    for _ in range(3):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ArtifactError):
        pickled.load(bytes(whole), 0, len(whole), "x")


def test_deep_nesting_needs_no_deep_stack():
    for body in (b"]" * 100_000 + b"a" * 99_999, b")" + b"\x85" * 100_000):
        data = b"\x80\x02" + body + b"."
        pickled.load(data, 0, len(data), "x")


def test_too_many_objects_are_refused(monkeypatch):
    monkeypatch.setattr(pickled, "MAX_OBJECTS", 100)
    data = b"\x80\x02](" + b"]" * 200 + b"e."
    with pytest.raises(ArtifactError, match="more than 100 objects"):
        pickled.load(data, 0, len(data), "x")
    data = pickle.dumps([list(range(5000))], protocol=2)
    pickled.load(data, 0, len(data), "x")  # runs of numbers count once


def archive(path, members, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, data in members.items():
            file.writestr(f"x/{name}", data)
    return path


TENSOR = (
    b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\n"
    b"X\x01\x00\x00\x000X\x03\x00\x00\x00cpu%btQ%b%b%b\x89NtR."
)


def number(value):
    return b"\x8a\x08" + struct.pack("<q", value)


@pytest.mark.parametrize(
    ("numel", "offset", "shape", "stride"),
    [
        (4, 0, 5, 1),
        (4, 1, 4, 1),
        (4, 0, 4, 2),
        (10**12, 0, 4, 1),
        (4, 0, 10**15, 0),  # a view without end over one number
        (4, -1, 2, 1),
        (4, 3, 2, -1),
        (-4, 0, 2, 1),
        (4, 0, -2, 1),
        (5, 0, 5, 1),
    ],
)
def test_a_tensor_outside_its_storage_is_refused(tmp_path, numel, offset, shape, stride):
    data = TENSOR % (number(numel), number(offset), number(shape) + b"\x85", number(stride) + b"\x85")
    file = open_pt(archive(tmp_path / "x.pt", {"data.pkl": data, "data/0": bytes(16)}))
    with pytest.raises(ArtifactError, match="outside its storage"):
        file.array(file.load())
    good = TENSOR % (number(4), number(1), number(3) + b"\x85", number(1) + b"\x85")
    file = open_pt(archive(tmp_path / "y.pt", {"data.pkl": good, "data/0": np.float32([1, 2, 3, 4]).tobytes()}))
    assert file.array(file.load()).tolist() == [2, 3, 4]


def test_archives_that_torch_does_not_write_are_refused(tmp_path):
    stop = b"\x80\x02N."
    for members, compression, says in (
        ({"data.pkl": stop}, zipfile.ZIP_DEFLATED, "compressed"),
        ({"other": stop}, zipfile.ZIP_STORED, "without data.pkl"),
        ({"data.pkl": stop, "byteorder": b"big"}, zipfile.ZIP_STORED, "big-endian"),
    ):
        with pytest.raises(ArtifactError, match=says):
            open_pt(archive(tmp_path / "x.pt", members, compression))
    for data in (b"", b"PK\x03\x04", b"PK\x05\x06" + bytes(18), b"x" * 100):
        (tmp_path / "y.pt").write_bytes(data)
        assert not is_pt(tmp_path / "y.pt")
        with pytest.raises(ArtifactError):
            open_pt(tmp_path / "y.pt")
    os.mkfifo(tmp_path / "pipe.pt")
    with pytest.raises(ArtifactError):
        open_pt(tmp_path / "pipe.pt")


def test_a_directory_that_lies_about_sizes_is_refused(tmp_path):
    path = archive(tmp_path / "x.pt", {"data.pkl": b"\x80\x02N."})
    data = bytearray(path.read_bytes())
    at = data.rindex(b"PK\x01\x02")
    data[at + 20 : at + 28] = struct.pack("<II", 2**31, 2**31)
    path.write_bytes(bytes(data))
    with pytest.raises(ArtifactError):
        open_pt(path)


def test_a_list_of_numbers_costs_its_bytes_and_not_objects(tmp_path):
    """10^6 floats as a Python list are over 30 MB; here they may cost a few copies of their 4 or 8 bytes."""
    torch.save([float(value) for value in np.float32(np.random.default_rng(0).random(10**6))], tmp_path / "x.pt")
    tracemalloc.start()
    try:
        array = open_pt(tmp_path / "x.pt").load().array()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert array.dtype == np.float32 and len(array) == 10**6
    assert peak < 12 * 10**6
