"""Read and write frozen rollouts (layout: schema/identity.py). numpy only; nothing here knows an engine."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from xcfg.errors import ConfigError, IdentityError
from xcfg.schema.codec import decode_json, pretty_json
from xcfg.schema.identity import (
    ROLLOUT_SCHEMA,
    CheckpointRef,
    RolloutManifest,
    SamplingRecord,
    SequenceRecord,
    TokenizerRef,
)

MANIFEST_FILE = "manifest.json"
TENSORS_FILE = "rollout.safetensors"
REQUIRED: dict[str, str] = {
    "token_ids": "int64",
    "offsets": "int64",
    "active_mask": "bool",
    "attention_mask": "bool",
    "position_ids": "int64",
    "selected_token_ids": "int64",
    "segment": "int8",
    "weight_version": "int32",
}
OPTIONAL: dict[str, str] = {"recorded_logprob": "float32", "recorded_training_logprob": "float32"}


@dataclass(frozen=True)
class Rollout:
    """A frozen rollout in memory: `manifest`, flat arrays over T tokens, and the SHA-256 that names it."""

    manifest: RolloutManifest
    tensors: dict[str, NDArray[np.generic]]
    sha256: str
    path: Path | None = None

    @property
    def offsets(self) -> NDArray[np.int64]:
        """int64 [S + 1]."""
        return self.tensors["offsets"].astype(np.int64, copy=False)

    @property
    def token_ids(self) -> NDArray[np.int64]:
        """int64 [T]."""
        return self.tensors["token_ids"].astype(np.int64, copy=False)

    @property
    def active(self) -> NDArray[np.bool_]:
        """Bool [T]: the tokens that are compared."""
        return self.tensors["active_mask"].astype(np.bool_, copy=False)

    @property
    def sequence_count(self) -> int:
        """S."""
        return len(self.offsets) - 1

    def span(self, sequence: int) -> slice:
        """The flat indices of one sequence."""
        return slice(int(self.offsets[sequence]), int(self.offsets[sequence + 1]))

    def sequence_index(self) -> NDArray[np.int64]:
        """int64 [T]: which sequence each flat token belongs to."""
        return np.repeat(np.arange(self.sequence_count), np.diff(self.offsets))


def make_rollout(
    tensors: dict[str, NDArray[np.generic]],
    *,
    checkpoint: CheckpointRef,
    tokenizer: TokenizerRef | None = None,
    sampling: SamplingRecord | None = None,
    request_ids: list[str] | None = None,
    **manifest: object,
) -> Rollout:
    """Return a checked Rollout; dtypes are brought to the table's where that changes no id, mask or position.

    request_ids: one per sequence; without them `sequence-N`. Active tokens of another weight version than the
    checkpoint's are made inactive and counted: no pair of engines has the weights that sampled them.
    Raises IdentityError, naming the fields.
    """
    arrays = {
        name: _cast(name, tensors[name], dtype) for name, dtype in {**REQUIRED, **OPTIONAL}.items() if name in tensors
    }
    check_tensors(arrays)
    active = arrays["active_mask"].astype(np.bool_)
    other = active & (arrays["weight_version"] != checkpoint.weight_version)
    arrays["active_mask"] = active & ~other
    counts = _counts(arrays)
    ids = request_ids or [f"sequence-{index}" for index in range(len(counts))]
    if len(ids) != len(counts):
        raise IdentityError(f"the rollout is not valid: {len(ids)} request ids for {len(counts)} sequences")
    record = RolloutManifest(
        schema_version=ROLLOUT_SCHEMA,
        checkpoint=checkpoint,
        tokenizer=tokenizer or TokenizerRef(),
        sampling=sampling or SamplingRecord(),
        sequences=tuple(
            SequenceRecord(request_id=name, length=length, active_tokens=count)
            for name, (length, count) in zip(ids, counts, strict=True)
        ),
        token_count=sum(length for length, _ in counts),
        active_count=sum(active for _, active in counts),
        tensors_sha256=hashlib.sha256(save(arrays)).hexdigest(),
        inactive_other_version=int(other.sum()),
        **manifest,  # type: ignore[arg-type]
    )
    return Rollout(record, arrays, hashlib.sha256(pretty_json(record)).hexdigest())


def _cast(name: str, values: NDArray[np.generic], dtype: str) -> NDArray[np.generic]:
    """Return `values` in `dtype`; only recorded scores may be rounded, an id that a cast changes is another id."""
    with np.errstate(invalid="ignore"):
        cast: NDArray[np.generic] = np.ascontiguousarray(values, dtype=dtype)
    if name not in OPTIONAL and not np.array_equal(cast.reshape(-1), np.asarray(values).reshape(-1)):
        raise IdentityError(f"the rollout is not valid: {name} has values that {dtype} does not hold")
    return cast


def _counts(tensors: dict[str, NDArray[np.generic]]) -> list[tuple[int, int]]:
    """Return (length, active tokens) per sequence of checked tensors."""
    offsets = tensors["offsets"].astype(np.int64, copy=False)
    active = np.add.reduceat(tensors["active_mask"].astype(np.int64), offsets[:-1])
    return list(zip(np.diff(offsets).tolist(), active.tolist(), strict=True))


def check_tensors(tensors: dict[str, NDArray[np.generic]]) -> None:
    """Check presence, dtype, shape and the logical rules; IdentityError names each field at fault."""
    faults = [f"{name} is missing" for name in REQUIRED if name not in tensors]
    for name, dtype in {**REQUIRED, **OPTIONAL}.items():
        if name in tensors and str(tensors[name].dtype) != dtype:
            faults.append(f"{name} is {tensors[name].dtype}, not {dtype}")
    if not faults:
        faults = _logical_faults(tensors)
    if faults:
        raise IdentityError(
            "the rollout is not valid: " + "; ".join(faults), hint="Freeze it again with `xcfg freeze`."
        )


def _logical_faults(tensors: dict[str, NDArray[np.generic]]) -> list[str]:
    offsets = tensors["offsets"]
    if offsets.ndim != 1 or len(offsets) < 2 or offsets[0] != 0 or bool((np.diff(offsets) <= 0).any()):
        return ["offsets must start at 0 and rise by at least one token per sequence"]
    total = int(offsets[-1])
    faults = [
        f"{name} has shape {array.shape}, not ({total},)"
        for name, array in tensors.items()
        if name != "offsets" and array.shape != (total,)
    ]
    if faults:
        return faults
    active = tensors["active_mask"].astype(np.bool_)
    if bool(active[offsets[:-1]].any()):
        faults.append("active_mask marks the first position of a sequence, which has no logits before it")
    if bool((tensors["token_ids"] != tensors["selected_token_ids"])[active].any()):
        faults.append("selected_token_ids do not follow from token_ids on active positions")
    if bool((tensors["token_ids"] < 0).any()):  # type: ignore[operator]
        faults.append("token_ids has a negative id")
    if bool((active & ~tensors["attention_mask"].astype(np.bool_)).any()):
        faults.append("active_mask marks a position that attention_mask hides")
    return faults


@contextmanager
def staging_folder(folder: Path) -> Iterator[Path]:
    """Yield a new empty folder of a random name beside `folder`; what was not renamed away is removed at the end.

    Having it proves that `folder` can be made there, so ask before work that would be lost. Raises OSError.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = folder.parent / f".tmp-{folder.name[:64]}-{secrets.token_hex(6)}"
    staging.mkdir()
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def write_rollout(rollout: Rollout, folder: Path, *, staging: Path | None = None) -> Path:
    """Write the two files of `rollout` into the new folder `folder`, whole or not at all; return it.

    staging: an empty folder of `staging_folder(folder)`; without it one is made here.
    Raises OSError when the folder exists and is not empty, or cannot be written.
    """
    if staging is None:
        with staging_folder(folder) as made:
            return write_rollout(rollout, folder, staging=made)
    for name, data in (
        (TENSORS_FILE, save(rollout.tensors)),
        (MANIFEST_FILE, pretty_json(rollout.manifest)),
    ):
        with (staging / name).open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
    staging.rename(folder)
    return folder


