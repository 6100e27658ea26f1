"""What the package tells xcfg: one backend, and only what it can do. Nothing heavy is imported here."""

from __future__ import annotations

from xcfg.plugin import hookimpl
from xcfg.schema.knobs import IntRange
from xcfg.schema.operators import OperatorBackendDescriptor, OptionDefinition

BACKEND = OperatorBackendDescriptor(
    operation="selected_logprob",
    backend_id="hello.online_logsumexp",
    summary="online log-sum-exp in float32, one pass over blocks of the vocabulary",
    factory="hello_operator.backend:build",
    devices=("cpu",),
    dtypes=("bfloat16", "float16", "float32"),
    shapes="logits [N, V] over the whole vocabulary, selected [N]",
    # Not batch-invariant: with a large block, torch may sum one row on several threads and many rows on one each.
    properties=("run-to-run",),
    options=(
        OptionDefinition(
            name="block",
            domain=IntRange(minimum=1, maximum=1_048_576),
            default=4096,
            summary="columns of the vocabulary per step; another value is another order of additions",
        ),
    ),
)


@hookimpl
def xcfg_operator_backends() -> tuple[OperatorBackendDescriptor, ...]:
    """Return the backends of this package."""
    return (BACKEND,)
