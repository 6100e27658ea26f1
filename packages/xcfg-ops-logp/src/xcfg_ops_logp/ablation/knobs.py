"""The ablation axes of the selected log probability as knobs `logprob.*`. No heavy import.

A knob is an option of the chosen backend: it is refused where the backend lacks it, and declares the field of the
contract that has its name. Tiers are those fields'; no log probability depends on a gradient, whose knobs are recorded.
"""

from __future__ import annotations

from xcfg.schema.knobs import KnobDefinition
from xcfg.schema.names import Lifecycle, SourceClass, Target, Tier

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

KNOBS = tuple(
    KnobDefinition(
        name=f"logprob.{item.name}",
        summary=f"{item.summary[0].upper()}{item.summary[1:]}.",
        source_class=CLASSES[item.name][0],
        lifecycle=Lifecycle.ENGINE_CONSTRUCTION,
        targets=Target.TRAINING if item.name in BACKWARD else Target.BOTH,
        domain=item.domain,
        tier=CLASSES[item.name][1],
        capability="The backend of selected_logprob on that side has an option of this name.",
        apply="Handed to the backend when a worker builds it.",
        provenance=PROVENANCE.get(
            SHOWN_BY.get(item.name, ""),
            "What the backend states of every call of a score, from the tensors that it worked on.",
        ),
        default=item.default,
        not_alignable="A rollout runs no backward."
        if item.name in BACKWARD
        else "One side alone has a backend with this option.",
        option_of="selected_logprob",
    )
    for item in OPTIONS
    if item.name in CLASSES
)
