"""Every knob and operator on a real engine of one rank: how far it moves the scores, and what is said about it.

MEASURED holds magnitudes that were measured once, by probes that share no code with this package, on another random
model of the same shape: max |d| from the baseline in bfloat16 and float32. An entry of 0 is exact. Numbers agree
within a factor of SPREAD either way, since the tokens and weights are others.
"""

from __future__ import annotations

from importlib.util import find_spec

import pytest

T = "training."
SPREAD = 10.0
MEASURED = {
    "bias_activation_fusion": ({T + "bias_activation_fusion": True}, {}, 3.2e-2, 0.0),
    "query_key_layer_scaling": ({T + "query_key_layer_scaling": True}, {}, 2.0e-2, 1.7e-6),
    "cross_entropy_unfused": ({"logp.backend": "megatron.cross_entropy_unfused"}, {}, 0.0, 0.0),
    "cross_entropy_fused": ({"logp.backend": "megatron.cross_entropy_fused"}, {}, 9.5e-7, 9.5e-7),
    "gathered_logits": ({"logp.backend": "xcfg.reference_logp"}, {}, 4.8e-7, 9.5e-7),
    "batch_of_one": ({"batch.size": 1}, {}, 0.0, 0.0),
    "own_norm": ({}, {"norm": "torch.rms_norm_float32"}, 0.0, 0.0),
    "own_attention": ({}, {"attention": "torch.sdpa"}, 4.2e-2, 3.8e-6),
    "own_row_linear": ({}, {"row_linear": "torch.row_linear_float32"}, 2.0e-2, 0.0),
    "operators_native": ({}, dict.fromkeys(("norm", "attention", "activation", "row_linear"), "native"), 0.0, 0.0),
}
PADDED = {
    "masked_768": ({}, {"vocab_divisor": 768}, 0.0),
    "included_512": ({T + "vocab_padding_policy": "include"}, {}, 1.8e-2),
    "included_768": ({T + "vocab_padding_policy": "include"}, {"vocab_divisor": 768}, 3.4e-1),
    "included_by_option": ({}, {"vocab_padding_policy": "include"}, 1.8e-2),
}
ACCEPTED = {
    "deterministic_mode": (True, "unobservable", "unobservable"),
    "bias_dropout_fusion": (True, "unobservable", "unobservable"),
    "disable_bf16_reduced_precision_matmul": (True, "unobservable", "unobservable"),
    "recompute": ("full", "unobservable", "unobservable"),
    "fp8": ("hybrid", "fallback", "fallback"),
    "softmax_in_fp32": (False, "unobservable", "fallback"),
    "masked_softmax_fusion": (True, "unsupported", "fallback"),
}
"""Flags that Megatron-core accepts on a CPU: value, and how each ends in bfloat16 and in float32."""
REFUSED = {
    "rope_fusion": (True, "apply_rope_fusion is not available"),
    "batch_invariant_mode": (True, "only supports FlashAttention"),
    "persist_layer_norm": (True, "persist_layer_norm not supported by torch LayerNorm"),
    "sequence_parallel": (True, "sequence parallelism without tensor parallelism"),
}
DTYPES = {"bfloat16": 2, "float32": 3}
SHOWN = 4.2e-3
"""softmax_in_fp32 moved one token of 636 by this much in bfloat16; every other accepted flag moves none."""
pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("megatron") is None, reason="Megatron-core is not installed"),
]


