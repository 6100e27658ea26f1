"""Descriptors, catalogues and a throw-away package for the operator tests."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from xcfg.operators import OperatorSession, ResolutionContext, SemanticOperatorCatalog
from xcfg.schema.operators import OperatorBackendDescriptor

KERNELS = """
built = []

def build(**options):
    built.append(options)
    return lambda *args: (args, options)

def broken(**options):
    raise RuntimeError("no such kernel")

def no_callable(**options):
    return 5

CONSTANT = 5
"""


@dataclass(frozen=True)
class Provided:
    """What a plugin manager hands over."""

    record: OperatorBackendDescriptor
    distribution: str = "dist-a"
    version: str = "1.2"


@pytest.fixture
def provided() -> type[Provided]:
    """The record of a plugin manager, duck-typed."""
    return Provided


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An importable package `throwaway_kernels`, forgotten afterwards."""
    package = tmp_path / "throwaway_kernels"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "ops.py").write_text(textwrap.dedent(KERNELS))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield package
    for name in [name for name in sys.modules if name.partition(".")[0] == "throwaway_kernels"]:
        del sys.modules[name]


@pytest.fixture
def descriptor() -> Callable[..., OperatorBackendDescriptor]:
    """A maker of descriptors with sensible fields; keywords replace them."""

    def make(backend_id: str = "acme.logp", **fields: Any) -> OperatorBackendDescriptor:
        values: dict[str, Any] = {
            "operation": "selected_logprob",
            "summary": "a test backend",
            "factory": "throwaway_kernels.ops:build",
            "properties": ("run-to-run",),
        }
        return OperatorBackendDescriptor(backend_id=backend_id, **{**values, **fields})

    return make


@pytest.fixture
def context() -> Callable[..., ResolutionContext]:
    """A maker of resolution contexts: a strict, unsharded bfloat16 side on a CPU; keywords replace fields."""

    def make(**fields: Any) -> ResolutionContext:
        values: dict[str, Any] = {
            "device": "cpu",
            "dtype": "bfloat16",
            "topology": {"tensor_parallel_size": 1},
            "runtime": "torch",
            "strict": True,
            "allow_smoke": False,
        }
        return ResolutionContext(**{**values, **fields})

    return make


@pytest.fixture
def session(kernels: Path) -> Callable[..., OperatorSession]:
    """A maker of sessions over the given descriptors."""

    def make(
        *descriptors: OperatorBackendDescriptor,
        policies: dict[str, dict[str, str]] | None = None,
        runtimes: tuple[str, ...] = (),
    ) -> OperatorSession:
        items = [Provided(item) for item in descriptors]
        return OperatorSession(SemanticOperatorCatalog.from_provided(items, runtimes=runtimes), policies or {})

    return make
