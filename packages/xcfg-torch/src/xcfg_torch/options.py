"""The runtime options of `torch`: what a person may put under runtime_options, strictly typed."""

from __future__ import annotations

from typing import Any, Literal

from xcfg.errors import ConfigError, did_you_mean
from xcfg.schema._base import Input
from xcfg.schema.codec import convert

SOURCE = "runtime_options of the runtime 'torch'"


class TorchOptions(Input, frozen=True):
    """Engine arguments that are no knobs; hashed into the case id and reported in the provenance.

    threads: OMP and torch threads per process; null: cores of this process divided by its processes.
    fsdp_world_size: ranks when training.sharding is fsdp.
    fsdp_reshard_after_forward: free the gathered parameters of a block after its forward.
    fsdp_reduce_dtype: of MixedPrecisionPolicy, the dtype of gradient reductions; null: the compute dtype. No gradient
        is reduced in a score, so it moves no number; it is set as the trainer sets it, and read back.
    fsdp_cast_forward_inputs: of MixedPrecisionPolicy, whether floating-point inputs of a block are cast when it starts.
    logits_to_keep: compute head logits only for the columns that are scored (another M of the head GEMM).
    row_chunk: rows of logits per call of the selected-logprob operator, hence widened at a time.
    deterministic_algorithms, float32_matmul_precision: torch's global switches of those names.
    pad_token_id: the id in padding cells; null: the checkpoint's, else 0.
    """

    threads: int | None = None
    fsdp_world_size: int = 2
    fsdp_reshard_after_forward: bool = True
    fsdp_reduce_dtype: Literal["bfloat16", "float16", "float32"] | None = None
    fsdp_cast_forward_inputs: bool = True
    logits_to_keep: bool = False
    row_chunk: int = 256
    deterministic_algorithms: bool = False
    float32_matmul_precision: Literal["highest", "high", "medium"] = "highest"
    pad_token_id: int | None = None


def parse_options(document: dict[str, Any]) -> TorchOptions:
    """Return `document` as TorchOptions; ConfigError for an unknown option, a wrong type or a wrong value."""
    unknown = sorted(set(document) - set(TorchOptions.__struct_fields__))
    if unknown:
        hint = did_you_mean(unknown[0], TorchOptions.__struct_fields__)
        raise ConfigError(f"there is no option {unknown[0]!r}", source=SOURCE, path=f"$.{unknown[0]}", hint=hint)
    options = convert(document, TorchOptions, source=SOURCE)
    for name in ("threads", "fsdp_world_size", "row_chunk"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ConfigError(
                f"{value} is not a positive number", source=SOURCE, path=f"$.{name}", hint="Use 1 or more."
            )
    if options.pad_token_id is not None and options.pad_token_id < 0:
        raise ConfigError("a token id is not negative", source=SOURCE, path="$.pad_token_id", hint="Use 0 or more.")
    return options
