"""Digests by which a scoring process attests to what it consumed; used by adapters and by the identity gate."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from xcfg.identity.rollout import Rollout
from xcfg.schema.identity import SequenceAttestation

if TYPE_CHECKING:
    import torch


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
    """Return a cheap digest of local tensors, by name, for the read-only proof before and after a score.

    On a CPU: CRC-32 over the bytes. On a device: the sum and the alternating sum of the bytes as integers,
    computed there, so that only two numbers cross the bus. Any single flipped bit changes it.
    """
    import torch

    total = 0
    for name, tensor in tensors:
        flat = tensor.detach().reshape(-1)
        if flat.numel() == 0:
            value = b"empty"
        elif flat.device.type == "cpu":
            value = zlib.crc32(flat.contiguous().view(torch.uint8).numpy().data).to_bytes(4, "little")
        else:
            integers = flat.contiguous().view(torch.uint8)
            pair = torch.stack((integers.sum(dtype=torch.int64), integers[::2].sum(dtype=torch.int64)))
            value = pair.cpu().numpy().tobytes()
        total = zlib.crc32(name.encode() + value, total)
    return f"{total:08x}"
