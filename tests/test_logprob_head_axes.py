"""Each axis of the head on one side of a real run: values move as float64 says of the product, or by rounding alone.

Both sides run `xcfg.ablation_linear_logp`, in bfloat16 with the library's product on the training side, in float32 with
the fixed order. The oracle is the same checkpoint in plain Hugging Face: its hidden states, and the products and sums
of the axes in float64 written out here.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
import xcfg

TINY = Path(__file__).parents[1] / "examples" / "quickstart" / "tiny.json"
BACKEND, HEAD = "xcfg.ablation_linear_logp", "linear_selected_logprob"
DTYPES = ("bfloat16", "float32")
BATCH = 8
SAME_FUNCTION = [
    ("materialization", "full_prefill"),
    ("materialization", "last_token_only"),
    ("chunk_size", 24),
    ("head_gemm_kernel", None),
    ("fusion_impl", "none"),
    ("vocab_block_size", 48),
]
"""On the training side, which has 64 rows in a product and half the vocabulary in a block."""
KERNEL = {"bfloat16": "torch", "float32": "fixed_order"}
OTHER = {
    "bfloat16": {"head_gemm_dtype": "float32", "head_gemm_kernel": "fixed_order"},
    "float32": {"head_gemm_dtype": "bfloat16", "head_gemm_kernel": "torch"},
}
"""The values that follow from the dtype of the run; None in the lists of axes."""
CASES = [*SAME_FUNCTION, ("head_gemm_dtype", None)]


def experiment(folder: Path, name: str, dtype: str, **changes) -> Path:
    """Write the tiny experiment with the ablation backend of the head on both sides."""
    document = json.loads(TINY.read_text())
    document["identity"]["rollout"]["path"] = str(TINY.parent / "tiny-rollout")
    document |= {
        "experiment_id": name,
        "baseline": {
            "batch": {"size": BATCH, "padding_side": "right"},
            "rollout": {"dtype": dtype},
            "training": {"compute_dtype": dtype},
            "logprob.materialization@training": "chunked",
            "logprob.fusion_impl@training": "chunked_linear_ce",
            "logprob.head_gemm_kernel@training": KERNEL[dtype],
        },
        "interventions": [],
        "controls": {"reference": False},
        "operators": {HEAD: dict.fromkeys(("rollout", "training"), BACKEND)},
        "runtime_options": {side: {"threads": 1} for side in ("rollout", "training")},
        **changes,
    }
    file = folder / f"{name}.json"
    file.write_text(json.dumps(document))
    return file


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("head-axes")


@pytest.fixture(scope="module")
def ran(folder):
    """dtype -> (knob, value, side) -> (case, line of the summary); the baseline is under None."""
    found = {}
    for dtype in DTYPES:
        axes = [(name, "training", value or OTHER[dtype][name]) for name, value in CASES]
        axes.append(("materialization", "rollout", "last_token_only"))
        interventions = [{"path": f"logprob.{name}", "side": side, "values": [value]} for name, side, value in axes]
        file = experiment(folder, dtype, dtype, interventions=interventions)
        summary = xcfg.run(file, output_root=folder / "runs", columns=("exact_logprob",))
        run = xcfg.open_run(folder / "runs" / dtype)
        found[dtype] = {}
        for case, line in zip(run.cases, summary.cases, strict=True):
            path, value = next(iter(case.planned.delta.items()), ("", None))
            name, _, side = path.removeprefix("logprob.").partition("@")
            found[dtype][(name, value, side) if path else None] = (case, line)
    return found


@pytest.fixture(scope="module")
def heads(folder):
    """dtype -> (hidden [T, K], weight [V, K], selected [T]) of the active tokens, from plain Hugging Face."""
    from transformers import AutoModelForCausalLM
    from xcfg.identity.rollout import read_rollout
    from xcfg_torch.checkpoints import tiny_qwen3_512

    place = folder / "checkpoint"
    place.mkdir()
    tiny_qwen3_512(place)
    rollout = read_rollout(TINY.parent / "tiny-rollout")
    spans = [rollout.span(at) for at in range(rollout.sequence_count)]
    found, threads = {}, torch.get_num_threads()
    torch.set_num_threads(1)
    for dtype in DTYPES:
        model = AutoModelForCausalLM.from_pretrained(place, dtype=getattr(torch, dtype)).eval()
        hidden, selected = [], []
        for start in range(0, len(spans), BATCH):
            batch = spans[start : start + BATCH]
            lengths = torch.tensor([span.stop - span.start for span in batch])
            mask = torch.arange(int(lengths.max()))[None] < lengths[:, None]
            ids = torch.zeros(mask.shape, dtype=torch.int64)
            ids[mask] = torch.from_numpy(np.concatenate([rollout.token_ids[span] for span in batch]).astype(np.int64))
            with torch.no_grad():
                states = model.model(input_ids=ids, attention_mask=mask.long(), use_cache=False).last_hidden_state
            for row, span in enumerate(batch):
                active = np.flatnonzero(rollout.active[span])
                hidden.append(states[row, active - 1])
                selected.append(ids[row, active])
        found[dtype] = torch.cat(hidden), model.lm_head.weight.detach(), torch.cat(selected)
    torch.set_num_threads(threads)
    return found


def logprob(logits: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
    """The formula in float64."""
    wide = logits.double()
    return (wide - wide.logsumexp(-1, keepdim=True)).gather(-1, selected[:, None])[:, 0]


def values(case) -> torch.Tensor:
    """The training side's values of the active tokens, in the order of tokens."""
    tokens = case.tokens()
    return torch.from_numpy(tokens["training_vs_rollout__first"][tokens["training_vs_rollout__mask"]]).double()


