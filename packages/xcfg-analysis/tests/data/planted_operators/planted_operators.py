"""Backends of selected_logprob with a known fault: noise that the call seeds, a temperature, a shift, no softmax."""

from __future__ import annotations

from xcfg.plugin import hookimpl
from xcfg.schema.knobs import FloatRange
from xcfg.schema.operators import OperatorBackendDescriptor, OptionDefinition


@hookimpl
def xcfg_operator_backends():
    return (
        OperatorBackendDescriptor(
            operation="selected_logprob",
            backend_id="planted.noise",
            summary="log-softmax, and normal noise that the number of the call seeds",
            factory="planted_operators:noisy",
            options=(OptionDefinition(name="rms", domain=FloatRange(minimum=0.0), default=0.0),),
        ),
        OperatorBackendDescriptor(
            operation="selected_logprob",
            backend_id="planted.tempered",
            summary="log-softmax of logits over a temperature",
            factory="planted_operators:tempered",
            options=(OptionDefinition(name="temperature", domain=FloatRange(minimum=0.0), default=1.0),),
        ),
        OperatorBackendDescriptor(
            operation="selected_logprob",
            backend_id="planted.shift_in_float32",
            summary="log-softmax, and 0.2 nats less where the logits are float32",
            factory="planted_operators:shifted",
        ),
        OperatorBackendDescriptor(
            operation="selected_logprob",
            backend_id="planted.raw_logit",
            summary="the logit of the token, without a softmax",
            factory="planted_operators:raw",
        ),
    )


def _selected(logits, selected):
    import torch

    return torch.log_softmax(logits.float(), dim=-1).gather(-1, selected.unsqueeze(-1)).squeeze(-1)


def noisy(*, rms=0.0):
    calls = 0

    def operator(logits, selected):
        nonlocal calls
        import torch

        calls += 1
        generator = torch.Generator().manual_seed(calls)
        return _selected(logits, selected) + rms * torch.randn(len(selected), generator=generator)

    return operator


def tempered(*, temperature=1.0):
    return lambda logits, selected: _selected(logits.float() / temperature, selected)


def shifted():
    def operator(logits, selected):
        import torch

        return _selected(logits, selected) - (0.2 if logits.dtype == torch.float32 else 0.0)

    return operator


def raw():
    return lambda logits, selected: logits.float().gather(-1, selected.unsqueeze(-1)).squeeze(-1)