def read_rollout(folder: Path, *, sha256: str = "") -> Rollout:
    """Return the frozen rollout in `folder`, checked against its manifest and, if given, the manifest's digest.

    Raises IdentityError when a file is missing, altered or logically wrong.
    """
    try:
        for name in (MANIFEST_FILE, TENSORS_FILE):
            if (folder / name).exists() and not (folder / name).is_file():  # a pipe would wait for ever
                raise OSError(errno.EINVAL, "not a regular file", name)
        manifest_bytes = (folder / MANIFEST_FILE).read_bytes()
        tensor_bytes = (folder / TENSORS_FILE).read_bytes()
    except OSError as error:
        raise IdentityError(
            f"the frozen rollout {str(folder)!r} cannot be read: {error.strerror} ({Path(error.filename).name})",
            hint="It is a folder with manifest.json and rollout.safetensors; make one with `xcfg freeze`.",
        ) from None
    actual = hashlib.sha256(manifest_bytes).hexdigest()
    if sha256 and actual != sha256:
        raise IdentityError(
            f"the frozen rollout {str(folder)!r} has digest {actual}, the experiment names {sha256}",
            hint="Name the digest that `xcfg freeze` printed, or point the experiment at the right folder.",
        )
    manifest = _manifest(manifest_bytes, folder)
    if hashlib.sha256(tensor_bytes).hexdigest() != manifest.tensors_sha256:
        raise IdentityError(f"{TENSORS_FILE} in {str(folder)!r} is not the file that its manifest names")
    try:
        tensors: dict[str, NDArray[np.generic]] = dict(load(tensor_bytes))
    except (SafetensorError, KeyError) as error:  # KeyError: a dtype that numpy does not have
        raise IdentityError(f"{TENSORS_FILE} in {str(folder)!r} is malformed: {error}") from None
    check_tensors(tensors)
    _check_counts(manifest, _counts(tensors), folder)
    return Rollout(manifest, tensors, actual, folder)


def read_manifest(folder: Path) -> RolloutManifest:
    """Return the manifest of a frozen rollout alone; the tensors are neither read nor checked. Raises IdentityError."""
    try:
        data = (folder / MANIFEST_FILE).read_bytes()
    except OSError as error:
        raise IdentityError(f"the frozen rollout {str(folder)!r} cannot be read: {error.strerror}") from None
    return _manifest(data, folder)


def _manifest(data: bytes, folder: Path) -> RolloutManifest:
    try:
        manifest = decode_json(data, RolloutManifest, source=str(folder / MANIFEST_FILE))
    except ConfigError as error:
        raise IdentityError(error.message, hint=error.hint) from None
    if manifest.schema_version != ROLLOUT_SCHEMA:
        raise IdentityError(f"unknown schema_version {manifest.schema_version!r}", hint=f"Known: {ROLLOUT_SCHEMA}.")
    return manifest


def _check_counts(manifest: RolloutManifest, counts: list[tuple[int, int]], folder: Path) -> None:
    stated = [(item.length, item.active_tokens) for item in manifest.sequences]
    totals = (sum(length for length, _ in counts), sum(active for _, active in counts))
    if stated != counts or (manifest.token_count, manifest.active_count) != totals:
        raise IdentityError(f"{MANIFEST_FILE} in {str(folder)!r} counts other sequences or tokens than {TENSORS_FILE}")
