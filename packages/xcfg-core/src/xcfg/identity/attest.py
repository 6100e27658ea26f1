"""Digests by which a scoring process attests to what it consumed; used by adapters and by the identity gate."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from xcfg.identity.rollout import Rollout
from xcfg.schema.identity import SequenceAttestation

if TYPE_CHECKING:
    import torch

FOLD_ROW = 512
"""64-bit integers whose sum stands for them in a fold: 4 KiB."""


def ids_digest(ids: Iterable[int] | NDArray[np.integer[Any]]) -> str:
    """Return the SHA-256 over `ids` as little-endian int64."""
    array = np.asarray(ids if isinstance(ids, np.ndarray) else list(ids), dtype="<i8")
    return hashlib.sha256(array.tobytes()).hexdigest()


def attest_sequence(
    index: int,
    token_ids: NDArray[np.integer[Any]],
    position_ids: NDArray[np.integer[Any]],
    selected_ids: NDArray[np.integer[Any]],
) -> SequenceAttestation:
    """Return the attestation of one sequence from the unpadded arrays that the engine consumed."""
    return SequenceAttestation(
        index=index,
        length=len(token_ids),
        token_ids=ids_digest(token_ids),
        position_ids=ids_digest(position_ids),
        selected_ids=ids_digest(selected_ids),
    )


def expected_attestations(rollout: Rollout, *, consumed_last: bool = True) -> tuple[SequenceAttestation, ...]:
    """Return what every scorer of `rollout` must attest to.

    consumed_last: whether the last token of each sequence enters the model. Its logits score nothing, so a
    decode replay may leave it out; an adapter then reports length - 1 and the gate compares with this form.
    """
    result = []
    for index in range(rollout.sequence_count):
        span = rollout.span(index)
        stop = span.stop if consumed_last else span.stop - 1
        active = rollout.active[span]
        result.append(
            attest_sequence(
                index,
                rollout.token_ids[span.start : stop],
                rollout.tensors["position_ids"][span.start : stop].astype(np.int64),
                rollout.tensors["selected_token_ids"][span][active].astype(np.int64),
            )
        )
    return tuple(result)


def weight_digest(tensor: torch.Tensor) -> str:
    """Return the SHA-256 over the bytes of a full (unsharded) tensor, in its own dtype, row-major."""
    import torch

    data = tensor.detach().contiguous().cpu()
    return hashlib.sha256(data.reshape(-1).view(torch.uint8).numpy().data).hexdigest()


def fold(tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
    """Return a cheap digest of local tensors, by name and in order, for the read-only proof around a score.

    A tensor's bytes are read as rows of FOLD_ROW 64-bit integers; each row is summed (modulo 2**64) where the tensor
    lies, so that 1 byte in 512 crosses the bus, and the sums and the bytes after the last whole row are hashed. A
    single flipped bit changes one sum by a power of two. What moves inside one row of 4 KiB is not seen.
    """
    parts = [(name, _row_sums(tensor)) for name, tensor in tensors]
    all_sums = _to_host([sums for _, (sums, _) in parts])
    all_rests = _to_host([rest for _, (_, rest) in parts])
    state = hashlib.sha256()
    for (name, _), sums, rest in zip(parts, all_sums, all_rests, strict=True):
        state.update(name.encode() + b"\0" + (sums.nbytes * FOLD_ROW + rest.nbytes).to_bytes(8, "little"))
        state.update(sums.data)
        state.update(rest.data)
    return state.hexdigest()[:16]


def _row_sums(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sums of the whole rows of `tensor`, int64, and the bytes that are left, uint8, where it lies."""
    import torch

    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    whole = data.numel() // (8 * FOLD_ROW) * (8 * FOLD_ROW)
    rows = data[:whole]
    if rows.storage_offset() % 8 or rows.data_ptr() % 8:
        rows = rows.clone()
    return rows.view(torch.int64).view(-1, FOLD_ROW).sum(dim=1), data[whole:]


def _to_host(parts: list[torch.Tensor]) -> list[NDArray[Any]]:
    """Return flat tensors of one dtype as arrays; one transfer per device, since each waits for the device."""
    import torch

    found: dict[int, NDArray[Any]] = {}
    for device in {part.device for part in parts}:
        there = [index for index, part in enumerate(parts) if part.device == device]
        joined = torch.cat([parts[index] for index in there]).cpu().numpy()
        stops = np.cumsum([parts[index].numel() for index in there])
        found.update(zip(there, np.split(joined, stops[:-1]), strict=True))
    return [found[index] for index in range(len(parts))]
