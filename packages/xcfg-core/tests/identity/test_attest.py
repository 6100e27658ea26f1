"""Two sides attest to the same input only through these digests: each is checked against hashlib by hand."""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from xcfg.identity.attest import attest_sequence, expected_attestations, fold, ids_digest, weight_digest


def by_hand(ids) -> str:
    return hashlib.sha256(b"".join(struct.pack("<q", value) for value in ids)).hexdigest()


IDS = [0, 1, 255, 256, 2**31, 2**62, -1]


@pytest.mark.parametrize(
    "ids",
    [
        IDS,
        tuple(IDS),
        iter(IDS),
        np.array(IDS),
        np.array(IDS).astype(">i8"),
        np.repeat(np.array(IDS), 2)[::2],
    ],
    ids=["list", "tuple", "iterator", "int64", "big-endian", "strided"],
)
def test_ids_are_hashed_as_little_endian_int64_whatever_holds_them(ids):
    assert ids_digest(ids) == by_hand(IDS)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64, np.uint64, np.bool_])
def test_the_width_of_the_engine_s_own_ids_does_not_matter(dtype):
    assert ids_digest(np.array([0, 1, 1], dtype=dtype)) == by_hand([0, 1, 1])


def test_nothing_is_not_zero():
    assert ids_digest([]) == hashlib.sha256(b"").hexdigest() != ids_digest([0])


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=8), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=8))
def test_ids_agree_exactly_when_their_digests_do(first, second):
    assert (ids_digest(first) == ids_digest(second)) == (first == second)


def test_an_attestation_holds_three_digests_and_the_length():
    item = attest_sequence(4, np.array([7, 8, 9]), np.array([0, 1, 2]), np.array([9]))
    assert (item.index, item.length) == (4, 3)
    assert item.token_ids == by_hand([7, 8, 9])
    assert item.position_ids == by_hand([0, 1, 2])
    assert item.selected_ids == by_hand([9])


def test_expected_attestations_by_hand(rollout):
    first, second, third = expected_attestations(rollout)
    assert [item.index for item in (first, second, third)] == [0, 1, 2]
    assert [item.length for item in (first, second, third)] == [4, 1, 3]
    assert (first.token_ids, first.position_ids) == (by_hand([5, 6, 7, 8]), by_hand([0, 1, 2, 3]))
    assert (third.token_ids, third.position_ids) == (by_hand([1, 2, 3]), by_hand([10, 11, 12]))
    assert [item.selected_ids for item in (first, second, third)] == [by_hand([7, 8]), by_hand([]), by_hand([2, 3])]


def test_without_the_last_token_only_what_entered_the_model_is_shorter(rollout):
    first, second, third = expected_attestations(rollout, consumed_last=False)
    assert [item.length for item in (first, second, third)] == [3, 0, 2]
    assert (first.token_ids, first.position_ids) == (by_hand([5, 6, 7]), by_hand([0, 1, 2]))
    assert second.token_ids == by_hand([])
    assert (third.token_ids, third.position_ids) == (by_hand([1, 2]), by_hand([10, 11]))
    assert [item.selected_ids for item in (first, second, third)] == [by_hand([7, 8]), by_hand([]), by_hand([2, 3])]


@pytest.mark.parametrize(
    ("tensor", "data"),
    [
        (torch.tensor([1.0, -0.0]), struct.pack("<2f", 1.0, -0.0)),
        (torch.tensor([1.0, -2.0], dtype=torch.bfloat16), b"\x80\x3f\x00\xc0"),
        (torch.tensor([1.0], dtype=torch.float16), b"\x00\x3c"),
        (torch.tensor([[1, 2], [3, 4]]).t(), struct.pack("<4q", 1, 3, 2, 4)),
        (torch.arange(6, dtype=torch.int32)[::2], struct.pack("<3i", 0, 2, 4)),
        (torch.tensor([True, False]), b"\x01\x00"),
        (torch.tensor(3.0, dtype=torch.float64), struct.pack("<d", 3.0)),
        (torch.empty(0, 5), b""),
        (torch.tensor([float("nan")]), struct.pack("<f", float("nan"))),
        (torch.nn.Parameter(torch.tensor([2.0])), struct.pack("<f", 2.0)),
        (torch.tensor([1.0]).expand(3), struct.pack("<3f", 1.0, 1.0, 1.0)),
    ],
)
def test_a_weight_is_hashed_over_its_bytes_row_by_row(tensor, data):
    assert weight_digest(tensor) == hashlib.sha256(data).hexdigest()


