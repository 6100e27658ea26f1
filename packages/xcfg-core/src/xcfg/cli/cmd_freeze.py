"""`xcfg freeze`: sample once with a real engine and freeze the rollout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from xcfg.cli._output import Session, common_options, emit, pass_session
from xcfg.errors import UsageError
from xcfg.schema._base import Value
from xcfg.schema.codec import parse_strict


@click.command()
@click.option("--checkpoint", required=True, metavar="URI", help="builtin:NAME, or a Hugging Face folder.")
@click.option("--prompts", required=True, type=click.Path(path_type=Path), help="JSONL of token_ids or text.")
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
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True)
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
    """Sample every prompt and freeze token ids, masks and recorded log probabilities in a new folder."""
    from xcfg.contract import load_contract
    from xcfg.flow.freeze import FreezeOptions
    from xcfg.flow.freeze import freeze as freeze_journey

    devices = tuple(part.strip() for part in given.pop("devices").split(",") if part.strip())
    settings = dict(_setting(text) for text in given.pop("settings"))
    options = FreezeOptions(devices=devices, settings=settings, **given)
    rollout = freeze_journey(session.manager, options)
    document = {
        "schema_version": "xcfg.freeze.v1",
        "path": str(options.output),
        "sha256": rollout.sha256,
        "sequences": rollout.sequence_count,
        "tokens": rollout.manifest.token_count,
        "active_tokens": rollout.manifest.active_count,
        "stop_ids": rollout.manifest.sampling.extra.get("stop_ids", []),
        "stopped": rollout.manifest.generator.get("finish_reasons", []).count("stop"),
        "minimum_sequences": load_contract().assessment.min_sequences,
        "checkpoint": {"uri": rollout.manifest.checkpoint.uri, "digest": rollout.manifest.checkpoint.digest},
    }
    emit(session, document, _show)


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
    if document["sequences"] < document["minimum_sequences"]:
        click.echo(f"  note: a precision budget needs at least {document['minimum_sequences']} sequences")
    if document["stopped"]:
        click.echo(f"  {document['stopped']} of them ended at a stop id")
    click.echo(f"  folder      {document['path']}")
    click.echo(f"  checkpoint  {document['checkpoint']['uri']}")
    click.echo("  name it in an experiment as")
    click.echo(f'    "identity": {{"rollout": {{"path": "{document["path"]}", "sha256": "{document["sha256"]}"}}}}')
