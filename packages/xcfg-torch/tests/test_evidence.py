"""What ran is read from the live engine: a request that was not honoured never reads as applied."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from xcfg.errors import ConfigError, LaunchError, XcfgError
from xcfg.identity.attest import expected_attestations
from xcfg.identity.checkpoint import expected_weights
from xcfg.plugin.protocols import Generator, RankContext, RuntimeAdapter
from xcfg.schema.names import Applied, EvidenceKind, Exercised

BASE = {
    "logp.backend": "native",
    "rollout.tensor_parallel_size": 1,
    "rollout.context_parallel_size": 1,
    "rollout.enable_prefix_caching": False,
    "rollout.enforce_eager": True,
}


def _by_path(report):
    return {item.path: item for item in report.applications}


def test_implements_the_protocols():
    from xcfg_torch.adapter import TorchAdapter

    assert isinstance(TorchAdapter(), RuntimeAdapter) and isinstance(TorchAdapter(), Generator)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize(("side", "dtype"), [("training", "bfloat16"), ("rollout", "float16"), ("training", "float32")])
def test_dtype_and_attention_have_execution_evidence(built, uneven, side, dtype, attention):
    engine = built(side, dtype, attention)
    head = "rollout" if side == "rollout" else "training"
    for report in (engine.report, engine.score(uneven).report):
        found = _by_path(report)
        ran = found[f"{head}.attention_backend"]
        assert (ran.status, ran.actual) == (Applied.APPLIED, attention)
        assert (
            ran.evidence[0].kind is EvidenceKind.EXECUTION and f"{attention} in 4 of 4 layers" in ran.evidence[0].detail
        )
        kept = found["rollout.dtype" if side == "rollout" else "training.compute_dtype"]
        assert (kept.status, kept.actual) == (Applied.APPLIED, dtype)
        assert kept.evidence[0].kind is EvidenceKind.EXECUTION and dtype in kept.evidence[0].detail
        assert report.compute_dtype == dtype


def test_eager_and_sdpa_are_different_arithmetic(built, uneven):
    eager, sdpa = (built("training", "bfloat16", name).score(uneven).values for name in ("eager", "sdpa"))
    assert (eager != sdpa).any()


def test_model_default_says_what_it_resolved_to(built, uneven):
    found = _by_path(built("training", attention="model_default").score(uneven).report)["training.attention_backend"]
    assert (found.status, found.actual, found.materialized) == (Applied.APPLIED, "model_default", "sdpa")


def test_attention_that_was_swapped_behind_the_name_is_a_fallback(built, uneven):
    """Hugging Face keeps the name `sdpa` when a plugin registers another function under it."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    from transformers.models.qwen3.modeling_qwen3 import eager_attention_forward

    engine = built("training", attention="sdpa")
    original = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def swapped(module, query, key, value, mask, scaling, **kwargs):
        length = query.shape[2]
        full = torch.full((length, length), -torch.inf).triu(1)
        return eager_attention_forward(module, query, key, value, full if mask is None else mask, scaling)

    ALL_ATTENTION_FUNCTIONS["sdpa"] = swapped
    try:
        found = _by_path(engine.score(uneven, knobs={"batch.size": 1}).report)["training.attention_backend"]
    finally:
        ALL_ATTENTION_FUNCTIONS["sdpa"] = original
    assert engine.adapter.engine.model.config._attn_implementation == "sdpa"
    assert (found.status, found.actual) == (Applied.FALLBACK, "eager")


def test_one_layer_in_another_dtype_is_a_fallback(built, uneven):
    engine = built("training", "float32")
    engine.adapter.engine.parts.blocks[1].mlp.register_forward_pre_hook(lambda module, args: (args[0].bfloat16(),))
    engine.adapter.engine.parts.blocks[1].mlp.bfloat16()
    engine.adapter.engine.parts.blocks[1].mlp.register_forward_hook(lambda module, args, output: output.float())
    scored = engine.score(uneven)
    assert scored.report.compute_dtype == "bfloat16", "the coarsest dtype of the blocks counts"
    assert _by_path(scored.report)["training.compute_dtype"].status is Applied.FALLBACK


def test_inherent_values_and_the_operator(built, uneven):
    engine = built("rollout", knobs=BASE)
    at_build, at_score = _by_path(engine.report), _by_path(engine.score(uneven).report)
    for path in BASE:
        assert at_build[path].status is at_score[path].status is Applied.APPLIED, path
    assert at_build["rollout.enforce_eager"].evidence[0].kind is EvidenceKind.INHERENT
    logp = at_score["logp.backend"]
    assert (logp.requested, logp.exercised) == ("native", Exercised.YES)
    assert logp.actual == logp.materialized == "torch.log_softmax_gather", "what was called has an id, not a policy"
    assert logp.evidence[0].kind is EvidenceKind.EXECUTION and logp.evidence[0].detail == "3"
    assert at_build["logp.backend"].evidence[0].kind is EvidenceKind.STATE


