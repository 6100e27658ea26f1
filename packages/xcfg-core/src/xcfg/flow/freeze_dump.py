"""The other freeze journey: no engine samples, the tokens and scores of a dump become the frozen rollout."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xcfg.dumps import Rows, frozen_rollout, join, order_sides
from xcfg.dumps.redact import redact_names
from xcfg.errors import IdentityError, UsageError
from xcfg.flow.checkpoints import Checkpoint, find_checkpoint
from xcfg.flow.dumps import open_part
from xcfg.flow.prompts import check_vocabulary
from xcfg.identity.checkpoint import tokenizer_digest
from xcfg.identity.rollout import MANIFEST_FILE, TENSORS_FILE, Rollout, read_manifest, write_rollout
from xcfg.plugin.manager import PluginManager
from xcfg.schema.identity import CheckpointRef, SamplingRecord


@dataclass(frozen=True)
class FreezeDumpOptions:
    """What is frozen. train: the file of the other side, if it is apart. reader, train_reader: as for compare.

    redacted: request ids become salted hashes; token ids stay, because an engine has to score them.
    """

    checkpoint: str
    dump: Path
    output: Path
    train: Path | None = None
    reader: str | None = None
    train_reader: str | None = None
    weight_version: int | None = None
    redacted: bool = False


def freeze_dump(manager: PluginManager, options: FreezeDumpOptions) -> Rollout:
    """Write the dump as a frozen rollout to options.output (which must not exist) and return it.

    The rollout's scores become `recorded_logprob`, the trainer's `recorded_training_logprob`; one side is enough.
    How the tokens were sampled is not attested, and the manifest says so; of two files it also holds what was not
    joined. A dump that is a frozen rollout names its checkpoint: another one is an IdentityError. Raises XcfgError.
    """
    if os.path.lexists(options.output):
        raise UsageError(
            f"{str(options.output)!r} exists", hint="A frozen rollout is never overwritten; name another folder."
        )
    rows, facts = _rows(manager, options)
    checkpoint = find_checkpoint(options.checkpoint, manager)
    unsaid = [said for path in (options.dump, options.train) if path and (said := _check_origin(path, checkpoint))]
    if unsaid:
        facts = {**facts, "remarks": [*facts.get("remarks", []), *unsaid]}
    check_vocabulary(_largest(rows), checkpoint, options.dump)
    if options.redacted:
        rows = Rows(rows.columns, redact_names(rows.sample_ids), "a redacted dump", rows.dtypes)
    rollout = frozen_rollout(
        rows,
        checkpoint=CheckpointRef(
            uri=checkpoint.uri, digest=checkpoint.digest, weight_version=options.weight_version or 0
        ),
        sampling=SamplingRecord(extra={"unattested": "a dump does not say how its tokens were sampled"}),
        weight_version=options.weight_version,
        facts=facts,
    )
    write_rollout(rollout, options.output)
    return rollout


def _check_origin(dump: Path, checkpoint: Checkpoint) -> str:
    """Refuse a frozen rollout that says it was made from other weights or another tokenizer than `checkpoint`.

    Return a remark where it names a checkpoint and gives no digest of it; empty where there is nothing to say.
    """
    if not ((dump / MANIFEST_FILE).is_file() and (dump / TENSORS_FILE).is_file()):
        return ""
    manifest = read_manifest(dump)
    tokenizer = tokenizer_digest(checkpoint.folder) if checkpoint.folder is not None else ""
    for what, theirs, ours in (
        ("weights", manifest.checkpoint.digest, checkpoint.digest),
        ("tokenizer", manifest.tokenizer.digest, tokenizer),
    ):
        if theirs and ours and theirs != ours:
            raise IdentityError(
                f"the dump was made from {manifest.checkpoint.uri!r}, whose {what} have digest {theirs[:16]}…; "
                f"{checkpoint.uri!r} has {ours[:16]}…",
                hint="Give the checkpoint that sampled the tokens: scores of other weights are no drift.",
            )
    if manifest.checkpoint.uri and not manifest.checkpoint.digest:
        return f"the dump names the checkpoint {manifest.checkpoint.uri!r} without a digest, which was not checked"
    return ""


def _rows(manager: PluginManager, options: FreezeDumpOptions) -> tuple[Rows, dict[str, Any]]:
    """Return the rows of one file or of two, and what of them was left out: counts, no names."""
    parts = [open_part(options.dump, manager, reader=options.reader)]
    if options.train is not None:
        parts.append(open_part(options.train, manager, reader=options.train_reader))
    facts: dict[str, Any] = {}
    remarks = [remark for part in parts for remark in part.remarks(redacted=options.redacted)]
    if remarks:
        facts["remarks"] = remarks
    if len(parts) == 1:
        return parts[0].rows, facts
    rows, joined = join(*order_sides(parts[0].rows, parts[1].rows))
    return rows, {**facts, "joined": joined.record()}


def _largest(rows: Rows) -> list[dict[str, object]]:
    """Return the largest token id in the form of a prompt, named after its sample."""
    if not rows.count:
        return []
    row = int(rows.columns["token_id"].argmax())
    return [{"id": rows.sample_of(row), "token_ids": [int(rows.columns["token_id"][row])]}]
