"""The record of a comparison of a dump that was kept in a folder of its own."""

from __future__ import annotations

from xcfg.schema._base import Record

KEPT = "xcfg.kept_comparison.v1"


class KeptComparison(Record):
    """kept.json: what `xcfg compare --output FOLDER` sealed. files: name -> SHA-256; contract: its digest.

    sample_ids: of the S sequences, salted hashes where `redacted`. active_tokens: per sequence, as the mask had them.
    dtypes: side -> attested compute dtype. unattested: what the dump says nothing about. seal: SHA-256 of the
    canonical JSON of every other field.
    """

    schema_version: str
    contract: str
    redacted: bool
    files: dict[str, str]
    sample_ids: tuple[str, ...]
    active_tokens: tuple[int, ...]
    dtypes: dict[str, str]
    unattested: tuple[str, ...]
    seal: str = ""