def test_an_operator_that_nothing_called_was_not_exercised(built, rollout_of):
    """Failing means that a rank which scored no token vouches for the log probability of those who did."""
    idle = rollout_of([4], [3], tensors={"active_mask": np.zeros(7, dtype=bool)})
    found = _by_path(built("training", knobs={"logp.backend": "native"}).score(idle).report)
    assert found["logp.backend"].exercised is Exercised.NO
    assert found["training.compute_dtype"].exercised is Exercised.YES


def test_other_values_of_inherent_knobs_are_no_pass(built):
    asked = {
        "rollout.tensor_parallel_size": 2,
        "rollout.enforce_eager": False,
        "logp.backend": "xcfg.reference_logp",
    }
    found = _by_path(built("rollout", knobs=asked).report)
    assert {found[path].status for path in asked} == {Applied.FALLBACK}
    assert found["rollout.tensor_parallel_size"].actual == 1
    assert found["logp.backend"].actual == "torch.log_softmax_gather"


@pytest.mark.parametrize("name", ["native", "torch.log_softmax_gather", "production", "reference"])
def test_a_name_of_an_operator_is_applied_only_where_the_binding_was_resolved_from_it(built, uneven, name):
    """The binding here comes from `native`; the engine has no list of its own of what other names could mean."""
    engine = built("training", knobs={"logp.backend": name})
    for report in (engine.report, engine.score(uneven).report):
        item = _by_path(report)["logp.backend"]
        meant = name in ("native", "torch.log_softmax_gather")
        assert item.status is (Applied.APPLIED if meant else Applied.FALLBACK)
        assert (item.requested, item.actual) == (name, "torch.log_softmax_gather")


def test_a_knob_that_the_runtime_lacks_is_unsupported(built):
    found = _by_path(built("training", knobs={"gemm.tf32": True}).report)
    assert found["gemm.tf32"].status is Applied.UNSUPPORTED


def test_attestation_is_of_what_entered(built, uneven, monkeypatch):
    """A token that changes between batching and the model shows in the attestation of its sequence."""
    from xcfg_torch.engine import Engine

    original = Engine.call

    def tampered(self, **arguments):
        arguments["input_ids"] = arguments["input_ids"].clone()
        arguments["input_ids"][0, 0] = (arguments["input_ids"][0, 0] + 1) % 512
        return original(self, **arguments)

    engine = built("training")
    monkeypatch.setattr(Engine, "call", tampered)
    got = engine.score(uneven, knobs={"batch.size": 5}).report.attestations
    differ = [item.index for item, expected in zip(got, expected_attestations(uneven), strict=True) if item != expected]
    assert differ == [0]


def test_positions_that_a_model_ignores_are_seen(built, uneven):
    engine = built("training")
    rotary = engine.adapter.engine.parts.rotary[0]
    original = rotary.forward
    rotary.forward = lambda x, position_ids: original(x, position_ids + 1)
    rotary.register_forward_pre_hook(lambda module, args, kwargs: None, with_kwargs=True)
    shifted = engine.score(uneven)
    rotary.forward = original
    assert shifted.report.attestations == expected_attestations(uneven), (
        "what enters is attested, not what is done with it"
    )
    handle = engine.adapter.engine.parts.decoder.register_forward_pre_hook(
        lambda module, args, kwargs: (args, {**kwargs, "position_ids": kwargs["position_ids"] + 1}),
        with_kwargs=True,
    )
    got = engine.score(uneven).report.attestations
    handle.remove()
    assert all(item != expected for item, expected in zip(got, expected_attestations(uneven), strict=True))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_weight_digests_are_the_checkpoints(built, tiny, dtype):
    report = built("training", dtype).report
    assert report.weights.tensors == expected_weights(tiny, dtype)
    assert report.weights.method == "digest" and report.weights.dtype == dtype
    assert report.weights.local_parameters == report.weights.total_parameters == 722304


