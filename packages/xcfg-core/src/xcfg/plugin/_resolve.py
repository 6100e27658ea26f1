"""Turn a `module:attr` string into the object behind it, at the moment it is needed and not before."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from typing import Any

from xcfg.errors import MissingDependencyError, PluginError
from xcfg.plugin._offers import REFERENCE


@contextlib.contextmanager
def quiet_stdout() -> Iterator[None]:
    """Send what foreign code prints to stderr: stdout belongs to the one document of `--json`."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def describe(error: BaseException, *, limit: int = 300) -> str:
    """Return an exception as one line, `ValueError: what it said`, cut to `limit` characters."""
    text = " ".join(str(error).split())
    line = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return line if len(line) <= limit else line[: limit - 1] + "…"


def resolve(reference: str, *, install_hint: str = "", owner: str = "") -> Any:
    """Return the object that `reference` names.

    install_hint: the command that brings what is missing. owner: which plugin the reference comes from, for
    messages. Raises MissingDependencyError when a module is absent, PluginError for everything else, also for
    a module that calls sys.exit while it is imported.
    """
    of = f" of plugin {owner!r}" if owner else ""
    if not REFERENCE.fullmatch(reference):
        raise PluginError(f"{reference!r}{of} is not 'module:attr'", hint="For example 'my_kernel.backend:build'.")
    module_name, _, attribute = reference.partition(":")
    try:
        with quiet_stdout():
            found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"{reference!r}{of} needs the module {error.name or module_name!r}, which is not installed",
            hint=install_hint or _missing_hint(module_name, error.name),
        ) from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise PluginError(f"{reference!r}{of} cannot be imported: {describe(error)}", hint=install_hint) from error
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise PluginError(
                f"{reference!r}{of}: {module_name!r} has no attribute {part!r}",
                hint="Compare the reference with the module; both come from the same package.",
            ) from None
    return found


def _missing_hint(module_name: str, missing: str | None) -> str:
    if missing and (module_name == missing or module_name.startswith(missing + ".")):
        return "The package that should hold this module is installed incompletely; install it again."
    return f"Install the package that provides {missing!r}."
