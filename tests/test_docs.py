"""The documentation says what the code does: tables are current, every public thing appears, examples hold."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from xcfg import errors
from xcfg.plugin import spec
from xcfg.plugin.manager import PluginManager
from xcfg.schema import experiment, worker
from xcfg.schema._base import Input
from xcfg.schema.names import Assessment, Lifecycle, SourceClass, Status, exit_code

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
PAGES = sorted([*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"])
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
PAGE_IDS = [str(page.relative_to(ROOT)) for page in PAGES]


def page(name: str) -> str:
    return (REFERENCE / name).read_text(encoding="utf-8")


def test_generated_tables_are_current() -> None:
    """Failing means that the code changed and the reference did not: run `python tools/gen_reference.py`."""
    done = subprocess.run(
        [sys.executable, "tools/gen_reference.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_stale_table_is_noticed(tmp_path: Path) -> None:
    """Failing means that the check above passes whatever a page says."""
    probe = (
        "import sys, pathlib; sys.path.insert(0, 'tools'); import gen_reference as g;"
        f"g.PAGES = pathlib.Path({str(tmp_path)!r}); sys.exit(g.main(['--check']))"
    )
    (tmp_path / "errors.md").write_text(page("errors.md").replace("`UsageError`", "`UsageFault`"), encoding="utf-8")
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "UsageFault" in done.stdout


def hooks() -> list[str]:
    return [name for name, _ in inspect.getmembers(spec, inspect.isfunction) if name.startswith("xcfg_")]


def test_every_hook_is_documented_with_its_signature() -> None:
    """Failing means that a plugin author cannot find a hook."""
    text = page("hooks.md")
    assert len(hooks()) >= 10
    for name in hooks():
        arguments = ", ".join(inspect.signature(getattr(spec, name)).parameters)
        assert f"### {name}\n" in text
        assert re.search(rf"^{name}\({'.*'.join(arguments.split(', '))}.*\) -> ", text, re.MULTILINE), name


def test_every_command_is_documented() -> None:
    """Failing means that a command has no page, or that a page describes a command that is gone."""
    text = page("cli.md")
    done = subprocess.run([sys.executable, "-m", "xcfg", "--help"], capture_output=True, text=True, check=True)
    listed = re.findall(r"^  ([a-z]+)  +\S", done.stdout.split("Commands:")[1], re.MULTILINE)
    assert len(listed) >= 9
    assert re.findall(r"^## xcfg (\S+)$", text, re.MULTILINE) == listed


def test_every_knob_is_documented() -> None:
    """Failing means that something can be varied and nobody can read what it is."""
    documented = re.findall(r"^\| `([\w.]+\.[\w.]+)` \|", page("knobs.md"), re.MULTILINE)
    assert documented == sorted(PluginManager.load().knobs())
    for word in (*Lifecycle, *SourceClass):
        assert f"| `{word.value}` |" in page("knobs.md")


def test_every_status_is_documented_with_its_exit_code() -> None:
    """Failing means that a pipeline is told another code than the run ends with."""
    rows = dict(re.findall(r"^\| `([A-Z_]+)` \|.*\| (\d+) \|$", page("statuses.md"), re.MULTILINE))
    assert {name: int(code) for name, code in rows.items()} == {item.value: exit_code([item]) for item in Status}
    for assessment in Assessment:
        assert f"| `{assessment.value}` |" in page("statuses.md")


def test_every_error_is_documented() -> None:
    """Failing means that an error has no kind or exit code that a program could rely on."""
    kinds = [item for _, item in inspect.getmembers(errors, inspect.isclass) if issubclass(item, errors.XcfgError)]
    assert len(kinds) >= 15
    for item in kinds:
        assert re.search(rf"`{item.__name__}` \| `{item.kind}` \| {item.exit_code} \|", page("errors.md")), item


def test_every_field_of_the_experiment_is_documented() -> None:
    """Failing means that the file accepts a field that the reference does not mention."""
    text = page("experiment.md")
    inputs = [
        item
        for _, item in inspect.getmembers(experiment, inspect.isclass)
        if issubclass(item, Input) and item.__module__ == experiment.__name__
    ]
    assert len(inputs) >= 10
    for item in inputs:
        section = text.split(f"### {item.__name__}\n", 1)[1].split("\n### ", 1)[0]
        for field in msgspec.structs.fields(item):
            assert f"| `{field.encode_name}` |" in section, f"{item.__name__}.{field.name}"


def test_every_score_column_is_documented() -> None:
    """Failing means that a worker author does not know what a column holds."""
    for name in worker.SCORE_COLUMNS:
        assert f"| `{name}` |" in page("worker-protocol.md")


@pytest.mark.parametrize("file", PAGES, ids=PAGE_IDS)
def test_links_inside_the_repository_hold(file: Path) -> None:
    """Failing means that a link leads nowhere; `mkdocs build --strict` does not see README and its neighbours."""
    for target in LINK.findall(file.read_text(encoding="utf-8")):
        if not re.match(r"https?:|mailto:|#", target):
            assert (file.parent / target.split("#")[0]).exists(), target


@pytest.mark.parametrize("file", PAGES, ids=PAGE_IDS)
def test_examples_parse_and_their_imports_exist(file: Path) -> None:
    """Failing means that a reader copies an example which cannot work."""
    for kind, text in FENCE.findall(file.read_text(encoding="utf-8")):
        if kind == "json" and text.lstrip().startswith("{"):
            for document in [text] if text.count("\n{") == 0 else text.splitlines():
                json.loads(document)
        if kind != "python" or re.match(r"\w+\(.*\) -> ", text):  # a signature is no program
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("xcfg", "xcfg_testkit"):
                module = importlib.import_module(str(node.module))
                assert [name.name for name in node.names if not hasattr(module, name.name)] == []


@pytest.mark.parametrize("file", PAGES, ids=PAGE_IDS)
def test_commands_in_examples_exist(file: Path) -> None:
    """Failing means that a page tells people to type a command or an option that xcfg does not have."""
    help_text = page("cli.md")
    options = set(re.findall(r"--[a-z][a-z-]+", help_text))
    known = set(re.findall(r"^#+ xcfg (.+)$", help_text, re.MULTILINE))
    for kind, text in FENCE.findall(file.read_text(encoding="utf-8")):
        if kind not in ("bash", "console"):
            continue
        for line in re.findall(r"^(?:\$ )?xcfg ([^|>#\n]*)", text, re.MULTILINE):
            words = re.sub(
                r"'[^']*'|\"[^\"]*\"", "QUOTED", line
            ).split()  # what an option is given is no option of xcfg
            assert words[0] in known, line
            if f"{words[0]} list" in known or f"{words[0]} show" in known:
                assert " ".join(words[:2]) in known, line
            unknown = {word.split("=")[0] for word in words if word.startswith("--")} - options
            assert not unknown, f"{line}: {unknown}"


LOGPROB = sorted((ROOT / "examples" / "logprob").glob("*.json"))


@pytest.mark.parametrize("file", LOGPROB, ids=[file.name for file in LOGPROB])
def test_the_experiments_of_the_log_probability_can_be_planned(file: Path) -> None:
    """Failing means that the how-to tells people to run a file which is refused before anything starts."""
    done = subprocess.run(
        [sys.executable, "-m", "xcfg", "plan", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["sum.json", "gradient.json", "head.json"])
def test_the_page_shows_the_experiments_as_they_are(name: str) -> None:
    """Failing means that a reader copies another file than the one that the page describes."""
    text = (DOCS / "how-to" / "vary-the-logprob.md").read_text(encoding="utf-8")
    assert f"```json\n{(ROOT / 'examples' / 'logprob' / name).read_text(encoding='utf-8')}```\n" in text