def applied(case, arm: str, name: str) -> list:
    """The records of a knob on the side of `arm`."""
    side = arm.partition("_")[0]
    return [
        item
        for item in case.actual.applications[arm]
        if item.path.partition("@")[0] == f"logprob.{name}" and item.side == side
    ]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "value"), CASES)
def test_an_axis_on_one_side_moves_the_values_as_float64_says(ran, heads, dtype, name, value):
    """If this fails, a knob does not reach the head, reaches the other side, or computes something else."""
    hidden, weight, selected = heads[dtype]
    value = value or OTHER[dtype][name]
    (case, line), (base, _) = ran[dtype][name, value, "training"], ran[dtype][None]
    exact = hidden.double() @ weight.double().t()
    # A few roundings of float32 over the depth, for a logit and for the sum.
    fine = 4 * torch.finfo(torch.float32).eps * float((hidden.double().abs() @ weight.double().abs().t()).max())
    coarse = torch.finfo(torch.bfloat16).eps * float(exact.abs().max())
    base_values, found = values(base), values(case)
    if dtype == "float32":
        assert (base_values - logprob(exact, selected)).abs().max() <= fine
    else:  # a logit next to the middle of two bfloat16 may round to either
        off = (base_values - logprob(exact.bfloat16(), selected)).abs()
        assert (off <= fine).double().mean() > 0.9 and off.max() <= 2 * coarse
    if name == "head_gemm_dtype":
        kind = getattr(torch, value)
        other = hidden.to(kind).double() @ weight.to(kind).double().t()
        if kind == torch.float32:
            off = (found - logprob(other, selected)).abs()
            assert off.max() <= fine
        else:
            off = (found - logprob(other.bfloat16(), selected)).abs()
            assert (off <= fine).double().mean() > 0.9 and off.max() <= 2 * coarse
        assert (found - base_values).abs().max() > 10 * fine, "the option moved nothing"
    else:
        moved = (found - base_values).abs()
        assert moved.max() <= (2 * fine if dtype == "float32" else 2 * coarse)
        if dtype == "bfloat16":
            assert (moved <= 2 * fine).double().mean() > 0.9
    if dtype == "float32" and name == "head_gemm_kernel":
        assert (found != base_values).any(), "another order over K is seen in some bit"
    if dtype == "float32" and name in ("materialization", "chunk_size"):
        assert torch.equal(found, base_values), "in the fixed order a row has its bits in every product"
    assert np.array_equal(
        case.score("rollout_decode")["selected_logprob"],
        base.score("rollout_decode")["selected_logprob"],
        equal_nan=True,
    )
    assert line.status in ("PASS", "MISMATCH"), line.reason
    records = applied(case, "training", name)
    assert records and {(item.status.value, item.requested) for item in records} == {("applied", value)}
    assert "execution" in {evidence.kind.value for item in records for evidence in item.evidence}


