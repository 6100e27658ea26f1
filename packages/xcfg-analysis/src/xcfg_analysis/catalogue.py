"""The signatures of this package: names, columns, closed forms. Records only, nothing is imported."""

from __future__ import annotations

from xcfg.plugin import SignatureDescriptor

WHERE = "xcfg_analysis.signatures"

SIGNATURES = (
    SignatureDescriptor(
        name="lag",
        summary="Values of one side belong to the neighbouring position.",
        factory=f"{WHERE}.lag:Lag",
        closed_form="training[i] = rollout[i + k], k = +1 or -1",
        tier=0,
    ),
    SignatureDescriptor(
        name="fills",
        summary="One side holds 0.0 or a sentinel instead of a score.",
        factory=f"{WHERE}.fills:Fills",
        closed_form="value = v exactly, on one side",
        tier=0,
    ),
    SignatureDescriptor(
        name="bf16-log-softmax",
        summary="One side subtracts a bfloat16 logsumexp from a bfloat16 logit.",
        factory=f"{WHERE}.absolute:Bf16LogSoftmax",
        optional=("logsumexp",),
        closed_form="value = bf16(logit) - bf16(LSE), a multiple of one coarse step",
        tier=0,
    ),
    SignatureDescriptor(
        name="dyadic-grid",
        summary="The log probabilities of one side were rounded to 16 bits.",
        factory=f"{WHERE}.grid:DyadicGrid",
        closed_form="value = round(value) in bfloat16 or float16",
        tier=0,
    ),
    SignatureDescriptor(
        name="truncated-softmax",
        summary="One side renormalises over what top-k or top-p keeps.",
        factory=f"{WHERE}.truncation:TruncatedSoftmax",
        optional=("kept_mass",),
        closed_form="d = +-log S, S the kept mass of the token",
        tier=1,
    ),
    SignatureDescriptor(
        name="temperature",
        summary="One side divides its logits by a temperature and the other does not.",
        factory=f"{WHERE}.temperature:Temperature",
        optional=("entropy",),
        closed_form="d = s (log p + H), s = beta_training / beta_rollout - 1",
        tier=1,
    ),
    SignatureDescriptor(
        name="padded-vocabulary",
        summary="Padded vocabulary entries take part in one side's softmax.",
        factory=f"{WHERE}.padding:PaddedVocabulary",
        needs=("logsumexp",),
        closed_form="d = +-log(1 + A exp(-LSE)), A the sum of exp over the padded entries",
        tier=1,
    ),
    SignatureDescriptor(
        name="eos-token",
        summary="The error sits on the token id that ends sequences.",
        factory=f"{WHERE}.edges:EosToken",
        closed_form="|d| >> usual where token_id = e",
        tier=2,
    ),
    SignatureDescriptor(
        name="last-token",
        summary="The error sits on the last active token of each sequence.",
        factory=f"{WHERE}.edges:LastToken",
        closed_form="|d| >> usual at the last active token",
        tier=2,
    ),
    SignatureDescriptor(
        name="first-token",
        summary="The error sits on the first active token of each sequence.",
        factory=f"{WHERE}.edges:FirstToken",
        closed_form="|d| >> usual at the first active token",
        tier=2,
    ),
    SignatureDescriptor(
        name="some-ranks",
        summary="The drift is larger on some training ranks.",
        factory=f"{WHERE}.groups:SomeRanks",
        needs=("rank",),
        closed_form="E|d| = b on some ranks, a < b on the others",
        tier=2,
    ),
    SignatureDescriptor(
        name="growth-with-version",
        summary="The drift grows with the weight version, or with its age.",
        factory=f"{WHERE}.groups:GrowthWithVersion",
        needs=("weight_version",),
        closed_form="E|d| = a + b v, v the order of the versions",
        tier=2,
    ),
    SignatureDescriptor(
        name="block-boundary",
        summary="The drift sets in at a power of two of the position.",
        factory=f"{WHERE}.positions:BlockBoundary",
        closed_form="E|d| = a below position B, b > a from B on",
        tier=2,
    ),
    SignatureDescriptor(
        name="growth-with-position",
        summary="The drift grows along the sequence.",
        factory=f"{WHERE}.positions:GrowthWithPosition",
        closed_form="E|d| = a + b position",
        tier=3,
    ),
    SignatureDescriptor(
        name="low-probability-tail",
        summary="Only improbable tokens differ, by more than rounding does there.",
        factory=f"{WHERE}.tail:LowProbabilityTail",
        closed_form="|d| / profile(log p) = a for p >= P, b > a for p < P",
        tier=3,
    ),
    SignatureDescriptor(
        name="constant-bias",
        summary="Every token differs by the same amount.",
        factory=f"{WHERE}.bias:ConstantBias",
        closed_form="d = c",
        tier=3,
    ),
)