@pytest.fixture(scope="module")
def answers(lab, job):
    """All cases of this module from one process."""
    jobs = []
    for dtype in DTYPES:
        jobs += [job(f"base.{dtype}", dtype=dtype), job(f"base500.{dtype}", dtype=dtype, vocabulary=500)]
        jobs += [job(f"{name}.{dtype}", row[0], row[1], dtype=dtype) for name, row in MEASURED.items()]
        jobs += [
            job(f"{name}.{dtype}", row[0], dtype=dtype, vocabulary=500, options=row[1]) for name, row in PADDED.items()
        ]
        flags = {**ACCEPTED, **REFUSED, "selective": ("selective",)}
        for name, row in flags.items():
            path = T + ("recompute" if name == "selective" else name)
            jobs.append(job(f"{name}.{dtype}", {path: row[0]}, dtype=dtype))
        jobs.append(job(f"warm.{dtype}", {T + "temperature": 0.5}, dtype=dtype))
        persist = {T + "persist_layer_norm": True}
        jobs.append(job(f"persist.{dtype}", persist, {"norm": "torch.rms_norm_float32"}, dtype=dtype))
    return lab.run(jobs)[0]


def moved(answers, name, dtype, base="base"):
    return float((answers[f"{name}.{dtype}"].values - answers[f"{base}.{dtype}"].values).abs().max())


def agrees(found, expected):
    return found == 0.0 if expected == 0.0 else expected / SPREAD <= found <= expected * SPREAD


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MEASURED)
def test_a_factor_moves_the_scores_as_much_as_was_measured(answers, name, dtype):
    """If this fails, the knob or operator does not do what its name says, or something else changed with it."""
    assert answers[f"base.{dtype}"].values.shape == (636,)
    found, expected = moved(answers, name, dtype), MEASURED[name][DTYPES[dtype]]
    assert agrees(found, expected), f"{found:.2e}, measured {expected:.2e}"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MEASURED)
def test_what_was_measured_was_applied(answers, name, dtype):
    """If this fails, a number above is attributed to a setting that nobody saw run."""
    answer = answers[f"{name}.{dtype}"]
    knobs, operators, *_ = MEASURED[name]
    for path in (*knobs, *(f"operators.{item}" for item in operators)):
        item = answer.knob(path)
        assert item["status"] == "applied", item
        kinds = {piece["kind"] for piece in item["evidence"]}
        assert kinds & {"execution", "state"}, item
        assert item["exercised"] == ("no" if path == "batch.size" else "yes"), item


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PADDED)
def test_padded_columns_count_only_where_they_are_included(answers, name, dtype):
    """If this fails, rows of zeros in the output layer are tokens; float32 cannot make this look like rounding."""
    found = moved(answers, name, dtype, "base500")
    assert agrees(found, PADDED[name][2]), found
    vocabulary = answers[f"{name}.{dtype}"].said["report"]["mechanism"]["vocabulary"]
    policy = "include" if name.startswith("included") else "mask"
    assert vocabulary == {"policy": policy, "real": 500, "padded": 768 if "768" in name else 512}
    if PADDED[name][0]:
        item = answers[f"{name}.{dtype}"].knob(T + "vocab_padding_policy")
        assert (item["status"], item["actual"], item["exercised"]) == ("applied", "include", "yes")


def test_including_the_padding_of_a_vocabulary_that_needs_none_is_the_same_sum(answers):
    """If this fails, the policy does more than it says: 512 entries are padded by no column."""
    vocabulary = answers["base.float32"].said["report"]["mechanism"]["vocabulary"]
    assert vocabulary == {"policy": "mask", "real": 512, "padded": 512}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ACCEPTED)
def test_a_flag_that_changes_nothing_is_never_applied(answers, name, dtype):
    """If this fails, a flag that Megatron-core accepts and ignores is reported as set."""
    value, *ends = ACCEPTED[name]
    answer, expected = answers[f"{name}.{dtype}"], ends[list(DTYPES).index(dtype)]
    if expected == "unsupported":
        assert answer.said["kind"] == "unsupported" and "scaled_masked_softmax_cuda" in answer.said["error"]
        return
    item = answer.knob(T + name)
    assert (item["status"], item["requested"]) == (expected, value), item
    assert item["reason"], "a status without a reason helps nobody"
    bound = SHOWN if (name, dtype) == ("softmax_in_fp32", "bfloat16") else 0.0
    assert moved(answers, name, dtype) <= bound


