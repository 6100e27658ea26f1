"""`xcfg freeze`: sample once with a real engine, or take the tokens of a dump, and freeze the rollout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from xcfg.cli._output import Session, common_options, emit, pass_session
from xcfg.cli._signals import end_as_interrupted
from xcfg.errors import UsageError
from xcfg.identity.rollout import Rollout
from xcfg.schema._base import Value
from xcfg.schema.codec import parse_strict


@click.command()
@click.option("--checkpoint", required=True, metavar="URI", help="builtin:NAME, or a Hugging Face folder.")
@click.option("--prompts", type=click.Path(path_type=Path), help="JSONL of token_ids or text, to be sampled.")
@click.option("--dump", type=click.Path(path_type=Path), help="In place of prompts: any file that compare reads.")
@click.option("--train", type=click.Path(path_type=Path), help="With --dump: the file of the other side.")
@click.option("--format", "reader", metavar="NAME", help="With --dump: the reader to use.")
@click.option("--train-format", "train_reader", metavar="NAME", help="With --train: the reader to use.")
@click.option("--weight-version", type=int, metavar="N", help="With --dump: the version that CHECKPOINT has.")
@click.option("--redact", "redacted", is_flag=True, help="With --dump: request ids become salted hashes.")
@click.option("--output", required=True, type=click.Path(path_type=Path), help="The new folder of the rollout.")
@click.option("--runtime", default="torch", show_default=True, metavar="NAME")
@click.option("--devices", default="cpu", show_default=True, metavar="LIST")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="PATH=VALUE",
    help="A knob of the rollout side; may be given several times.",
)
@click.option("--max-new-tokens", type=click.IntRange(1, 2**31 - 1), default=64, show_default=True)
@click.option("--temperature", type=float, default=1.0, show_default=True)
@click.option("--top-k", type=int, default=0, show_default=True)
@click.option("--top-p", type=float, default=1.0, show_default=True)
@click.option("--seed", type=click.IntRange(0, 2**53 - 1), default=0, show_default=True)
@click.option("--logprobs-mode", default="raw_logprobs", show_default=True)
@click.option(
    "--stop-id",
    "stop_ids",
    type=int,
    multiple=True,
    metavar="ID",
    help="A token id that ends a sequence, beside the checkpoint's eos_token_id; may be given several times.",
)
@click.option("--ignore-eos", is_flag=True, help="Do not end sequences at the checkpoint's eos_token_id.")
@click.option("--limit", type=int, metavar="N", help="Only the first N prompts.")
@common_options
@pass_session
def freeze(session: Session, **given: Any) -> None:
    """Freeze token ids, masks and recorded log probabilities in a new folder, from prompts or from a dump."""
    from xcfg.contract import load_contract

    end_as_interrupted()
    rollout = _from_dump(session, given) if given["dump"] else _from_prompts(session, given)
    document = {
        "schema_version": "xcfg.freeze.v1",
        "path": str(given["output"]),
        "sha256": rollout.sha256,
        "sequences": rollout.sequence_count,
        "tokens": rollout.manifest.token_count,
        "active_tokens": rollout.manifest.active_count,
        "inactive_other_version": rollout.manifest.inactive_other_version,
        "stop_ids": rollout.manifest.sampling.extra.get("stop_ids", []),
        "stopped": rollout.manifest.generator.get("finish_reasons", []).count("stop"),
        "minimum_sequences": load_contract().assessment.min_sequences,
        "joined": rollout.manifest.generator.get("joined"),
        "remarks": rollout.manifest.generator.get("remarks", []),
        "checkpoint": {"uri": rollout.manifest.checkpoint.uri, "digest": rollout.manifest.checkpoint.digest},
    }
    emit(session, document, _show)


def _from_prompts(session: Session, given: dict[str, Any]) -> Rollout:
    from xcfg.flow.freeze import FreezeOptions
    from xcfg.flow.freeze import freeze as freeze_journey

    _refuse(("train", "reader", "train_reader", "weight_version", "redacted"), "--prompts")
    if not given["prompts"]:
        raise UsageError("there is nothing to freeze", hint="Give --prompts FILE to sample, or --dump FILE.")
    options = {name: value for name, value in given.items() if name in FreezeOptions.__dataclass_fields__}
    options["devices"] = tuple(part.strip() for part in given["devices"].split(",") if part.strip())
    options["settings"] = dict(_setting(text) for text in given["settings"])
    return freeze_journey(session.manager, FreezeOptions(**options))


def _from_dump(session: Session, given: dict[str, Any]) -> Rollout:
    from xcfg.flow.freeze_dump import FreezeDumpOptions, freeze_dump

    shared = {"checkpoint", "output"}
    _refuse(tuple(given.keys() - FreezeDumpOptions.__dataclass_fields__.keys() - shared), "--dump")
    options = {name: value for name, value in given.items() if name in FreezeDumpOptions.__dataclass_fields__}
    return freeze_dump(session.manager, FreezeDumpOptions(**options))


def _refuse(names: tuple[str, ...], beside: str) -> None:
    """Raise UsageError for options that were typed and mean nothing here."""
    context = click.get_current_context()
    typed = click.core.ParameterSource.COMMANDLINE
    odd = [item for item in context.command.params if item.name in names]
    odd = [item for item in odd if item.name and context.get_parameter_source(item.name) is typed]
    if odd:
        shown = ", ".join(item.opts[0] for item in odd)
        raise UsageError(f"{shown} means nothing beside {beside}", hint="See `xcfg freeze --help`.")


def _setting(text: str) -> tuple[str, Value]:
    path, sign, value = text.partition("=")
    if not sign or not path:
        raise UsageError(f"--set {text!r} is not PATH=VALUE", hint="e.g. --set rollout.dtype=float32")
    try:
        parsed = parse_strict(value)
    except UsageError:
        parsed = value
    return path, parsed


def _show(document: dict[str, Any]) -> None:
    click.echo(f"frozen {document['sequences']} sequences, {document['active_tokens']} active tokens")
    for remark in document["remarks"]:
        click.echo(f"  {remark}")
    joined = document["joined"] or {}
    for name, what in (("only_rollout", "the rollout file"), ("only_training", "the training file")):
        if joined and joined[name]["samples"]:
            click.echo(
                f"  not joined: {joined[name]['samples']} samples, {joined[name]['tokens']} tokens only in {what}"
            )
    if joined and joined["active_in_one"]:
        click.echo(f"  {joined['active_in_one']} tokens are not active, since only one of the two files calls them so")
    if document["inactive_other_version"]:
        click.echo(f"  {document['inactive_other_version']} tokens of another weight version are not active")
    if document["sequences"] < document["minimum_sequences"]:
        click.echo(f"  note: a precision budget needs at least {document['minimum_sequences']} sequences")
    if document["stopped"]:
        click.echo(f"  {document['stopped']} of them ended at a stop id")
    click.echo(f"  folder      {document['path']}")
    click.echo(f"  checkpoint  {document['checkpoint']['uri']}")
    click.echo("  name it in an experiment as")
    click.echo(f'    "identity": {{"rollout": {{"path": "{document["path"]}", "sha256": "{document["sha256"]}"}}}}')
