"""Readers of operators: which module stands in every slot, and how often it ran since the counters were cleared."""

from __future__ import annotations

from typing import Any

import torch
from xcfg.plugin.operators import BoundOperator, backend_meant
from xcfg.plugin.readback import OPERATOR_KNOB, OPERATORS, Reading, execution, state
from xcfg.plugin.stated import option_reading
from xcfg.schema._base import Value
from xcfg.schema.names import Exercised

from xcfg_megatron.backends import OWN, STANDS_FOR
from xcfg_megatron.engine import Engine
from xcfg_megatron.readers import Layout, Reader, ran


def _logp(engine: Engine, layout: Layout, requested: Value) -> Reading:
    operator = engine.operator
    binding = operator.binding
    evidence = (
        execution("calls of the injected operator", operator.calls),
        state("injected operator", f"{binding.backend_id}: {type(operator.function).__qualname__}"),
    )
    if layout.idle:
        tokens = state("active tokens that this rank owns", layout.owned)
        meant = backend_meant(binding, requested)
        return Reading(meant, binding.backend_id, (*evidence, tokens), exercised=Exercised.NO)
    actual = binding.backend_id if operator.calls else None
    exercised = Exercised.YES if operator.calls else Exercised.UNKNOWN
    reason = "" if operator.calls else "the operator was not called"
    return Reading(backend_meant(binding, requested), actual, evidence, exercised=exercised, reason=reason)


def option_reader(path: str) -> Reader:
    """Return the reader of an option of the operator that log probabilities come from."""

    def read(engine: Engine, layout: Layout, requested: Value) -> Reading:
        operator = engine.scorer
        binding = operator.binding
        return option_reading(path, binding.backend_id, binding.options, operator.statements, operator.calls)

    return read


def _kind(module: Any) -> str:
    """Return the class of a module by its full name, and with it a gated activation that is not Megatron's own."""
    name = f"{type(module).__module__}.{type(module).__qualname__}"
    activation = getattr(module, "activation_func", torch.nn.functional.silu)
    return name if activation is torch.nn.functional.silu else f"{name} with {type(activation).__qualname__}"


def slot_reader(path: str) -> Reader | None:
    """Return the reader of `operators.<operation>`, None for an operation that has no slots here."""
    operation = path.removeprefix(OPERATORS)
    if operation not in OWN:
        return None

    def read(engine: Engine, layout: Layout, requested: Value) -> Reading:
        from xcfg_megatron.operators import Injected, slots

        if operation not in engine.operators:
            return Reading(requested, None, (), reason="the operation was not bound")
        operator = engine.operators[operation]
        found = list(slots(engine.model, operation))
        expected, entered = len(found) * engine.forwards, engine.calls[f"slot.{operation}"]
        kinds = sorted({type(module).__name__ for _, module in found})
        mine = [isinstance(module, Injected) and module.operator is operator for _, module in found]
        evidence = (
            execution("calls of the slots; expected", f"{entered}; {expected}"),
            execution("calls of the injected operator", operator.calls),
            state("modules in the slots", f"{len(found)}: {', '.join(kinds)}"),
        )
        stock = not any(isinstance(module, Injected) for _, module in found)
        actual, reason = None, "not every slot holds it, or not every slot ran"
        if entered == expected > 0:
            foreign = sorted({_kind(module) for _, module in found} - set(STANDS_FOR[operation]))
            if stock and foreign:
                reason = f"{OWN[operation]} does not stand for {', '.join(foreign)}"
            elif stock:
                actual, reason = OWN[operation], ""
            elif all(mine) and operator.calls >= expected:
                actual, reason = operator.binding.backend_id, ""
        means = backend_meant(operator.binding, requested)
        return Reading(means, actual, evidence, exercised=ran(engine), reason=reason)

    return read


def _attention(engine: Engine, layout: Layout, requested: Value) -> Reading:
    """The model's own attention is one class in every layer; an injected operator is no default of anybody."""
    modules = [layer.self_attention.core_attention for layer in engine.model.decoder.layers]
    found = {type(module).__qualname__ for module in modules}
    kinds = ", ".join(sorted(found))
    evidence = (state("core attention of every layer", kinds),)
    if len(found) != 1:
        return Reading(kinds, None, evidence, reason="the layers do not agree on one core attention")
    operator = getattr(modules[0], "operator", None)
    if isinstance(operator, BoundOperator):
        backend = operator.binding.backend_id
        return Reading(kinds, backend, evidence, exercised=ran(engine), reason=f"the operator {backend} computes it")
    return Reading(kinds, "model_default", evidence, exercised=ran(engine))


READERS: dict[str, Reader] = {OPERATOR_KNOB: _logp, "training.attention_backend": _attention}
