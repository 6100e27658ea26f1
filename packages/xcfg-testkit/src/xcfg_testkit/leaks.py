"""Global state that a plugin must leave as it found it: what is looked at, and what changed."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable
from typing import Any

import numpy as np

IGNORED_ENVIRONMENT = frozenset({"PYTEST_CURRENT_TEST", "PYTEST_VERSION", "TORCHINDUCTOR_CACHE_DIR"})
"""Set by pytest, and by torch when its compiler is first imported."""


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _torch_readers() -> dict[str, Callable[[], Any]]:
    import torch

    return {
        "torch deterministic algorithms": torch.are_deterministic_algorithms_enabled,
        "torch deterministic warn-only": torch.is_deterministic_algorithms_warn_only_enabled,
        "torch cudnn.deterministic": lambda: torch.backends.cudnn.deterministic,
        "torch cudnn.benchmark": lambda: torch.backends.cudnn.benchmark,
        "torch float32 matmul precision": torch.get_float32_matmul_precision,
        "torch bf16 reduced-precision reduction": lambda: (
            torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
        ),
        "torch default dtype": torch.get_default_dtype,
        "torch threads": torch.get_num_threads,
        "torch grad mode": torch.is_grad_enabled,
        "torch RNG": lambda: _digest(torch.get_rng_state().numpy().tobytes()),
    }


def snapshot() -> dict[str, Any]:
    """Return the state by name: torch flags and generator, Python's and numpy's generators, the environment."""
    state = {name: read() for name, read in _torch_readers().items()}
    state["random RNG"] = _digest(repr(random.getstate()).encode())
    state["numpy RNG"] = _digest(repr(np.random.get_state()).encode())
    environment = {name: value for name, value in os.environ.items() if name not in IGNORED_ENVIRONMENT}
    return {**state, **{f"environment {name}": value for name, value in environment.items()}}


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return one sentence per item that differs between two snapshots."""
    absent = "unset"
    return [
        f"{name}: {before.get(name, absent)!r} became {after.get(name, absent)!r}"
        for name in sorted({*before, *after})
        if before.get(name, absent) != after.get(name, absent)
    ]


def restore() -> Callable[[], None]:
    """Return a function that puts the most often leaked state back to what it is now."""
    import torch

    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    cudnn = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    precision, dtype, threads = torch.get_float32_matmul_precision(), torch.get_default_dtype(), torch.get_num_threads()
    generators = torch.get_rng_state(), random.getstate(), np.random.get_state()
    grad, environment = torch.is_grad_enabled(), dict(os.environ)

    def back() -> None:
        found = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        if found != (deterministic, warn_only):  # the call imports torch's compiler, which takes seconds
            torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = cudnn
        torch.set_float32_matmul_precision(precision)
        torch.set_default_dtype(dtype)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        torch.set_rng_state(generators[0])
        random.setstate(generators[1])
        np.random.set_state(generators[2])
        torch.set_grad_enabled(grad)
        for name in [name for name in os.environ if name not in environment and name not in IGNORED_ENVIRONMENT]:
            del os.environ[name]
        os.environ.update({name: value for name, value in environment.items() if name not in IGNORED_ENVIRONMENT})

    return back
