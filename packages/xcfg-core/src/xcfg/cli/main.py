"""The group `xcfg`: finds commands without importing them, turns every error into text and an exit code."""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import click

from xcfg.cli._output import BareGroupError, CommandGroup, Session, common_options, note
from xcfg.errors import PluginError, UnknownNameError, UsageError, XcfgError
from xcfg.plugin.builtin.commands import CORE_COMMANDS
from xcfg.schema import codec
from xcfg.schema.summary import ERROR, ErrorSummary

PROGRAM = "xcfg"
BROKEN_PIPE = 141
"""128 + SIGPIPE, as a shell reports it; 1 would say that the sides mismatch."""
CORE = {record.name: record for record in CORE_COMMANDS}


class LazyGroup(CommandGroup):
    """A group whose commands are `module:attr` strings: core's from a table, the others from plugins."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return core's commands, then those of plugins by name."""
        return [*CORE, *sorted(self._brought(ctx))]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command; a planned one becomes a command that says what is missing."""
        from xcfg.plugin._resolve import resolve

        if cmd_name in CORE:  # not through resolve(): that core cannot be imported is a fault of core
            module, _, attribute = CORE[cmd_name].factory.partition(":")
            found = getattr(importlib.import_module(module), attribute)
        elif (provided := self._brought(ctx).get(cmd_name)) is None:
            return None
        elif provided.record.status != "available":
            return _planned_command(cmd_name, provided.record.summary, provided.record.missing)
        else:
            found = resolve(provided.record.factory, owner=provided.plugin)
        if not isinstance(found, click.Command):
            raise PluginError(f"the command {cmd_name!r} is a {type(found).__name__}, not a click command")
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of `args`; UnknownNameError says what is near and which package has it."""
        name = args[0]
        command = self.get_command(ctx, name)
        if command is None:
            hint = ctx.ensure_object(Session).manager.hint("command", name)
            raise UnknownNameError(f"there is no command {name!r}", hint=hint)
        return name, command, args[1:]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the one-line helps from the records, so that `--help` imports no command."""
        rows = [(record.name, record.summary) for record in CORE.values()]
        for name, provided in sorted(self._brought(ctx).items()):
            planned = "" if provided.record.status == "available" else "(planned) "
            rows.append((name, planned + provided.record.summary))
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    @staticmethod
    def _brought(ctx: click.Context) -> dict[str, Any]:
        offered = ctx.ensure_object(Session).manager.commands(planned=True)
        return {item.record.name: item for item in offered if item.record.name not in CORE}


def _planned_command(name: str, summary: str, missing: str) -> click.Command:
    reason = missing or "it is not part of this version"

    @click.command(name, help=f"{summary} Planned: {reason}.", context_settings={"ignore_unknown_options": True})
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    def refuse(arguments: tuple[str, ...]) -> None:
        raise PluginError(
            f"the command {name!r} is planned and does nothing yet: {reason}",
            hint="`xcfg plugins list` shows what this installation has.",
        )

    return refuse


def _print_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from xcfg.plugin._compat import core_version

        click.echo(f"{PROGRAM} {core_version() or 'unknown'}")
        ctx.exit()


@click.group(PROGRAM, cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Show the version and exit.",
)
@common_options
def cli() -> None:
    """Find the configuration difference that makes rollout and training log probabilities drift."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code (contract, section 6); nothing is raised."""
    _show_every_name()
    words = list(sys.argv[1:] if arguments is None else arguments)
    session = Session.from_arguments(words)
    try:
        return _finish(_run(words, session), session)
    except BrokenPipeError:
        return _give_up_stdout()
    except KeyboardInterrupt:
        return 130


def _show_every_name() -> None:
    """Let stdout write what its encoding lacks as an escape: a stored file may have any bytes for a name."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _run(words: list[str], session: Session) -> BaseException | int:
    """Return the exit code of a command, or what it raised."""
    try:
        with cli.make_context(PROGRAM, words, obj=session) as context:
            result = cli.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except SystemExit as exit_:
        return exit_.code if type(exit_.code) is int and (exit_.code or session.emitted) else exit_
    except BaseException as error:  # noqa: BLE001 - the one place that turns whatever happened into a code
        return error
    return result if type(result) is int else 0


def _finish(outcome: BaseException | int, session: Session) -> int:
    """Print an error where there is one; return the exit code."""
    if isinstance(outcome, int):
        return outcome
    if isinstance(outcome, OSError) and outcome.errno == errno.EPIPE:
        return _give_up_stdout()
    if session.debug:
        note("".join(traceback.format_exception(outcome)).rstrip("\n"))
    summary = _summary(outcome)
    if session.json and not session.emitted:
        click.echo(codec.pretty_json(summary, lone_surrogates=True), nl=False)
    elif isinstance(outcome, BareGroupError):
        note(outcome.message)
    else:
        note(f"{PROGRAM}: {summary.message}" + (f"\n  {summary.hint}" if summary.hint else ""))
    sys.stdout.flush()
    return summary.exit_code


def _summary(error: BaseException) -> ErrorSummary:
    if isinstance(error, XcfgError):
        return _error(error.kind, error.message, error.hint, error.exit_code)
    if isinstance(error, (KeyboardInterrupt, EOFError, click.Abort)):
        return _error("interrupted", "interrupted", "", 130)
    if isinstance(error, click.ClickException):
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else PROGRAM
        bare = isinstance(error, BareGroupError)
        message = f"{path}: a command is missing" if bare else error.format_message()
        return _error(UsageError.kind, message, f"{_offered(error)}Try '{path} --help'.", UsageError.exit_code)
    if isinstance(error, SystemExit):
        told = f"something called sys.exit({error.code!r}) before there was a result"
        return _error("internal", told, "A command ends by returning its exit code.", 4)
    if isinstance(error, MemoryError):
        told = f"memory ran out: {' '.join(str(error).split())}".rstrip(": ")
        return _error("out_of_memory", told, "Use a machine with more, or a part of the input: fewer samples.", 4)
    told = f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(": ")
    message = f"this is a fault of xcfg, not of your input: {told}"
    return _error("internal", message, "Run it again with --debug and report the traceback.", 4)


def _offered(error: click.ClickException) -> str:
    """Return the options of the command that was given an unknown one; click itself names only those spelled alike."""
    if not isinstance(error, click.NoSuchOption) or error.possibilities or error.ctx is None:
        return ""
    params = error.ctx.command.get_params(error.ctx)
    names = [max(item.opts, key=len) for item in params if isinstance(item, click.Option)]
    return f"Available: {', '.join(names)}. "


def _error(kind: str, message: str, hint: str, exit_code: int) -> ErrorSummary:
    return ErrorSummary(schema_version=ERROR, kind=kind, message=message, hint=hint, exit_code=exit_code)


def _give_up_stdout() -> int:
    """Point stdout at nothing, so that the interpreter does not complain when it flushes at its end."""
    try:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
    except (OSError, ValueError):
        pass
    return BROKEN_PIPE
