"""The ablation axes of the selected log probability as knobs `logprob.*`. No heavy import.

A knob is an option of the chosen backend: it is refused where the backend lacks it, and declares the field of the
contract that has its name. Tiers are those fields'.
"""

from __future__ import annotations

from xcfg.schema.knobs import KnobDefinition
from xcfg.schema.names import Lifecycle, SourceClass, Target, Tier

from xcfg_ops_logp.ablation.descriptor import OPTIONS

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
}

KNOBS = tuple(
    KnobDefinition(
        name=f"logprob.{item.name}",
        summary=f"{item.summary[0].upper()}{item.summary[1:]}.",
        source_class=CLASSES[item.name][0],
        lifecycle=Lifecycle.ENGINE_CONSTRUCTION,
        targets=Target.BOTH,
        domain=item.domain,
        tier=CLASSES[item.name][1],
        capability="The backend of selected_logprob on that side has an option of this name.",
        apply="Handed to the backend when a worker builds it.",
        provenance="What the backend states of every call of a score, from the tensors that it worked on.",
        default=item.default,
        not_alignable="One side alone has a backend with this option.",
        option_of="selected_logprob",
    )
    for item in OPTIONS
    if item.name in CLASSES
)
