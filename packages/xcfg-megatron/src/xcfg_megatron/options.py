"""The runtime options of `megatron`: arguments that are no knobs, strictly typed."""

from __future__ import annotations

from typing import Any, Literal

from xcfg.errors import ConfigError, did_you_mean
from xcfg.schema._base import Input
from xcfg.schema.codec import convert

SOURCE = "runtime_options of the runtime 'megatron'"


class MegatronOptions(Input, frozen=True):
    """Hashed into the case id and reported in the provenance.

    threads: OpenMP threads per rank on a CPU; null: cores divided by ranks.
    vocab_divisor: the vocabulary is padded to a multiple of this times the tensor-parallel size
    (make_vocab_size_divisible_by).
    vocab_padding_policy: `mask` or `include`, where no knob says it.
    """

    threads: int | None = None
    vocab_divisor: int = 128
    vocab_padding_policy: Literal["mask", "include"] = "mask"


def parse_options(document: dict[str, Any]) -> MegatronOptions:
    """Return `document` as MegatronOptions; ConfigError for an unknown option, a wrong type or a wrong value."""
    known = MegatronOptions.__struct_fields__
    unknown = sorted(set(document) - set(known))
    if unknown:
        raise ConfigError(
            f"there is no option {unknown[0]!r}",
            source=SOURCE,
            path=f"$.{unknown[0]}",
            hint=did_you_mean(unknown[0], known),
        )
    options = convert(document, MegatronOptions, source=SOURCE)
    for name in ("threads", "vocab_divisor"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ConfigError(
                f"{value} is not a positive number", source=SOURCE, path=f"$.{name}", hint="Use 1 or more."
            )
    return options
