"""The ablation axes of the selected log probability as knobs `logprob.*`. No heavy import.

A knob is an option of the chosen backend: it is refused where the backend lacks it, and declares the field of the
contract that has its name. Tiers are those fields'; no log probability depends on a gradient, whose knobs are recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from xcfg.schema.knobs import KnobDefinition
from xcfg.schema.names import Lifecycle, SourceClass, Target, Tier
from xcfg.schema.operators import OptionDefinition

from xcfg_ops_logp.ablation.descriptor import BACKWARD, OPTIONS, SHOWN_BY

LOGICAL, ARITHMETIC = SourceClass.LOGICAL_LAYOUT, SourceClass.ARITHMETIC
REDUCTION, REPRESENTATION = SourceClass.REDUCTION, SourceClass.REPRESENTATION
CLASSES: dict[str, tuple[SourceClass, Tier]] = {
    "vocab_padding_policy": (LOGICAL, Tier.SEMANTIC),
    "padded_vocab_size": (LOGICAL, Tier.RECORDED),
    "vocab_shard_map": (LOGICAL, Tier.RECORDED),
    "reduce": (REDUCTION, Tier.SEMANTIC),
    "merge_order": (REDUCTION, Tier.SEMANTIC),
    "head_dtype": (REPRESENTATION, Tier.IDENTICAL),
    "accum_dtype": (REPRESENTATION, Tier.SEMANTIC),
    "downcast_at": (REPRESENTATION, Tier.SEMANTIC),
    "transform_chain": (ARITHMETIC, Tier.SEMANTIC),
    "selected_gather": (REDUCTION, Tier.RECORDED),
    "shift_convention": (LOGICAL, Tier.SEMANTIC),
    "block_size": (REDUCTION, Tier.RECORDED),
    "backward_impl": (ARITHMETIC, Tier.RECORDED),
    "grad_downcast_at": (REPRESENTATION, Tier.RECORDED),
    "entropy_reduce": (REDUCTION, Tier.SEMANTIC),
}
PROVENANCE = {
    "backward": "What the backward of a probe on the score's logits states, which runs where the knob is planned.",
    "entropy": "What the backend states of the column `entropy`, where a score is asked for it.",
}


def option_knobs(
    operation: str, options: Iterable[OptionDefinition], classes: Mapping[str, tuple[SourceClass, Tier]]
) -> tuple[KnobDefinition, ...]:
    """Return one knob `logprob.NAME` per option of the operator `operation` that has a class and tier."""
    return tuple(
        KnobDefinition(
            name=f"logprob.{item.name}",
            summary=f"{item.summary[0].upper()}{item.summary[1:]}.",
            source_class=classes[item.name][0],
            lifecycle=Lifecycle.ENGINE_CONSTRUCTION,
            targets=Target.TRAINING if item.name in BACKWARD else Target.BOTH,
            domain=item.domain,
            tier=classes[item.name][1],
            capability=f"The backend of {operation} on that side has an option of this name.",
            apply="Handed to the backend when a worker builds it.",
            provenance=PROVENANCE.get(
                SHOWN_BY.get(item.name, ""),
                "What the backend states of every call of a score, from the tensors that it worked on.",
            ),
            default=item.default,
            not_alignable="A rollout runs no backward."
            if item.name in BACKWARD
            else "It acts on the backend of the side that it names; without a side it is asked of both.",
            option_of=operation,
        )
        for item in options
        if item.name in classes
    )


KNOBS = option_knobs("selected_logprob", OPTIONS, CLASSES)
