"""COMPLETE: its exact bytes, and a sealed folder held against it.

COMPLETE is JSON in one spelling (sorted keys, one-space indent) with the SHA-256 of its own content in
`seal`, so that a flipped byte anywhere in it is noticed. It names every other file of its folder; a file it
does not name, or that is not a regular file, makes the folder invalid: nobody can tell who put it there.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from xcfg.artifacts.layout import COMPLETE, SCORE_PAYLOADS, STATUS_PAYLOADS, is_digest, is_payload
from xcfg.artifacts.reading import Digests, entries, kind_of, read_bounded
from xcfg.errors import ArtifactError, ConfigError
from xcfg.schema.attempt import CASE_SEAL, SCORE_SEAL, CaseSeal, ScoreSeal
from xcfg.schema.codec import convert, digest, evolve, parse_strict, plain, pretty_json
from xcfg.schema.names import Status

MAX_SEAL = 4 * 1024 * 1024
Seal = TypeVar("Seal", ScoreSeal, CaseSeal)
_SCHEMA: dict[type[Any], str] = {ScoreSeal: SCORE_SEAL, CaseSeal: CASE_SEAL}


def closed(seal: Seal) -> Seal:
    """Return `seal` with its own digest filled in; ArtifactError when its facts are not plain JSON."""
    document = plain(seal)
    document.pop("seal", None)
    try:
        return evolve(seal, seal=digest(document))
    except ValueError as error:
        raise ArtifactError(
            f"the facts of a seal are not plain JSON: {error}",
            hint="Use strings, finite numbers, integers below 2^53, booleans, lists and objects.",
        ) from None


def decode_seal(data: bytes, kind: type[Seal], *, source: str = COMPLETE) -> Seal:
    """Return the seal in the bytes of COMPLETE; ArtifactError when malformed, altered, of another schema."""
    try:
        document = parse_strict(data, source=source)
        if not isinstance(document, dict):
            raise ArtifactError(f"{source}: not an object")
        stated = document.get("schema_version")
        if stated != _SCHEMA[kind]:
            raise ArtifactError(f"{source}: schema_version {stated!r}", hint=f"Known: {_SCHEMA[kind]}.")
        content = {key: value for key, value in document.items() if key != "seal"}
        if document.get("seal") != digest(content) or pretty_json(document) != data:
            raise ArtifactError(f"{source}: its content is not what its own seal says; it was altered")
        seal = convert(document, kind, source=source)
    except ConfigError as error:
        raise ArtifactError(error.message) from None
    except ValueError as error:  # a number or a string that canonical JSON cannot hold
        raise ArtifactError(f"{source}: {error}") from None
    faults = seal_faults(seal)
    if faults:
        raise ArtifactError(f"{source}: {'; '.join(faults)}")
    return seal


def seal_faults(seal: ScoreSeal | CaseSeal) -> list[str]:
    """Return what is wrong with a seal by itself: names, digests, payloads that its status requires."""
    faults = [f"{name!r} is no payload name" for name in seal.files if not is_payload(name)]
    faults += [f"the digest of {name!r} is no SHA-256" for name, value in seal.files.items() if not is_digest(value)]
    if isinstance(seal, ScoreSeal):
        return faults + [f"a side score requires {name}" for name in SCORE_PAYLOADS if name not in seal.files]
    if seal.status not in Status.__members__:
        return [*faults, f"unknown status {seal.status!r}"]
    return faults + STATUS_PAYLOADS[Status(seal.status)].faults(seal.status, seal.files)


def check_folder(folder: int, kind: type[Seal], digests: Digests) -> tuple[Seal | None, list[str]]:
    """Hold an open folder against its COMPLETE; return the seal (None without a good one) and every fault."""
    try:
        names = entries(folder)
        if COMPLETE not in names:
            return None, ["partial: it has no COMPLETE"]
        seal = decode_seal(read_bounded(COMPLETE, parent=folder, limit=MAX_SEAL), kind)
    except ArtifactError as error:
        return None, [f"malformed: {error.message}"]
    faults = [_stranger(name, folder) for name in names if name != COMPLETE and name not in seal.files]
    for name, expected in sorted(seal.files.items()):
        if name not in names:
            faults.append(f"missing: {name}")
            continue
        try:
            actual = digests.of(name, parent=folder)
        except (ArtifactError, OSError) as error:
            faults.append(f"unreadable: {error.message if isinstance(error, ArtifactError) else error}")
            continue
        if actual != expected:
            faults.append(f"altered: {name} has SHA-256 {actual[:12]}…, COMPLETE says {expected[:12]}…")
    return seal, faults


def _stranger(name: str, folder: int) -> str:
    try:
        kind = kind_of(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        kind = "gone again"
    return f"foreign: {name!r} ({kind}) is not named by COMPLETE"


def read_payload(path: Path, name: str, files: Mapping[str, str]) -> bytes:
    """Return the bytes of payload `name` in folder `path`, checked against the seal at this moment."""
    if name not in files:
        raise ArtifactError(f"{str(path)!r} has no {name!r}", hint="Sealed: " + ", ".join(sorted(files)) + ".")
    data = read_bounded(str(path / name))
    if hashlib.sha256(data).hexdigest() != files[name]:
        raise ArtifactError(f"{str(path / name)!r} was altered after it was sealed")
    return data


def with_files(seal: Seal, files: Mapping[str, str]) -> Seal:
    """Return `seal` with the payload digests `files`; ArtifactError when its status requires others."""
    complete = evolve(seal, files=dict(files))
    faults = seal_faults(complete)
    if faults:
        raise ArtifactError("it cannot be sealed: " + "; ".join(faults))
    return complete
