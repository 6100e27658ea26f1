"""Fixtures: tiny checkpoints, frozen rollouts, and a lab that starts real engines."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from mcore_driver import Lab
from mcore_inputs import random_rollout, write_checkpoint

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return the folder of a checkpoint, made once."""
    made: dict[tuple[str, int, bool], Path] = {}

    def _checkpoint(kind: str = "qwen3", vocabulary: int = 512, *, tied: bool = False) -> Path:
        key = (kind, vocabulary, tied)
        if key not in made:
            made[key] = write_checkpoint(tmp_path_factory.mktemp("model") / "m", kind, vocabulary, tied=tied)
        return made[key]

    return _checkpoint


SWEEP_LENGTHS = tuple(range(70, 92, 3))
"""Eight sequences as in the measured table: 636 scored positions."""


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """Start real engines in processes of their own."""
    return Lab(tmp_path_factory.mktemp("engines"))


@pytest.fixture(scope="session")
def job(lab: Lab, checkpoint: Callable[..., Path]) -> Callable[..., dict[str, Any]]:
    """Return job(name, knobs, ...) for the driver: one build and one score of a tiny Qwen3."""
    frozen = {size: lab.rollout(random_rollout(size, SWEEP_LENGTHS, 1)) for size in (500, 512)}

    def make(
        name: str,
        knobs: dict[str, Any] | None = None,
        operators: dict[str, str] | None = None,
        *,
        dtype: str = "float32",
        vocabulary: int = 512,
        tied: bool = False,
        **more: Any,
    ) -> dict[str, Any]:
        return {
            "name": name,
            "checkpoint": str(checkpoint("qwen3", vocabulary, tied=tied)),
            "rollout": frozen[vocabulary],
            "knobs": {"training.compute_dtype": dtype, **(knobs or {})},
            "operators": operators or {},
            **more,
        }

    return make