def test_signed_zero_is_another_weight():
    assert weight_digest(torch.tensor([0.0])) != weight_digest(torch.tensor([-0.0]))


def fold_by_hand(*tensors: tuple[str, bytes]) -> str:
    """Rows of 4,096 bytes are summed as little-endian 64-bit integers, in Python's integers; the rest stays."""
    state = hashlib.sha256()
    for name, data in tensors:
        whole = len(data) // 4096 * 4096
        state.update(name.encode() + b"\0" + struct.pack("<Q", len(data)))
        for start in range(0, whole, 4096):
            total = sum(struct.unpack("<512Q", data[start : start + 4096]))
            state.update(struct.pack("<Q", total % 2**64))
        state.update(data[whole:])
    return state.hexdigest()[:16]


def test_the_fold_by_hand():
    first, second = torch.tensor([1.0, 2.0]), torch.tensor([], dtype=torch.float32)
    expected = fold_by_hand(("w", struct.pack("<2f", 1.0, 2.0)), ("bias", b""))
    assert fold([("w", first), ("bias", second)]) == expected
    assert fold([]) == fold_by_hand()


@pytest.mark.parametrize("length", [4095, 4096, 4097, 12_288, 13_000])
@pytest.mark.parametrize("skip", [0, 3, 8], ids=lambda skip: f"skip {skip}")
def test_the_fold_of_whole_rows_by_hand(length, skip):
    """A shard may start anywhere in its storage, so also where no 64-bit integer does."""
    data = np.random.default_rng(length).integers(0, 256, length + skip).astype(np.uint8)
    tensor = torch.from_numpy(data)[skip:]
    assert fold([("w", tensor)]) == fold_by_hand(("w", data[skip:].tobytes()))


@given(where=st.integers(0, 8 * 10_000 - 1))
def test_the_fold_notices_a_flipped_bit_in_whole_rows(where):
    data = np.random.default_rng(0).integers(0, 256, 10_000).astype(np.uint8)
    before = fold([("w", torch.from_numpy(data.copy()))])
    data[where // 8] ^= 1 << where % 8
    assert fold([("w", torch.from_numpy(data))]) != before


@given(
    data=st.binary(min_size=8, max_size=256).filter(lambda value: len(value) % 8 == 0),
    where=st.integers(0, 10**6),
    dtype=st.sampled_from([torch.uint8, torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int64]),
)
def test_the_fold_notices_every_single_flipped_bit(data, where, dtype):
    bit = where % (8 * len(data))
    flipped = bytearray(data)
    flipped[bit // 8] ^= 1 << bit % 8
    before, after = (torch.frombuffer(bytearray(item), dtype=dtype) for item in (data, flipped))
    other = torch.ones(3)
    assert fold([("a", other), ("b", before)]) != fold([("a", other), ("b", after)])
    assert fold([("b", before), ("a", other)]) != fold([("b", after), ("a", other)])


def test_the_fold_is_of_names_and_order_too():
    first, second = torch.arange(3.0), torch.arange(4.0)
    base = fold([("a", first), ("b", second)])
    assert base == fold([("a", first.clone()), ("b", second.clone())])
    assert base != fold([("b", second), ("a", first)])
    assert base != fold([("a", second), ("b", first)])
    assert base != fold([("a", first), ("c", second)])
    assert base != fold([("a", first)])
    assert fold([("a", first), ("a", first)]) != fold([("a", first)])


def test_the_fold_reads_a_view_as_its_values_and_leaves_it_alone():
    matrix = torch.arange(6.0).reshape(2, 3)
    assert fold([("m", matrix.t())]) == fold([("m", matrix.t().contiguous())])
    parameter = torch.nn.Parameter(matrix.clone())
    assert fold([("m", parameter)]) == fold([("m", matrix)])
    assert parameter.grad is None and torch.equal(parameter, matrix)


def test_rows_that_change_places_change_the_fold():
    """Short tensors are hashed as they are; in long ones what moves by 4 KiB or more is seen."""
    for matrix in (torch.arange(6.0).reshape(3, 2), torch.arange(3 * 1024.0).reshape(3, 1024)):
        assert fold([("m", matrix)]) != fold([("m", matrix[[1, 0, 2]])])
