"""xcfg's plugin inside vLLM: puts bound operators in place in every process of an engine.

vLLM calls `register` through the entry-point group `vllm.general_plugins` in its main process, its core and every
worker. It does nothing unless the adapter named operators in the environment before the engine was built. Whether an
operator took effect is never concluded from here: every rank's live objects and counters say so (facts.py).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from xcfg.plugin.operators import BoundOperator, instantiate
from xcfg.schema.codec import convert, plain
from xcfg.schema.operators import OperatorBinding

ENVIRONMENT = "XCFG_VLLM_OPERATORS"
"""Holds the bindings as JSON; set by the adapter in its own process, inherited by the processes of the engine."""
INSTALLERS = {
    "selected_logprob": "xcfg_vllm.inject.logprob",
    "norm": "xcfg_vllm.inject.layers",
    "activation": "xcfg_vllm.inject.layers",
    "rotary": "xcfg_vllm.inject.layers",
    "attention": "xcfg_vllm.inject.attention",
}
"""Operation -> module whose `install(operation, operator)` puts it in place and returns how to take it out."""

NAME = "xcfg"
"""Of the entry point, as VLLM_PLUGINS may list it."""
Undo = Callable[[], object]
UNDO: list[Undo] = []
"""What puts the engine's own back, in the order of installation."""
ACTIVE: dict[str, BoundOperator] = {}
"""The operators of this process, by operation; empty where the plugin did not run or nothing was asked for."""


def environment(bindings: Mapping[str, OperatorBinding]) -> str:
    """Return what `ENVIRONMENT` must hold for these bindings; an empty string for none."""
    return json.dumps([plain(binding) for binding in bindings.values()]) if bindings else ""


def register() -> None:
    """Put every operator of the environment in place, once per process.

    An exception here ends the start of the engine, which is wanted: a half-injected engine measures nothing.
    """
    text = os.environ.get(ENVIRONMENT, "")
    if not text or ACTIVE:
        return
    for item in json.loads(text):
        binding = convert(item, OperatorBinding, source=f"the environment variable {ENVIRONMENT}")
        operator = instantiate(binding)
        install: Callable[..., Undo] = import_module(INSTALLERS[binding.operation]).install
        UNDO.append(install(binding.operation, operator))
        ACTIVE[binding.operation] = operator


def renew() -> None:
    """Take what an earlier engine of this process had out again, and register for the next one.

    vLLM asks its plugins once per process; where it has not asked yet, or never asks this one, nothing is done.
    """
    plugins = sys.modules.get("vllm.plugins")
    if plugins is None or not plugins.plugins_loaded:
        return
    while UNDO:
        UNDO.pop()()
    ACTIVE.clear()
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is None or NAME in allowed.split(","):
        register()


def reset() -> None:
    """Set every counter of this process to zero, and forget what operators stated of their calls."""
    for operator in ACTIVE.values():
        operator.clear()


def counts() -> dict[str, dict[str, Any]]:
    """Return {operation: {backend, options, calls, stated}} of this process, plain; stated: see plugin.stated."""
    return {
        name: {
            "backend": item.binding.backend_id,
            "options": dict(item.binding.options),
            "calls": item.calls,
            "stated": item.statements.plain(),
        }
        for name, item in ACTIVE.items()
    }
