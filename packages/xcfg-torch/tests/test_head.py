"""`linear_selected_logprob` in the place of the head: what it is handed, formed, read back, refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from xcfg.errors import WorkerError
from xcfg.schema.identity import SamplingRecord
from xcfg.schema.names import Applied, EvidenceKind, Exercised
from xcfg.schema.operators import OperatorBinding
from xcfg.schema.worker import ScoreRequest
from xcfg_torch.capabilities import OWN_HEAD
from xcfg_torch.layout import UnsupportedRequestError

OPERATION = "linear_selected_logprob"
PATH = f"operators.{OPERATION}"
FACTORIES = {
    "xcfg.reference_linear_logp": "xcfg_ops_logp.linear.reference:build",
    "xcfg.torch_linear_logp": "xcfg_ops_logp.linear.chunked:build",
    OWN_HEAD: "xcfg_torch.head:own_head",
    "xcfg.ablation_linear_logp": "xcfg_ops_logp.ablation.head:AblationLinear",
}
LSE64 = {"factory": "xcfg_ops_logp.reference:build", "backend": "xcfg.reference_logp"}
ONE = {"batch.size": 1}


def bound(backend: str, **options) -> OperatorBinding:
    """The binding of one backend."""
    return OperatorBinding(
        operation=OPERATION, side="", requested=backend, backend_id=backend, factory=FACTORIES[backend], options=options
    )


REFERENCE, TORCH, NATIVE, ABLATION = (bound(name) for name in FACTORIES)


def oracle(engine, rollout):
    """Log probabilities float64 by two paths: [exact head, the head's own logits], in numpy from the live model."""
    model, found = engine.adapter.engine.model, []
    weight = model.get_output_embeddings().weight.detach()
    for at in range(rollout.sequence_count):
        span = rollout.span(at)
        ids = torch.from_numpy(rollout.token_ids[span].astype(np.int64))
        with torch.no_grad():
            hidden = model.get_decoder()(input_ids=ids[None], use_cache=False).last_hidden_state
            own = torch.nn.functional.linear(hidden, weight)[0]
        exact = hidden[0].double().numpy() @ weight.double().numpy().T
        for logits in (exact, own.double().numpy()):
            top = logits.max(-1, keepdims=True)
            values = logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))
            rows = np.flatnonzero(rollout.active[span])
            found.append(values[rows - 1, ids.numpy()[rows]])
    return np.concatenate(found[::2]), np.concatenate(found[1::2])


