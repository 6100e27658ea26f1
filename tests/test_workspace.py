"""What every package of the workspace has in common."""

from __future__ import annotations

import re
import subprocess
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = sorted(folder.name for folder in (ROOT / "packages").iterdir() if (folder / "pyproject.toml").is_file())
PLUGINS = [name for name in PACKAGES if name not in ("xcfg-core", "xcfg-testkit")]


@cache
def declared(package: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / "packages" / package / "pyproject.toml").read_text(encoding="utf-8"))


def import_name(package: str) -> str:
    return "xcfg" if package == "xcfg-core" else package.replace("-", "_")


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_has_what_a_reader_expects(package: str) -> None:
    """Failing means that somebody who opens the folder, or installs the wheel, misses something."""
    folder = ROOT / "packages" / package
    source = folder / "src" / import_name(package)
    assert (source / "py.typed").is_file(), "no py.typed: type checkers ignore the annotations"
    assert (source / "__init__.py").read_text(encoding="utf-8").lstrip().startswith('"""'), "__init__ has no docstring"
    assert (folder / "tests").is_dir(), "no tests"
    assert len((folder / "README.md").read_text(encoding="utf-8")) >= 200, "the README says next to nothing"
    changes = (folder / "CHANGELOG.md").read_text(encoding="utf-8")
    assert declared(package)["project"]["version"] in changes, "the changelog does not know the version"
    licence = (folder / "LICENSE").read_bytes()
    assert licence == (ROOT / "LICENSE").read_bytes(), "the licence is not that of the repository"


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_declares_itself_the_same_way(package: str) -> None:
    """Failing means that one package is built, versioned or tested unlike the others."""
    project = declared(package)["project"]
    assert project["name"] == package
    assert project["requires-python"] == ">=3.11"
    assert project["license"] == "Apache-2.0"
    Version(project["version"])
    group = {Requirement(item).name for item in declared(package)["dependency-groups"]["test"]}
    runtime = {Requirement(item).name for item in project["dependencies"]}
    assert {"pytest", "pytest-timeout"} <= group | runtime, "a test could hang, or not run at all"
    assert declared(package)["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == [
        f"src/{import_name(package)}"
    ]


@pytest.mark.parametrize("package", [name for name in PACKAGES if name != "xcfg-core"])
def test_a_package_takes_one_minor_series_of_core(package: str) -> None:
    """Failing means that a plugin would be installed beside a core that it was never tried with."""
    core = Version(declared("xcfg-core")["project"]["version"])
    wanted = f"xcfg-core>={core.major}.{core.minor},<{core.major}.{core.minor + 1}"
    ranges = [item for item in declared(package)["project"]["dependencies"] if Requirement(item).name == "xcfg-core"]
    assert [str(Requirement(item)) for item in ranges] == [str(Requirement(wanted))]


@pytest.mark.parametrize("package", PLUGINS)
def test_a_plugin_has_one_entry_point_named_after_it(package: str) -> None:
    """Failing means that `xcfg plugins list` shows another name than `pip install` took."""
    assert declared(package)["project"]["entry-points"]["xcfg"] == {
        package.removeprefix("xcfg-"): f"{import_name(package)}.plugin"
    }
    plugin = ROOT / "packages" / package / "src" / import_name(package) / "plugin.py"
    assert len(plugin.read_text(encoding="utf-8").splitlines()) <= 60, "plugin.py holds more than records"


@pytest.mark.parametrize("package", PACKAGES)
def test_every_direct_dependency_has_a_lower_bound(package: str) -> None:
    """Failing means that the oldest version that works is not known, so nobody tests it."""
    project = declared(package)["project"]
    extras = [item for items in project.get("optional-dependencies", {}).values() for item in items]
    loose = [item for item in (*project["dependencies"], *extras) if not re.search(r">=|==", item)]
    assert not loose


def test_the_root_depends_on_every_package() -> None:
    """Failing means that a new package is not in the shared environment, so no test here sees it."""
    root = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert {Requirement(item).name for item in root["project"]["dependencies"]} == set(PACKAGES)
    contracts = root["tool"]["importlinter"]
    assert set(contracts["root_packages"]) == {import_name(name) for name in PACKAGES}
    independent = next(item for item in contracts["contracts"] if item["id"] == "plugins-independent")
    assert set(independent["modules"]) == {import_name(name) for name in PLUGINS}


def tracked() -> list[Path]:
    done = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_scripts_run_as_they_lie_here() -> None:
    """Failing means that a carriage return or a missing mode bit breaks the first command a user types."""
    for script in [*(ROOT / "scripts").iterdir(), ROOT / ".ci" / "run"]:
        content = script.read_bytes()
        assert b"\r" not in content, script
        if not script.name.startswith("_"):
            assert content.startswith(b"#!/usr/bin/env bash\n"), script
            assert script.stat().st_mode & 0o111, f"{script} is not executable"
            assert b"set -" in content, script


def test_no_file_names_a_registry() -> None:
    """Failing means that a lock or an index address was committed: people resolve from where they are."""
    host = re.compile(rb"https?://[\w.-]*(?:pypi|pythonhosted|pkg-containers|registry)[\w.-]*")
    named = {
        str(file.relative_to(ROOT)): host.search(file.read_bytes()) for file in tracked() if file.suffix != ".lock"
    }
    assert not {name: found[0] for name, found in named.items() if found}
    assert not [file for file in tracked() if file.name == "uv.lock"]


def test_hosted_ci_runs_every_step_and_every_package() -> None:
    """Failing means that something which the gate checks here is not checked there."""
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    gate = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    kinds = re.search(r'^KINDS="([^"]+)"$', gate, re.MULTILINE)
    assert kinds
    listed = re.search(r"^ +step: \[(.*)\]$", workflow, re.MULTILINE)
    assert listed
    elsewhere = {"sync", "alone", "whole"}  # sync comes with each; the other two have jobs of their own
    assert {word for item in listed[1].split(",") for word in item.split()} == set(kinds[1].split()) - elsewhere
    assert re.findall(r"^ +- (xcfg-[\w-]+)$", workflow, re.MULTILINE) == PACKAGES
    assert ".ci/run alone:${{ matrix.package }}" in workflow
    assert ".ci/run whole" in workflow
