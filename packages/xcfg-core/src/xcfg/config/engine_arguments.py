"""Engine arguments as their users keep them: a command line, or a JSON or YAML file, flattened to flag -> value."""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xcfg.config.options import parse_command_line
from xcfg.config.scan import MAX_INTEGER
from xcfg.errors import ConfigError
from xcfg.schema.codec import MAX_DEPTH, parse_strict, read_file

MAX_SETTINGS = 4096
MAX_TEXT = 1 << 20
MAX_WORDS = 256
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_LAUNCHER = re.compile(r"(?:.*/)?(?:python[0-9.]*|torchrun|accelerate|deepspeed)")
_MODULE = ("-m", "--module")
_HINT = "Give a command line such as '--dtype bfloat16 --enforce-eager', or @FILE with .json, .yaml or .yml."


@dataclass(frozen=True)
class Given:
    """What stood in one --…-args. settings: flag (hyphens, no dashes, dots below JSON values) -> value.

    words: what was neither an option nor a variable before the first option: a launcher with its own options, a
    program, a model.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    words: tuple[str, ...] = ()


def read_arguments(text: str, *, source: str) -> Given:
    """Return the arguments in `text`, or in the file that `@name` names.

    A command line may begin as people copy it: variables, a launcher, a program, a model. Raises ConfigError for a
    quotation that is not closed, a file that cannot be read, a key or an option that stands twice, more than
    MAX_SETTINGS or MAX_WORDS.
    """
    if len(text) > MAX_TEXT:
        raise ConfigError(f"{len(text)} characters are no command line", source=source, hint=_HINT)
    if text.startswith("@"):
        return Given(_flat(_mapping(text[1:], source), source))
    try:
        words = shlex.split(text)
    except ValueError as error:
        hint = "Close each quotation."
        raise ConfigError(f"the command line cannot be split: {error}", source=source, hint=hint) from None
    variables: dict[str, Any] = {}
    others: list[str] = []
    while words and not words[0].startswith("-"):
        word = words.pop(0)
        match = _ASSIGNMENT.fullmatch(word)
        if match is None:
            others.append(word)
            if len(others) == 1 and _LAUNCHER.fullmatch(word):
                others += _launched(words)
        elif match[1] in variables:
            raise ConfigError(f"the variable {match[1]!r:.120} stands twice", source=source, hint="Keep one of them.")
        else:
            variables[match[1]] = match[2]
    if len(others) > MAX_WORDS:
        told = f"{len(others)} words stand before the first option, more than {MAX_WORDS}"
        raise ConfigError(told, source=source, hint=_HINT)
    options = parse_command_line(shlex.join(words), source=source, path="$") if words else {}
    found = {**variables, **_flat(options, source)}
    return Given(_plain(found, source), _plain(tuple(others), source))


def _launched(words: list[str]) -> list[str]:
    """Take from `words` what is the launcher's: up to its script or module, or nothing where it names neither."""
    for index, word in enumerate(words):
        end = index + (2 if word in _MODULE else 1)
        if (word in _MODULE and end <= len(words)) or (word.endswith(".py") and not word.startswith("-")):
            taken = words[:end]
            del words[:end]
            return taken
    return []


def _mapping(name: str, source: str) -> dict[str, Any]:
    if not name or "\0" in name:
        raise ConfigError(f"{name!r} is no file name", source=source, hint=_HINT)
    file = Path(name)
    suffix = file.suffix.lower()
    if suffix not in (".json", ".yaml", ".yml"):
        raise ConfigError(f"{name!r} is neither .json nor .yaml nor .yml", source=source, hint=_HINT)
    data = read_file(file)
    if len(data) > MAX_TEXT:
        raise ConfigError(f"{name!r} has more than {MAX_TEXT} bytes", source=source)
    document = parse_strict(data, source=name) if suffix == ".json" else _yaml(data, name)
    if not isinstance(document, dict):
        raise ConfigError(f"{name!r} is a {type(document).__name__}, not a mapping", source=source, hint=_HINT)
    plain: dict[str, Any] = _plain(document, name)
    return plain


def _yaml(data: bytes, name: str) -> Any:
    """Return a YAML document; anchors and duplicate keys are refused, tags make no objects."""
    try:
        import yaml
    except ImportError:
        hint = "pip install pyyaml, or save the same mapping as JSON."
        raise ConfigError(f"{name!r} is YAML, and PyYAML is not installed", source=name, hint=hint) from None

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.events.AliasEvent):
                raise ConfigError("an alias (*name) is not read here", source=name, hint="Write the value out.")
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            names = [item.value for item, _ in node.value]
            twice = [item for item in names if isinstance(item, str) and names.count(item) > 1]
            if twice:
                raise ConfigError(f"the key {twice[0]!r} stands twice in one mapping", source=name)
            return super().construct_mapping(node, deep=deep)

    try:
        return yaml.load(data, Loader)  # noqa: S506 - the loader is a SafeLoader
    except yaml.YAMLError as error:
        raise ConfigError(f"not YAML: {' '.join(str(error).split())}", source=name) from None
    except RecursionError:
        raise ConfigError("nested too deeply", source=name) from None
    except ValueError as error:  # a date that no calendar has, an int with too many digits
        raise ConfigError(f"not YAML: {error}", source=name) from None


def _plain(node: Any, source: str, depth: int = 0) -> Any:
    """Return values as JSON has them: a key is text; dates, bytes and numbers that JSON cannot carry are text."""
    if depth > MAX_DEPTH:
        raise ConfigError("nested too deeply", source=source, hint=f"At most {MAX_DEPTH} levels.")
    if isinstance(node, dict):
        found = {_text(key, source): _plain(value, source, depth + 1) for key, value in node.items()}
        if len(found) != len(node):
            raise ConfigError("two keys of one mapping are the same text", source=source, hint="Keep one of them.")
        return found
    if isinstance(node, (list, tuple)):
        return type(node)(_plain(item, source, depth + 1) for item in node)
    if node is None or isinstance(node, bool):
        return node
    if isinstance(node, int) and -MAX_INTEGER <= node <= MAX_INTEGER:
        return node
    if isinstance(node, float) and math.isfinite(node):
        return node
    return _text(node, source)


def _text(node: Any, source: str) -> str:
    text = str(node)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError("the text is not valid Unicode (a lone surrogate)", source=source) from None
    return text


def _flat(document: dict[str, Any], source: str) -> dict[str, Any]:
    """Return nested mappings as dotted flags; underscores become hyphens, capitals (variables) stay."""
    found: dict[str, Any] = {}

    def walk(node: dict[str, Any], above: str, depth: int = 0) -> None:
        if depth > MAX_DEPTH:
            raise ConfigError("nested too deeply", source=source, hint=f"At most {MAX_DEPTH} levels.")
        for key, value in node.items():
            name = above + flag_name(str(key))
            if isinstance(value, dict) and value:
                walk(value, name + ".", depth + 1)
                continue
            if name in found:
                hint = "Two spellings of one argument stand there; keep one of them."
                raise ConfigError(f"the argument {name!r:.120} stands twice", source=source, hint=hint)
            found[name] = value
            if len(found) > MAX_SETTINGS:
                raise ConfigError(f"there are more than {MAX_SETTINGS} arguments", source=source)

    walk(document, "")
    return found


def flag_name(text: str) -> str:
    """Return one spelling for `--kv_cache_dtype`, `kv-cache-dtype`; a variable in capitals keeps its underscores."""
    name = text.lstrip("-")
    return name if name.isupper() else name.replace("_", "-")