@pytest.mark.parametrize("side", ["training", "rollout"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_values_are_those_of_the_exact_head(built, uneven, side, dtype):
    """Failing means that the operator is handed other rows, ids or weights than those of the model's own head."""
    engine = built(side, dtype, head=REFERENCE)
    found = engine.score(uneven, knobs=ONE)
    exact, own = oracle(engine, uneven)
    assert np.abs(found.values - exact).max() < 1e-6, "a score column is float32"
    assert found.report.state_unchanged
    if dtype == "bfloat16":
        assert np.abs(own - exact).max() > 1e-4, "the oracle cannot tell an exact head from the model's own"
    plain = built(side, dtype).score(uneven, knobs=ONE)
    assert found.report.attestations == plain.report.attestations


@pytest.mark.parametrize("arm", ["rollout_prefill", "rollout_decode"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_every_layout_hands_over_the_same_rows(built, uneven, arm, side):
    """Failing means that padding, batches or the decode loop pick hidden states where they would not pick logits."""
    plain = built("rollout", "float64").score(uneven, arm, {"batch.size": 3, "batch.padding_side": side})
    mine = built("rollout", "float64", head=TORCH).score(uneven, arm, {"batch.size": 3, "batch.padding_side": side})
    assert np.abs(plain.values - mine.values).max() < 1e-11


def test_packing_and_kept_columns(built, uneven):
    """Failing means that packed rows, or logits_to_keep, shift what is scored."""
    plain = built("training", "float64").score(uneven, knobs={"batch.size": 5, "batch.packing": True})
    mine = built("training", "float64", head=TORCH, options={"logits_to_keep": True})
    assert (
        np.abs(plain.values - mine.score(uneven, knobs={"batch.size": 5, "batch.packing": True}).values).max() < 1e-11
    )


class Widths(TorchDispatchMode):
    """The most rows of any tensor that is `columns` wide and not the weights themselves."""

    def __init__(self, columns, weight):
        super().__init__()
        self.columns, self.storage, self.rows = columns, weight.untyped_storage().data_ptr(), 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for item in tree_leaves(result):
            wide = isinstance(item, torch.Tensor) and item.ndim and item.shape[-1] == self.columns
            if wide and item.untyped_storage().data_ptr() != self.storage:
                self.rows = max(self.rows, item.numel() // self.columns)
        return result


def test_logits_are_never_whole(built, rollout_of, tmp_path):
    """Failing means that the model forms logits after all, so that the operator saves nothing."""
    from xcfg_torch.checkpoints import tiny_qwen3_500

    folder = tmp_path / "tiny-500"
    folder.mkdir()
    tiny_qwen3_500(folder)
    rollout = rollout_of([5, 9, 3], [20, 16, 22], vocabulary=500)
    rows = {}
    for name, head in (("own", None), ("injected", bound("xcfg.torch_linear_logp", chunk_rows=4))):
        engine = built("training", checkpoint=folder, head=head)
        with Widths(500, engine.adapter.engine.model.get_output_embeddings().weight) as seen:
            engine.score(rollout, knobs={"batch.size": 3})
        rows[name] = seen.rows
    assert rows == {"own": 3 * 25, "injected": 4}


def test_what_moved_is_the_head_or_the_sum(built, uneven):
    """Failing means that a swap of the head and one of the sum do not tell the two drifts apart.

    Baseline bfloat16. Exact sum over the model's logits: what moves is the sum's error. Exact head and sum: both
    errors. Their difference is the head's. Each is held against numpy in float64 from the live hidden states.
    """
    plain = built("training", "bfloat16")
    exact, own = oracle(plain, uneven)
    base = plain.score(uneven, knobs=ONE).values
    only_sum = built("training", "bfloat16", **LSE64).score(uneven, knobs=ONE).values
    both = built("training", "bfloat16", head=REFERENCE).score(uneven, knobs=ONE).values
    assert np.abs((only_sum - base) - (own - base)).max() < 1e-6
    assert np.abs((both - only_sum) - (exact - own)).max() < 1e-6
    drift = {"head": np.abs(both - only_sum).max(), "sum": np.abs(only_sum - base).max()}
    assert drift["head"] > 100 * drift["sum"], drift


@pytest.mark.parametrize("name", ["xcfg.reference_linear_logp", "xcfg.torch_linear_logp"])
def test_what_ran_is_read_back(built, uneven, rollout_of, name):
    """Failing means `applied` without a call, or a call that is not counted."""
    engine = built("training", head=bound(name), knobs={"logp.backend": "native"})
    scored = engine.score(uneven, knobs={"batch.size": 2})
    at_build = {item.path: item for item in engine.report.applications}
    for found in (at_build, scored.applications):
        item = found[PATH]
        assert (item.status, item.actual, item.exercised) == (Applied.APPLIED, name, Exercised.YES)
        assert item.evidence[0].kind is EvidenceKind.EXECUTION and int(item.evidence[0].detail) > 0
        beside = found["logp.backend"]
        assert (beside.status, beside.actual) == (Applied.FALLBACK, name), (
            "the log probability that was asked for ran not"
        )
    counters = scored.report.counters
    assert counters["operator.selected_logprob"] == counters["head.formed_logits"] == 0
    assert counters[f"operator.{OPERATION}"] == 3, "three batches of at most two sequences"
    idle = engine.score(rollout_of([4], [3], tensors={"active_mask": np.zeros(7, dtype=bool)})).applications[PATH]
    assert (idle.status, idle.exercised) == (Applied.APPLIED, Exercised.NO)


def test_the_model_s_own_head_is_read_back(built, uneven):
    """Failing means that `native` is applied where nothing was seen, or that binding it moves a bit."""
    engine = built("training", head=NATIVE)
    scored = engine.score(uneven)
    item = scored.applications[PATH]
    assert (item.status, item.actual) == (Applied.APPLIED, OWN_HEAD)
    assert scored.report.counters["head.formed_logits"] == 3
    assert (scored.values == built("training").score(uneven).values).all()


def test_a_head_that_came_back_is_no_pass(built, uneven):
    """Failing means that logits are scored as if they were hidden states, or that nobody sees the head return."""
    engine = built("training", head=TORCH)
    live = engine.adapter.engine
    live.head.remove()
    with pytest.raises(WorkerError, match="was not reached"):
        engine.score(uneven)
    from xcfg_torch.knobs import construction_applications

    (found,) = construction_applications(live, {}, scored=False)
    assert (found.status, found.path) == (Applied.UNOBSERVABLE, PATH)


def test_a_model_that_touches_its_logits_is_seen(built, uneven):
    """Failing means that a transform which nobody knows by name is left out in silence."""

    def scaled(module, args, kwargs, output):
        output.logits = output.logits * 0.5
        return output

    engine = built("training", head=TORCH)
    engine.adapter.engine.model.register_forward_hook(scaled, with_kwargs=True)
    with pytest.raises(WorkerError, match="behind the head"):
        engine.score(uneven)


def test_closing_gives_the_head_back(built):
    """Failing means that a model outlives its engine without a head."""
    engine = built("training", head=TORCH)
    module = engine.adapter.engine.model.get_output_embeddings()
    assert "forward" in module.__dict__
    engine.adapter.close()
    assert "forward" not in module.__dict__


def test_refused_beside_others(built):
    """Failing means that two operators share one place, or that shards of a weight are taken for the whole."""
    with pytest.raises(UnsupportedRequestError, match="both asked for on the training side"):
        built("training", head=TORCH, **LSE64)
    with pytest.raises(UnsupportedRequestError, match=r"training\.sharding"):
        built("training", head=TORCH, knobs={"training.sharding": "fsdp"})
    built("training", head=NATIVE, **LSE64)


@pytest.mark.parametrize(
    ("name", "settings", "told"),
    [
        ("Gemma2", {"final_logit_softcapping": 5.0, "query_pre_attn_scalar": 16}, "soft_cap:5.0"),
        ("Cohere", {"logit_scale": 0.5}, "logit_scale:0.5"),
        ("Phi", {}, "bias"),
    ],
)
def test_a_head_that_does_more_is_refused(built, tmp_path, name, settings, told):
    """Failing means that a bias, cap or scale of the model is dropped and called drift of the head."""
    import transformers

    config = getattr(transformers, f"{name}Config")(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        **settings,
    )  # fmt: skip
    getattr(transformers, f"{name}ForCausalLM")(config).save_pretrained(tmp_path / "model")
    with pytest.raises(UnsupportedRequestError, match=told):
        built("training", "float32", "eager", checkpoint=tmp_path / "model", head=TORCH)
    built("training", "float32", "eager", checkpoint=tmp_path / "model", head=NATIVE)


def test_the_exact_sum_of_the_logits_beside_the_value(built, uneven):
    """Failing means that head and sum are told apart by other logits than those that were formed."""
    native = built("training", "bfloat16", head=NATIVE)
    exact, own = oracle(native, uneven)
    active = uneven.active
    found = native.score(uneven, knobs=ONE, columns=("exact_logprob",))
    assert np.abs(found.columns["exact_logprob"].numpy()[active] - own).max() < 1e-12
    wide = built("training", "bfloat16", head=bound("xcfg.ablation_linear_logp", head_gemm_dtype="float64"))
    scored = wide.score(uneven, knobs=ONE, columns=("exact_logprob", "selected_logit", "logsumexp"))
    columns = {name: column.double().numpy()[active] for name, column in scored.columns.items()}
    assert np.abs(columns["exact_logprob"] - exact).max() < 1e-12
    two = columns["selected_logit"] - columns["logsumexp"]
    assert np.abs(two - exact).max() < 1e-5, "two columns of float32"
    with pytest.raises(UnsupportedRequestError, match=r"columns entropy are .* hands out none"):
        built("training", head=ABLATION).score(uneven, columns=("exact_logprob", "entropy"))


@pytest.mark.parametrize("side", ["training", "rollout"])
def test_options_of_the_head_are_read_back_from_it(built, rollout_of, uneven, side):
    """Failing means that an option counts as applied where the head did something else, or that the probe decides."""
    options = {"materialization": "chunked", "chunk_size": 6, "head_gemm_kernel": "fixed_order"}
    knobs = {f"logprob.{name}": value for name, value in options.items()}
    engine = built(side, "float32", head=bound("xcfg.ablation_linear_logp", **options), knobs=knobs)
    assert all(item.status is Applied.APPLIED for item in engine.report.applications if item.path in knobs)
    found = engine.score(uneven, knobs={"batch.size": 5})
    for path, value in knobs.items():
        item = found.applications[path]
        assert (item.status, item.actual) == (Applied.APPLIED, value)
        assert item.evidence[0].kind is EvidenceKind.EXECUTION
    few = engine.score(rollout_of([2], [3]), knobs=ONE)
    assert few.applications["logprob.chunk_size"].status is Applied.FALLBACK, "fewer rows than a chunk"
    assert few.applications["logprob.head_gemm_kernel"].status is Applied.APPLIED


def test_requests_that_need_logits_are_refused(built, rollout_of, uneven):
    """Failing means that a temperature is left out, or that a column is read from hidden states."""
    engine = built("training", head=TORCH)
    with pytest.raises(UnsupportedRequestError, match="entropy"):
        engine.score(uneven, columns=("entropy",))
    sampling = SamplingRecord(temperature=0.7, logprobs_mode="processed_logprobs", transform_chain=("temperature:0.7",))
    with pytest.raises(UnsupportedRequestError, match=r"temperature:0\.7"):
        engine.score(rollout_of([4], [3], sampling=sampling))
    with pytest.raises(UnsupportedRequestError, match="sampled from"):
        engine.adapter.generate(ScoreRequest(id="g", arm="training"), [[1, 2]])
