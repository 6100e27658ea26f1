"""What every command shares: the session, the options that work before and after a subcommand, and output."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from xcfg.schema import codec

if TYPE_CHECKING:
    from xcfg.plugin.manager import PluginManager

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


@dataclass
class Session:
    """One call of `xcfg`: its shared options, and the plugins, which are loaded when first asked for."""

    json: bool = False
    debug: bool = False
    blocked: tuple[str, ...] = ()
    emitted: bool = False
    _plugins: PluginManager | None = field(default=None, repr=False)

    @classmethod
    def from_arguments(cls, arguments: Sequence[str]) -> Session:
        """Read the shared options before click does.

        A wrong option stops click before it has seen `--json`, and a plugin that brings the very command must
        be blocked before the command is looked up.
        """
        session = cls()
        words = list(arguments)
        own = words[: words.index("--")] if "--" in words else words
        for index, word in enumerate(own):
            if word == "--json":
                session.json = True
            elif word == "--debug":
                session.debug = True
            elif word == "--no-plugin":
                session.block(own[index + 1 : index + 2])
            elif word.startswith("--no-plugin="):
                session.block([word.partition("=")[2]])
        return session

    def block(self, names: Iterable[str]) -> None:
        """Leave out plugins; those that were loaded are loaded again without them."""
        wanted = tuple(dict.fromkeys((*self.blocked, *names)))
        if wanted != self.blocked:
            self.blocked, self._plugins = wanted, None

    @property
    def manager(self) -> PluginManager:
        """The plugin manager of this call."""
        if self._plugins is None:
            from xcfg.plugin.manager import PluginManager

            self._plugins = PluginManager.load(blocked=self.blocked)
        return self._plugins


class BareGroupError(click.UsageError):
    """A group was called without a command; the message is its help."""


class CommandGroup(click.Group):
    """A group that needs a command: alone it shows its help on stderr and the exit code is 2."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Raise BareGroupError where there is nothing to parse."""
        if not args and not ctx.resilient_parsing:
            raise BareGroupError(ctx.get_help(), ctx)
        return super().parse_args(ctx, args)


def pass_session(command: F) -> F:
    """Give the session to a command as its first argument."""
    return cast("F", click.make_pass_decorator(Session, ensure=True)(command))


def emit(session: Session, value: T, human: Callable[[T], str | None]) -> None:
    """Print the result of a command on stdout: one JSON document under `--json`, else the human form.

    human: returns the text, or prints it itself and returns None.
    """
    session.emitted = True
    if session.json:
        click.echo(codec.pretty_json(value, lone_surrogates=True), nl=False)
    elif (text := human(value)) is not None:
        click.echo(text.rstrip("\n"))


def note(text: str) -> None:
    """Print a remark on stderr, where it disturbs no document."""
    click.echo(text, file=sys.stderr)


def common_options(command: F) -> F:
    """Add `--json`, `--debug` and `--no-plugin`; the values go to the session, not to the function."""
    command = click.option(
        "--no-plugin",
        "_no_plugin",
        multiple=True,
        metavar="NAME",
        expose_value=False,
        callback=_block,
        help="Leave out a plugin; may be given several times.",
    )(command)
    command = click.option(
        "--debug", is_flag=True, expose_value=False, callback=_debug, help="Show the traceback of an error."
    )(command)
    return click.option(
        "--json", "_json", is_flag=True, expose_value=False, callback=_json, help="Print one JSON document."
    )(command)


def _json(context: click.Context, _: click.Parameter, value: bool) -> None:
    session = context.ensure_object(Session)
    session.json = session.json or value


def _debug(context: click.Context, _: click.Parameter, value: bool) -> None:
    session = context.ensure_object(Session)
    session.debug = session.debug or value


def _block(context: click.Context, _: click.Parameter, value: tuple[str, ...]) -> None:
    context.ensure_object(Session).block(value)


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return an aligned text table; the last column is not padded, control characters become spaces."""
    cells = [list(headers), *([_clean(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headers))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)
    return "\n".join(line.rstrip() for line in lines)


def fields(pairs: Iterable[tuple[str, str]]) -> str:
    """Return `name  value` lines, aligned; pairs without a value are left out."""
    kept = [(name, _clean(value)) for name, value in pairs if value]
    width = max((len(name) for name, _ in kept), default=0)
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in kept)


def _clean(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)
