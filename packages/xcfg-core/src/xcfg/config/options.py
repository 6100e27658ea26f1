"""`runtime_options`: verbatim engine arguments, inline, from a JSON file, or as a command line."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

from xcfg.config.operators import SIDES
from xcfg.config.scan import check_tree
from xcfg.errors import ConfigError, did_you_mean
from xcfg.schema.codec import read_strict

_REFERENCES = ("file", "command_line", "from")
_OPTION = re.compile(r"--([A-Za-z][A-Za-z0-9_.-]*)(?:=(.*))?", re.DOTALL)
_NEGATIVE_NUMBER = re.compile(r"-[0-9.].*")


def parse_runtime_options(document: dict[str, Any], *, source: str, base_dir: str) -> dict[str, dict[str, Any]]:
    """Return side -> engine arguments; a side without any is left out, as in a v1 file.

    Raises ConfigError for an unknown side, an unreadable file, or a command line that cannot be split.
    """
    for side, value in document.items():
        path = f"$.runtime_options.{side}"
        if side not in SIDES:
            raise ConfigError(f"unknown side {side!r}", source=source, path=path, hint=did_you_mean(side, SIDES))
        if not isinstance(value, dict):
            raise ConfigError("engine arguments are an object", source=source, path=path, hint=_FORMS)
    sides = {
        side: _side(document[side], source, base_dir, f"$.runtime_options.{side}") for side in SIDES if side in document
    }
    return {side: options for side, options in sides.items() if options}


_FORMS = 'Give {"max_num_seqs": 8}, {"file": "engine.json"} or {"command_line": "--max-num-seqs 8"}.'


def _side(value: dict[str, Any], source: str, base_dir: str, path: str) -> dict[str, Any]:
    named = [key for key in _REFERENCES if key in value]
    if not named:
        return value
    key, text = named[0], value[named[0]]
    if len(value) != 1 or not isinstance(text, str) or not text.strip():
        raise ConfigError(f"{key!r} stands alone and is a string", source=source, path=path, hint=_FORMS)
    if key == "command_line" or (key == "from" and text.lstrip().startswith("-")):
        options = parse_command_line(text, source=source, path=f"{path}.{key}")
    else:
        options = _read(text, source, base_dir, f"{path}.{key}")
    check_tree(options, source=source, path=f"{path}.{key}")
    return options


def _read(name: str, source: str, base_dir: str, path: str) -> dict[str, Any]:
    if name.lower().endswith((".yaml", ".yml")):
        raise ConfigError(
            f"{name!r} is YAML, which is not read here",
            source=source,
            path=path,
            hint="Save the same mapping as JSON and name that file, or give the arguments as a command_line.",
        )
    if "\0" in name:
        raise ConfigError("the file name holds a null character", source=source, path=path, hint=_FORMS)
    file = Path(base_dir) / name
    if not file.is_file():
        raise ConfigError(
            f"there is no file {name!r}",
            source=source,
            path=path,
            hint="Paths are relative to the experiment file.",
        )
    options = read_strict(file)
    if not isinstance(options, dict):
        raise ConfigError(f"{name!r} is no JSON object", source=source, path=path, hint=_FORMS)
    return options


def parse_command_line(text: str, *, source: str, path: str) -> dict[str, Any]:
    """Return `--max-num-seqs 8 --enforce-eager` as {"max_num_seqs": 8, "enforce_eager": True}.

    Kebab case becomes snake case; `--no-x` without a value is {"x": False}; several values are a list; a
    value is JSON where it reads as JSON, text otherwise. Raises ConfigError for what is no option.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(
            f"the command line cannot be split: {error}",
            source=source,
            path=path,
            hint="Close each quotation.",
        ) from None
    options: dict[str, Any] = {}
    index = 0
    while index < len(words):
        match = _OPTION.fullmatch(words[index])
        if match is None:
            raise ConfigError(
                f"{words[index]!r:.120} is no long option",
                source=source,
                path=path,
                hint="Start at the first option and spell it out: --tensor-parallel-size 2, not -tp 2.",
            )
        index += 1
        values = [] if match[2] is None else [match[2]]
        while match[2] is None and index < len(words) and not _is_option(words[index]):
            values.append(words[index])
            index += 1
        _store(options, match[1].replace("-", "_"), [_literal(value) for value in values], source, path)
    return options


def _is_option(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and not _NEGATIVE_NUMBER.fullmatch(word)


def _store(options: dict[str, Any], name: str, values: list[Any], source: str, path: str) -> None:
    value: Any = values if len(values) > 1 else values[0] if values else True
    if not values and name.startswith("no_"):
        name, value = name.removeprefix("no_"), False
    if name in options:
        raise ConfigError(f"the option {name!r:.120} stands twice", source=source, path=path, hint="Keep one of them.")
    options[name] = value


def _literal(text: str) -> Any:
    def constant(name: str) -> Any:
        raise ValueError(name)

    if text in ("True", "False"):
        return text == "True"
    try:
        return json.loads(text, parse_constant=constant)
    except (ValueError, RecursionError):
        return text