def rms(values: torch.Tensor) -> float:
    return float(values.square().mean().sqrt())


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_drift_of_the_head_is_told_apart_from_that_of_the_sum(ran, folder, heads, dtype):
    """If this fails, what a product moved is reported as drift of the log-sum-exp, or the reverse."""
    command = [sys.executable, "-m", "xcfg", "analyze", str(folder / "runs" / dtype)]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=100, check=False)
    moved = {
        item["knobs"][0].removeprefix("logprob.").partition("@")[0]: item["movement"][0]
        for item in json.loads(done.stdout)["effects"]
        if item["side"] == "training"
    }
    hidden, weight, selected = heads[dtype]
    exact = hidden.double() @ weight.double().t()
    narrow = exact if dtype == "bfloat16" else hidden.bfloat16().double() @ weight.bfloat16().double().t()
    product = rms(logprob(narrow.bfloat16(), selected) - logprob(exact, selected))
    assert moved["head_gemm_dtype"]["of_logits"] == pytest.approx(product, rel=0.1)
    assert moved["head_gemm_dtype"]["of_sum"] < 1e-6 < 1e-3 < product
    if dtype == "float32":
        for name in ("fusion_impl", "vocab_block_size"):  # the same logits in other blocks
            assert (
                moved[name]["of_logits"] < 1e-12 < moved[name]["of_sum"] == pytest.approx(moved[name]["rms"], rel=1e-6)
            )
        kernel = moved["head_gemm_kernel"]
        assert 0 < kernel["of_logits"] < 1e-5
    page = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False).stdout
    assert "by the logits" in page and "by the sum" in page


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_row_at_a_time_in_decode(ran, dtype):
    """If this fails, the knobs reach the training side alone."""
    (case, line), (base, _) = ran[dtype]["materialization", "last_token_only", "rollout"], ran[dtype][None]
    assert line.status in ("PASS", "MISMATCH"), line.reason
    records = applied(case, "rollout_decode", "materialization")
    assert {(item.status.value, item.actual) for item in records} == {("applied", "last_token_only")}
    assert {item.kind.value for record in records for item in record.evidence} == {"execution", "state"}
    assert torch.equal(values(case), values(base))


@pytest.mark.slow
def test_what_changed_nothing_or_reaches_nothing_is_said(folder):
    """If this fails, a chunk as wide as all rows passes as one, or a knob is dropped where no head is chosen."""
    axis = [{"path": "logprob.chunk_size", "side": "training", "values": [4096]}]
    wide = xcfg.run(experiment(folder, "wide", "float32", interventions=axis), output_root=folder / "runs")
    fallback = next(line for line in wide.cases if "4096" in line.label)
    assert (fallback.status, "chunk_size" in fallback.reason) == ("FALLBACK", True)
    file = experiment(folder, "nowhere", "float32", interventions=axis, operators={})
    document = json.loads(file.read_text())
    document["baseline"] = {key: item for key, item in document["baseline"].items() if not key.startswith("logprob")}
    file.write_text(json.dumps(document))
    nowhere = xcfg.run(file, output_root=folder / "runs")
    refused = next(line for line in nowhere.cases if "4096" in line.label)
    assert (refused.status, f"operators.{HEAD}" in refused.reason) == ("UNSUPPORTED", True)


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.skipif(find_spec("megatron") is None, reason="Megatron-core is not installed")
def test_the_head_of_a_megatron_engine(folder, ran):
    """If this fails, a knob of the head is dropped where Megatron-core trains, or its values are of another head."""
    file = experiment(
        folder,
        "megatron",
        "float32",
        operators={HEAD: {"training": BACKEND}},
        interventions=[
            {"path": "logprob.chunk_size", "side": "training", "values": [8, 4096]},
            {"path": "logprob.head_gemm_kernel", "side": "training", "values": ["torch"]},
        ],
    )
    document = json.loads(file.read_text())
    document["baseline"]["training"]["attention_backend"] = "model_default"
    document["baseline"]["logprob.chunk_size@training"] = 16  # a call has the tokens of one sequence
    file.write_text(json.dumps(document))
    summary = xcfg.run(file, training="megatron", output_root=folder / "runs")
    cases = {case.planned.label: case for case in xcfg.open_run(folder / "runs" / "megatron").cases}
    statuses = {line.label: line.status for line in summary.cases}
    assert statuses.pop("logprob.chunk_size@training=4096") == "FALLBACK", [line.reason for line in summary.cases]
    assert set(statuses.values()) <= {"PASS", "MISMATCH"}, [line.reason for line in summary.cases]
    for name, value in (("chunk_size", 8), ("head_gemm_kernel", "torch")):
        case = cases[f"logprob.{name}@training={value}"]
        assert (values(case) - values(ran["float32"][None][0])).abs().max() < 1e-5
        assert {(item.status.value, item.actual) for item in applied(case, "training", name)} == {("applied", value)}
