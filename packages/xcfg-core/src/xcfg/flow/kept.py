"""A comparison of a dump that is kept: its columns, redacted or not, and what was found, to be verified offline."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from xcfg.artifacts.layout import is_digest
from xcfg.comparison import same_comparison
from xcfg.contract import load_contract
from xcfg.dumps.kept import active_per_sequence, table_from, tensors_of
from xcfg.errors import ArtifactError, ConfigError, UsageError
from xcfg.flow.compare import judge_dump
from xcfg.flow.dumps import Dump
from xcfg.identity.mask import mask_faults
from xcfg.identity.rollout import MANIFEST_FILE, TENSORS_FILE, read_rollout, staging_folder
from xcfg.schema.attempt import AttemptCheck
from xcfg.schema.codec import decode_json, digest, evolve, plain, pretty_json
from xcfg.schema.kept import KEPT, KeptComparison
from xcfg.schema.result import Comparison

RECORD, COLUMNS, COMPARISON = "kept.json", "dump.safetensors", "comparison.json"


def refuse_existing(folder: Path) -> None:
    """Raise UsageError when `folder` exists: evidence is never overwritten."""
    if os.path.lexists(folder):
        raise UsageError(f"{str(folder)!r} exists", hint="A kept comparison is never overwritten; name another folder.")


def keep(dump: Dump, comparison: Comparison, folder: Path) -> Path:
    """Write the columns of `dump`, `comparison` and their seal into the new folder `folder`, whole or not at all.

    A redacted dump is kept redacted. Raises UsageError when the folder exists, ArtifactError when no token was
    joined, OSError when it cannot be written.
    """
    refuse_existing(folder)
    if not dump.table.rows:
        raise ArtifactError("there is nothing to keep: no token was joined", hint="Look at the keys of the two files.")
    files = {COLUMNS: save(tensors_of(dump.table)), COMPARISON: pretty_json(comparison)}
    record = KeptComparison(
        schema_version=KEPT,
        contract=load_contract().digest,
        redacted=dump.redacted,
        files={name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
        sample_ids=dump.table.sample_ids,
        active_tokens=active_per_sequence(dump.table),
        dtypes=dict(dump.table.dtypes),
        unattested=dump.table.unattested,
    )
    files[RECORD] = pretty_json(evolve(record, seal=_seal(record)))
    with staging_folder(folder) as staging:
        for name, data in files.items():
            with (staging / name).open("wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
        staging.rename(folder)
    return folder


def check_alone(folder: Path, *, seals_only: bool) -> AttemptCheck | None:
    """Return the check of a kept comparison or of a frozen rollout that lies in `folder`; None for anything else.

    Hashes always; unless `seals_only`, the mask is computed again, and the comparison judged again.
    """
    if (folder / RECORD).is_file():
        faults = _kept_faults(folder, seals_only)
    elif is_digest(folder.name.partition(".")[0]):  # a rollout of the store, which its experiment vouches for
        return None
    elif (folder / MANIFEST_FILE).is_file() and (folder / TENSORS_FILE).is_file():
        rollout = read_rollout(folder)
        faults = [] if seals_only else mask_faults(rollout)
    else:
        return None
    return AttemptCheck(path=str(folder), ok=not faults, reasons=tuple(faults))


def _seal(record: KeptComparison) -> str:
    document = plain(record)
    document.pop("seal", None)
    return digest(document)


def _kept_faults(folder: Path, seals_only: bool) -> list[str]:
    try:
        record = decode_json((folder / RECORD).read_bytes(), KeptComparison, source=str(folder / RECORD))
        data = {name: (folder / name).read_bytes() for name in (COLUMNS, COMPARISON)}
    except OSError as error:
        return [f"unreadable: {Path(error.filename).name}: {error.strerror}"]
    except ConfigError as error:
        return [f"malformed: {error.message}"]
    if record.schema_version != KEPT or record.seal != _seal(record):
        return [f"altered: the content of {RECORD} is not what its own seal says"]
    faults = [f"foreign: {name!r} is not named by {RECORD}" for name in _strangers(folder)]
    for name, content in data.items():
        if hashlib.sha256(content).hexdigest() != record.files.get(name):
            faults.append(f"altered: {name} is not the file that {RECORD} names")
    if faults or seals_only:
        return faults
    return _recomputed(record, data)


def _strangers(folder: Path) -> list[str]:
    return sorted(set(os.listdir(folder)) - {RECORD, COLUMNS, COMPARISON})


def _recomputed(record: KeptComparison, data: dict[str, bytes]) -> list[str]:
    contract = load_contract()
    if contract.digest != record.contract:
        return [f"judged by the contract {record.contract[:16]}…, which this xcfg does not carry"]
    try:
        stored = decode_json(data[COMPARISON], Comparison, source=COMPARISON)
        tensors: dict[str, NDArray[np.generic]] = dict(load(data[COLUMNS]))
    except ConfigError as error:
        return [f"malformed: {error.message}"]
    except (SafetensorError, KeyError) as error:
        return [f"malformed: {COLUMNS}: {error}"]
    table, faults = table_from(tensors, record)
    if table is None or faults:
        return faults
    return same_comparison(stored, judge_dump(table, contract))