def test_a_flipped_weight_bit_changes_one_digest(built, tiny, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "flipped"
    folder.mkdir()
    (folder / "config.json").write_bytes((tiny / "config.json").read_bytes())
    tensors = load_file(tiny / "model.safetensors")
    name = "model.layers.2.mlp.up_proj.weight"
    tensors[name].view(torch.int16)[3, 5] ^= 1
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    clean, flipped = (built("training", "bfloat16", checkpoint=place).report.weights for place in (tiny, folder))
    assert {key for key in clean.tensors if clean.tensors[key] != flipped.tensors[key]} == {name}
    assert clean.fold != flipped.fold


def test_tied_embeddings_are_an_alias(built, tiny, tmp_path):
    import json

    from safetensors.torch import load_file, save_file

    folder = tmp_path / "tied"
    folder.mkdir()
    config = json.loads((tiny / "config.json").read_text()) | {"tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = load_file(tiny / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    weights = built("training", checkpoint=folder).report.weights
    assert weights.aliases == {"lm_head.weight": "model.embed_tokens.weight"}
    assert set(weights.tensors) == set(tensors)


def test_a_checkpoint_with_a_missing_tensor_is_refused(built, tiny, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "partial"
    folder.mkdir()
    (folder / "config.json").write_bytes((tiny / "config.json").read_bytes())
    tensors = load_file(tiny / "model.safetensors")
    del tensors["model.layers.0.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(LaunchError, match="does not fill the model"):
        built("training", checkpoint=folder)


def test_a_folder_that_is_no_checkpoint_is_a_launch_error(built, tmp_path):
    with pytest.raises(LaunchError, match="cannot be loaded"):
        built("training", checkpoint=tmp_path)


def test_scoring_leaves_everything_as_it_was(built, uneven):
    engine = built("rollout", "bfloat16")
    model = engine.adapter.engine.model
    rng = torch.get_rng_state()
    for arm in ("rollout_prefill", "rollout_decode"):
        report = engine.score(uneven, arm).report
        assert report.state_unchanged and report.fold_before == report.fold_after == engine.report.weights.fold
        assert report.mechanism["state_changes"] == [] and report.mechanism["parameters_with_gradients"] == 0
    assert torch.equal(rng, torch.get_rng_state()) and not model.training
    repeat = [engine.score(uneven, "rollout_decode").values for _ in range(2)]
    assert np.array_equal(*repeat)


MUTATIONS = {
    "fold": lambda engine: engine.model.model.norm.weight.data.view(torch.int32)[0].__ixor__(1),
    "rng": lambda engine: torch.rand(1),
    "modes": lambda engine: engine.model.train(),
    "gradients": lambda engine: engine.model.model.norm.weight.requires_grad_(True),
}


@pytest.mark.parametrize("what", sorted(MUTATIONS))
def test_the_read_only_proof_catches_a_mutation(built, uneven, what):
    built_engine = built("training", "float32")
    engine = built_engine.adapter.engine
    original = engine.operator.function

    def mutating(logits, selected):
        MUTATIONS[what](engine)
        return original(logits, selected)

    engine.operator.function = mutating
    report = built_engine.score(uneven, knobs={"batch.size": 5}).report
    assert not report.state_unchanged and what in report.mechanism["state_changes"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (lambda logits, selected: logits, "not \\(41,\\) values"),
        (lambda logits, selected: selected, "not float32 or float64"),
    ],
)
def test_an_operator_that_returns_something_else_is_a_fault(built, uneven, values, message):
    engine = built("training")
    engine.adapter.engine.operator.function = values
    with pytest.raises(XcfgError, match=message):
        engine.score(uneven, knobs={"batch.size": 5})


def test_a_token_outside_the_vocabulary_is_named(built, rollout_of):
    rollout = rollout_of([3], [4], vocabulary=512)
    ids = rollout.token_ids.copy()
    ids[-1] = 700
    rollout = rollout_of([3], [4], tensors={"token_ids": ids, "selected_token_ids": ids})
    with pytest.raises(XcfgError, match="token id 700"):
        built("rollout").score(rollout, "rollout_decode")


def test_unknown_columns_and_arms_are_refused(built, uneven):
    engine = built("training")
    with pytest.raises(XcfgError, match="no column 'entropie'"):
        engine.score(uneven, columns=("entropie",))
    with pytest.raises(XcfgError, match="rollout_decode"):
        engine.score(uneven, "rollout_decode")


def test_options_are_strict(built):
    with pytest.raises(ConfigError, match=r"no option 'thread'\n.*'threads'"):
        built("training", options={"thread": 2})
    with pytest.raises(ConfigError, match=r"\$\.row_chunk"):
        built("training", options={"row_chunk": 0})
    with pytest.raises(ConfigError):
        built("training", options={"threads": True})


def test_a_missing_device_is_a_launch_error(tiny, spec_of, tmp_path):
    from xcfg_torch.adapter import TorchAdapter

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    context = RankContext(0, 1, "cuda:0", tmp_path, "")
    with pytest.raises(LaunchError, match="no CUDA device"):
        TorchAdapter().build(spec_of(tiny, "training", {}), context)


def test_a_device_beyond_the_last_is_a_launch_error(built, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(LaunchError, match=r"'cuda:2'.*sees 2 CUDA devices\n.*cuda:1"):
        built("training", device="cuda:2")


def test_a_closed_adapter_says_so(built, uneven):
    engine = built("training")
    engine.adapter.close()
    with pytest.raises(LaunchError, match="closed"):
        engine.score(uneven)


def test_kept_mass_and_processed_values_follow_the_sampling_record(built, rollout_of):
    """Hand-computed on one row of logits: softmax of [2, 1, 0] / 0.5 and its two largest entries."""
    from xcfg_torch.scoring import kept_mass
    from xcfg_torch.transforms import apply_chain

    logits = torch.tensor([[2.0, 1.0, 0.0]])
    weights = np.exp(np.array([4.0, 2.0, 0.0]))
    share = weights / weights.sum()
    assert kept_mass(logits, ("temperature:0.5", "top_k:2")).item() == pytest.approx(share[:2].sum(), rel=1e-6)
    assert kept_mass(logits, ()).item() == 1.0
    assert torch.isfinite(apply_chain(logits, ("top_p:0.9",))).tolist() == [[True, True, False]]
    assert torch.isfinite(apply_chain(logits, ("top_p:0.1",))).tolist() == [[True, False, False]]
    with pytest.raises(XcfgError, match="min_p"):
        apply_chain(logits, ("min_p:0.1",))


CAPPED = {
    "Gemma2": ({"final_logit_softcapping": 5.0}, ("soft_cap:5.0",), lambda logits: 5.0 * (logits / 5.0).tanh()),
    "Cohere": ({"logit_scale": 0.5}, ("logit_scale:0.5",), lambda logits: 0.5 * logits),
    "Granite": ({"logits_scaling": 4.0}, ("logit_scale:0.25",), lambda logits: logits / 4.0),
    "Qwen3": ({"final_logit_softcapping": 5.0, "logit_scale": 0.5, "logits_scaling": 4.0}, (), lambda logits: logits),
}


@pytest.mark.parametrize("family", CAPPED)
def test_what_the_model_does_to_its_own_logits_is_in_the_chain(built, uneven, tmp_path, family):
    """Oracle: the head alone, then the formula. Failing means that a cap which one side lacks passes for drift."""
    import transformers

    given, chain, formula = CAPPED[family]
    shape = {"vocab_size": 512, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "pad_token_id": 0}
    config = getattr(transformers, f"{family}Config")(**shape, **heads, **given)
    torch.manual_seed(3)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    model.save_pretrained(tmp_path / family)
    engine = built("training", checkpoint=tmp_path / family, attention="eager")
    scored = engine.score(uneven)
    assert scored.report.transforms == chain
    values = scored.columns["selected_logprob"].double().numpy()
    for index in range(uneven.sequence_count):
        span = uneven.span(index)
        ids = torch.from_numpy(uneven.token_ids[span].astype(np.int64))
        with torch.no_grad():
            hidden = model.model(input_ids=ids[None], use_cache=False).last_hidden_state[0]
            exact = formula(model.lm_head(hidden).double()).log_softmax(-1)[:-1].gather(-1, ids[1:, None])[:, 0]
        active = uneven.active[span][1:]
        assert np.abs(values[span][1:][active] - exact.numpy()[active]).max() < 1e-5


def test_provenance_names_versions_and_no_path(built, tiny: Path):
    facts = built("training").report.provenance
    assert facts["versions"]["torch"] == torch.__version__
    assert facts["shape"]["num_key_value_heads"] == 2
    assert str(tiny) not in str(facts)


@pytest.mark.parametrize("when", ["before the first score", "between two scores"])
def test_a_weight_that_changes_while_nothing_is_scored_shows_in_the_next_score(built, uneven, when):
    engine = built("training", "float32")
    if when == "between two scores":
        assert engine.score(uneven).report.state_unchanged
    MUTATIONS["fold"](engine.adapter.engine)
    report = engine.score(uneven).report
    assert report.fold_before == engine.report.weights.fold != report.fold_after
    assert not report.state_unchanged and report.mechanism["state_changes"] == ["fold"]
    again = engine.score(uneven).report
    assert again.fold_before == again.fold_after != engine.report.weights.fold, "and in every one after it"