def test_selective_recomputation_is_not_applied_either(answers):
    """If this fails, one of the two ways to recompute is believed."""
    item = answers["selective.float32"].knob(T + "recompute")
    assert (item["status"], item["materialized"], item["exercised"]) == ("unobservable", "selective", "no")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", REFUSED)
def test_what_megatron_refuses_is_unsupported_with_its_reason(answers, name, dtype):
    """If this fails, a refusal is a crash of the launch, or the reason is lost."""
    said = answers[f"{name}.{dtype}"].said
    assert said["kind"] == "unsupported"
    assert f"{T}{name}=True" in said["error"] and REFUSED[name][1] in said["error"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_persistent_norm_is_a_fallback_where_ours_stands_in_its_place(answers, dtype):
    """If this fails, a flag of the norm that was replaced is taken for the norm that runs."""
    item = answers[f"persist.{dtype}"].knob(T + "persist_layer_norm")
    assert (item["status"], item["actual"]) == ("fallback", False)


@pytest.mark.parametrize("dtype", DTYPES)
def test_temperature_divides_the_logits_and_is_in_the_chain(answers, dtype):
    """If this fails, a temperature is applied and not said, or said and not applied."""
    answer = answers[f"warm.{dtype}"]
    assert answer.said["report"]["transforms"] == ["temperature:0.5"]
    item = answer.knob(T + "temperature")
    assert (item["status"], item["actual"], item["exercised"]) == ("applied", 0.5, "yes")
    cold, warm = answers[f"base.{dtype}"].values.double(), answer.values.double()
    assert float((warm - cold).abs().max()) > 0.1
    assert float(warm.mean()) < float(cold.mean()), "random tokens lose probability in a sharper distribution"


@pytest.fixture(scope="module")
def sabotaged(lab, job):
    """The sabotages stay in their process, so that each has its own launch."""
    jobs = {
        "spec-ignored": {"attention": "torch.sdpa", "row_linear": "torch.row_linear_float32"},
        "slot-unplugged": {"norm": "torch.rms_norm_float32"},
        "attention-replaced": {"attention": "native", "row_linear": "native"},
    }
    return {name: lab.run([job(name, {}, operators, sabotage=name)])[0][name] for name, operators in jobs.items()}


@pytest.mark.parametrize("operation", ["attention", "row_linear"])
def test_an_operator_that_was_lost_is_a_fallback_to_the_engines_own(sabotaged, operation):
    """If this fails, what a binding names is reported in place of what stands in the model."""
    item = sabotaged["spec-ignored"].knob(f"operators.{operation}")
    own = {"attention": "megatron.core_attention", "row_linear": "megatron.row_linear"}[operation]
    assert (item["status"], item["actual"]) == ("fallback", own), item


def test_an_attention_of_another_class_is_not_megatrons_own(sabotaged):
    """If this fails, whatever was not injected is reported as Megatron-core's DotProductAttention."""
    item = sabotaged["attention-replaced"].knob("operators.attention")
    assert (item["status"], item["actual"]) == ("unobservable", None), item
    assert "megatron.core_attention does not stand for" in item["reason"] and "TEDot" in item["reason"]
    assert sabotaged["attention-replaced"].knob("operators.row_linear")["status"] == "applied"


def test_one_slot_with_another_module_is_not_applied(sabotaged):
    """If this fails, sixteen of seventeen norms count as all of them; the numbers would not show it in float32."""
    item = sabotaged["slot-unplugged"].knob("operators.norm")
    assert (item["status"], item["actual"]) == ("unobservable", None), item
    assert "not every slot" in item["reason"]


def test_the_baseline_says_what_a_cpu_needed(answers):
    """If this fails, a run on a CPU hides that torch was changed for it."""
    report = answers["base.float32"].said["report"]
    assert report["mechanism"]["patches"] == ["torch.cuda.current_device returns the CPU device"]
    assert report["mechanism"]["determinism"]["libraries"] == ["torch"]
    assert report["mechanism"]["determinism"]["flags"]["NVTE_ALLOW_NONDETERMINISTIC_ALGO"] == "unset"
