"""`xcfg doctor`: what is installed and usable here, and what is known of two engines' arguments."""

from __future__ import annotations

import click

from xcfg.cli._doctor_text import show_doctor
from xcfg.cli._output import Session, common_options, emit, note, pass_session


@click.command()
@click.option("--rollout", default="", metavar="NAME", help="The rollout runtime (default vllm where arguments are).")
@click.option("--training", default="", metavar="NAME", help="The training runtime (default megatron).")
@click.option("--rollout-args", metavar="TEXT", help="The rollout engine's arguments: a command line, or @FILE.")
@click.option("--training-args", metavar="TEXT", help="The training engine's arguments: a command line, or @FILE.")
@click.option(
    "--platform",
    default="",
    metavar="NAME",
    help="cpu or cuda: where the arguments are to run (default: as on this machine).",
)
@common_options
@pass_session
def doctor(
    session: Session,
    rollout: str,
    training: str,
    rollout_args: str | None,
    training_args: str | None,
    platform: str,
) -> None:
    """Say what is installed, what is missing and the command for it, and what cannot share an environment.

    With arguments: which of them are ignored, refused, traps, set on one side only or unequal, each with the case that
    would confirm it; no model is loaded. FILE ends in .json, .yaml or .yml. Exit: 0 usable or clean, 1 traps, 2 nothing
    usable, a named engine missing, or bad input.
    """
    from xcfg.flow.doctor import DoctorOptions
    from xcfg.flow.doctor import doctor as journey

    options = DoctorOptions(
        rollout=rollout,
        training=training,
        rollout_args=rollout_args,
        training_args=training_args,
        platform=platform,
    )
    summary = journey(session.manager, options)
    emit(session, summary, show_doctor)
    if summary.arguments is not None and not platform and not session.json:
        here = summary.arguments.platform
        other = "cuda" if here == "cpu" else "cpu"
        note(f"judged for {here}, as on this machine; --platform {other} asks about the other")
    raise SystemExit(summary.exit_code)
