"""What is concluded from what was seen, without an engine: hand-made forwards, communicators and environments."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from xcfg.identity.attest import expected_attestations
from xcfg.identity.rollout import make_rollout
from xcfg.plugin.operators import instantiate
from xcfg.plugin.stated import Statements
from xcfg.schema.identity import CheckpointRef, SamplingRecord
from xcfg.schema.names import Applied, Phase
from xcfg.schema.operators import OperatorBinding
from xcfg.schema.runtime import PlacementRequest
from xcfg_vllm.consumed import Consumed
from xcfg_vllm.facts import all_reduce_kernels, told_variables
from xcfg_vllm.inject import registry
from xcfg_vllm.inject.attention import PlainPages
from xcfg_vllm.inject.logprob import _token_logprobs as token_logprobs
from xcfg_vllm.knobs import Window, applications
from xcfg_vllm.placement import placement
from xcfg_vllm.requests import Answer, own_transforms
from xcfg_vllm.score import Taken

PROMPT, LENGTH = 4, 10


@pytest.fixture
def pair():
    """Two sequences of 10 tokens, 4 of them prompt."""
    ids = np.arange(2 * LENGTH) + 3
    active = np.tile(np.arange(LENGTH) >= PROMPT, 2)
    columns = {
        "token_ids": ids,
        "offsets": np.array([0, LENGTH, 2 * LENGTH]),
        "active_mask": active,
        "attention_mask": np.ones(2 * LENGTH, dtype=bool),
        "position_ids": np.tile(np.arange(LENGTH), 2),
        "selected_token_ids": ids,
        "segment": active.astype(np.int8),
        "weight_version": np.zeros(2 * LENGTH, dtype=np.int32),
    }
    return make_rollout(columns, checkpoint=CheckpointRef(uri="builtin:test"), sampling=SamplingRecord())


def forward(rollout, *pieces):
    """(names, counts, ids, positions) of one step; a piece is (sequence, first position, tokens)."""
    names, counts, ids, positions = [], [], [], []
    for sequence, start, count in pieces:
        begin = rollout.span(sequence).start + start
        names.append(str(sequence))
        counts.append(count)
        ids += rollout.token_ids[begin : begin + count].tolist()
        positions += list(range(start, start + count))
    return names, counts, ids, positions


def answers(rollout):
    found = []
    for sequence in range(2):
        tokens = rollout.token_ids[rollout.span(sequence)][PROMPT:].astype(np.int64)
        found.append(Answer(sequence, str(sequence), PROMPT, tokens, np.zeros(len(tokens), np.float32), 0))
    return found


def test_a_preempted_request_keeps_what_its_first_pass_drew(pair):
    """Failing means that tokens which were decoded in a batch of two are labelled by a later recomputation."""
    steps = [forward(pair, (0, 0, 4), (1, 0, 4))]
    steps += [forward(pair, (0, at, 1), (1, at, 1)) for at in (4, 5)]
    steps += [forward(pair, (0, at, 1)) for at in (6, 7, 8)]
    steps += [forward(pair, (1, 0, 5)), forward(pair, (1, 5, 2))]  # preempted after three tokens, then passed again
    steps += [forward(pair, (1, at, 1)) for at in (7, 8)]
    seen = Consumed(2 * LENGTH)
    seen.take(pair, answers(pair), steps, decode=True)
    second = slice(LENGTH, 2 * LENGTH)
    assert seen.step_batch[second][PROMPT:].tolist() == [2, 2, 2, 1, 1, 1]
    first, decoded, recomputed = (int(item) for item in (Phase.FIRST_TOKEN, Phase.DECODE, Phase.RECOMPUTED))
    assert seen.phase[second][PROMPT:].tolist() == [first, decoded, decoded, recomputed, decoded, decoded]
    assert seen.chunked == 0, "a recomputation is no chunked prefill"
    assert seen.attestations(pair, answers(pair), consumed_last=False) == expected_attestations(
        pair, consumed_last=False
    )


def test_pieces_of_one_token_are_pieces(pair):
    """Failing means that a prefill which was cut into single tokens counts as whole."""
    steps = [forward(pair, (sequence, at, 1)) for sequence in range(2) for at in range(LENGTH - 1)]
    seen = Consumed(2 * LENGTH)
    seen.take(pair, answers(pair), steps, decode=True)
    assert seen.chunked == 2 * PROMPT


def group(**communicators):
    return SimpleNamespace(world_size=2, device_communicator=SimpleNamespace(**communicators))


def test_every_kernel_that_may_sum_is_named():
    """Failing means that symmetric memory sums while the library is said to."""
    live, off = SimpleNamespace(disabled=False), SimpleNamespace(disabled=True)
    assert all_reduce_kernels(group(ca_comm=None, symm_mem_comm=live, pynccl_comm=live)) == ["symm_mem_comm"]
    assert all_reduce_kernels(group(ca_comm=off, symm_mem_comm=None, pynccl_comm=live)) == []
    assert all_reduce_kernels(SimpleNamespace(world_size=1)) is None


@pytest.mark.parametrize(("kernels", "status"), [([], "applied"), (["ca_comm"], "unobservable")])
def test_the_library_is_applied_only_where_it_stands_alone(kernels, status):
    facts = {"all_reduce_kernels": kernels, "communicator": "CudaCommunicator"}
    window = Window(0, facts, {}, {}, {})
    assert applications(window, {"rollout.all_reduce_backend": "library"})[0].status is Applied(status)


@pytest.mark.parametrize(
    ("wrapped", "backend", "requested", "status"),
    [
        ([True], "inductor", True, "applied"),
        ([False], "inductor", False, "applied"),
        ([False], "inductor", True, "fallback"),
        ([True], "inductor", False, "fallback"),
        ([False], "eager", False, "unobservable"),
        ([True, False], "inductor", False, "unobservable"),
        ([], "inductor", False, "unobservable"),
    ],
)
def test_a_traced_graph_that_runs_eagerly_is_not_compiled(wrapped, backend, requested, status):
    """Failing means that VLLM_CPU_CI_ENV, which replaces the compiler, passes for a compiled engine."""
    facts = {
        "not_compiled": wrapped,
        "compilation_backend": backend,
        "compilation_mode": "NONE",
        "cudagraph_mode": "NONE",
    }
    (found,) = applications(Window(0, facts, {}, {}, {}), {"rollout.enforce_eager": requested})
    assert found.status is Applied(status), found


@pytest.mark.parametrize(
    ("running", "operators", "status", "says"),
    [
        (["vllm.v1.attention.backends.cpu_attn.CPUAttentionBackendImpl"], {}, "applied", ""),
        (["xcfg_vllm.inject.attention_cpu.CpuImplementation"], {"attention": "mine"}, "fallback", "operator mine"),
        (["xcfg_vllm.inject.attention_cpu.CpuImplementation"], {}, "unobservable", ""),
        (["vllm.a.A", "vllm.b.B"], {}, "unobservable", "do not agree"),
    ],
)
def test_an_injected_attention_is_not_the_model_s_own(running, operators, status, says):
    """Failing means that model_default counts as applied while another operator computes attention."""
    facts = {"attention_impl": dict.fromkeys(running, 2), "operators": operators}
    (found,) = applications(Window(0, facts, {}, {}, {}), {"rollout.attention_backend": "model_default"})
    assert found.status is Applied(status) and says in found.reason, found


@pytest.mark.parametrize(
    ("methods", "told"),
    [
        ({"a.forward_cpu": 3}, ["all"]),
        ({"a.forward_native": 3}, ["none"]),
        ({"a.forward_native": 1, "b.f": 2}, []),
        ({}, []),
    ],
)
def test_custom_ops_are_told_where_nobody_asks(methods, told):
    """Failing means that a compiler which turns custom ops off changes two settings and one is seen."""
    window = Window(0, {"custom_op_methods": methods, "custom_ops": []}, {}, {}, {})
    found = applications(window, {})
    assert [(item.path, item.actual, item.status) for item in found] == [
        ("rollout.custom_ops", value, Applied.APPLIED) for value in told
    ]


@pytest.mark.parametrize(
    ("cap", "scale", "chain"),
    [(None, 1.0, ()), (None, None, ()), (30.0, 1.0, ("soft_cap:30.0",)), (5, 0.5, ("soft_cap:5.0", "logit_scale:0.5"))],
)
def test_what_the_head_does_itself_is_a_transform(cap, scale, chain):
    assert own_transforms({"soft_cap": cap, "logit_scale": scale}) == chain


@pytest.mark.parametrize(
    ("devices", "outside", "visible"),
    [(("cuda:1",), "", "1"), (("cuda:0", "cuda:1"), "4,7", "4,7"), (("cuda:1",), "4,7", "7"), (("cpu",), "0", "")],
)
def test_an_engine_sees_the_devices_that_it_was_given(monkeypatch, devices, outside, visible):
    """Failing means that vLLM runs on the first GPU of the machine, whatever was asked for."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", outside)
    knobs = {"rollout.tensor_parallel_size": len(devices)}
    found = placement(PlacementRequest(side="rollout", knobs=knobs, options={}, devices=devices))
    assert found.env["CUDA_VISIBLE_DEVICES"] == visible


@pytest.mark.parametrize(
    ("asked", "length", "status"), [(False, 90, "applied"), (True, 90, "unobservable"), (True, 200, "fallback")]
)
def test_a_cache_that_no_prompt_fills_is_off_or_out_of_sight(asked, length, status):
    """Failing means that short prompts end a case which asks for no cache, or pass one which asks for it."""
    facts = {"probe_cached": 0, "max_model_len": length, "block_size": 128}
    found = applications(Window(0, facts, {}, {}, {}), {"rollout.enable_prefix_caching": asked})[0]
    assert found.status is Applied(status), found


class Pages(PlainPages):
    num_kv_heads, head_size = 3, 8

    def __init__(self): ...


@pytest.mark.parametrize(
    "cache",
    [
        torch.zeros(5, 2, 16, 3, 8),
        torch.zeros(5, 3, 16, 16),
        torch.zeros(5, 16, 3, 16).transpose(1, 2),
        torch.zeros(1, 3, 16, 16),
    ],
    ids=["paired", "joined", "joined, tokens first in memory", "one block"],
)
def test_pages_of_an_injected_attention_fill_the_memory_of_every_block_and_no_other(cache):
    """A key and a value written to one slot come back from it, and lie within the block that vLLM counts as its own."""
    pages = Pages().plain(cache)
    assert pages.shape == (len(cache), 16, 2, 3, 8) and pages.data_ptr() == cache.data_ptr()
    key, value = torch.full((1, 3, 8), 2.0), torch.full((1, 3, 8), 3.0)
    last = len(cache) - 1
    Pages().write(pages, key, value, torch.tensor([last * 16 + 7]))
    assert pages[last, 7, 0].eq(2).all() and pages[last, 7, 1].eq(3).all()
    assert cache[last].ne(0).sum() == 48 and cache[:last].eq(0).all()


@pytest.mark.parametrize(
    ("cache", "said"),
    [
        (torch.zeros(5, 4, 16, 16), "not laid out"),
        (torch.zeros(5, 3, 16, 8), "not laid out"),
        (torch.zeros(2, 5, 16, 3, 8), "not laid out"),
        (torch.zeros(2, 5, 16, 3, 8).transpose(0, 1), "one behind the other"),
    ],
)
def test_a_cache_that_is_laid_out_otherwise_is_refused(cache, said):
    with pytest.raises(ValueError, match=said):
        Pages().plain(cache)


def test_a_secret_of_the_environment_is_not_kept_with_the_evidence():
    """Failing means that a key which vLLM reads from its environment lies in every attempt that is handed on."""
    held = {"VLLM_API_KEY": "k", "VLLM_CACHE_ROOT": "/home/a", "VLLM_HOST_IP": "10.0.0.1", "HF_TOKEN": "t"}
    acting = {"OMP_NUM_THREADS": "2", "VLLM_BATCH_INVARIANT": "1"}
    assert told_variables({**held, **acting}) == acting


def entered(block_size, moved=0):
    """What a worker brings back of one group of requests whose operator did `block_size`."""
    said = Statements({"block_size": [block_size]}, [{"policy": "mask", "real": 8, "padded": 8}], [()], moved)
    item = {"backend": "mine", "options": {"block_size": 16}, "calls": 2, "stated": said.plain()}
    empty = {"forwards": [], "linear_inputs": {}, "head_inputs": {}, "head_rows": {}, "temperatures": []}
    return {**empty, "operators": {"selected_logprob": item}}


@pytest.mark.parametrize(
    ("did", "asked", "status"),
    [([16, 16], 16, "applied"), ([0, 0], 16, "fallback"), ([16, 0], 16, "unobservable"), ([], 16, "applied")],
)
def test_an_option_of_the_operator_is_what_all_groups_of_requests_did(pair, did, asked, status):
    """Failing means that one group of requests speaks for another, or the request for the worker."""
    taken = Taken(Consumed(2 * LENGTH))
    for value in did:
        taken.add(pair, [], entered(value), decode=True)
    facts = {"operators": {"selected_logprob": "mine"}, "operator_options": {"selected_logprob": {"block_size": 16}}}
    counters = {"operator.selected_logprob": taken.calls["selected_logprob"]} if did else {}
    window = Window(0, facts, counters, {}, {}, statements=taken.statements)
    (found,) = applications(window, {"logprob.block_size": asked})
    assert found.status is Applied(status), found
    assert found.exercised.value == ("yes" if did else "unknown")


def test_an_option_of_an_operator_that_is_not_in_the_worker_is_unobservable():
    """Failing means that VLLM_PLUGINS, which silently drops xcfg's plugin, leaves an option applied."""
    (found,) = applications(Window(0, {"operators": {}}, {}, {}, {}), {"logprob.block_size": 0})
    assert found.status is Applied.UNOBSERVABLE and "put into this worker" in found.reason


def test_a_sequence_whose_scored_ids_were_moved_is_attested_to_no_id(pair):
    """Failing means that a shifted target passes as the frozen token, since the engine's answers name that one."""
    seen = Consumed(2 * LENGTH)
    seen.ids[:] = pair.token_ids
    seen.positions[:] = pair.tensors["position_ids"]
    seen.entered[:] = 1
    taken = Taken(seen)
    taken.add(pair, answers(pair)[:1], entered(16), decode=True)
    taken.add(pair, answers(pair)[1:], entered(16, moved=3), decode=True)
    found = seen.attestations(pair, answers(pair), consumed_last=False)
    wanted = expected_attestations(pair, consumed_last=False)
    assert found[0] == wanted[0]
    assert found[1].selected_ids != wanted[1].selected_ids
    assert found[1].token_ids == wanted[1].token_ids


@pytest.mark.parametrize("shift", ["pre_shifted", "internal"])
def test_the_v2_runner_s_function_is_heard_like_the_sampler(monkeypatch, shift):
    """Failing means that what an operator states is lost under one of vLLM's runners."""
    binding = OperatorBinding(
        operation="selected_logprob",
        side="rollout",
        requested="xcfg.ablation_logp",
        backend_id="xcfg.ablation_logp",
        factory="xcfg_ops_logp.ablation.operator:Ablation",
        options={"shift_convention": shift, "transform_chain": "temperature:0.5"},
    )
    operator = instantiate(binding)
    monkeypatch.setattr(registry, "ACTIVE", {"selected_logprob": operator})
    logits = torch.arange(12.0).reshape(3, 4)
    found = token_logprobs(operator)(logits, torch.tensor([[0], [1], [2]], dtype=torch.int32))
    ids = torch.tensor([[0], [1], [2]] if shift == "pre_shifted" else [[1], [2], [0]])
    assert torch.allclose(found, torch.log_softmax(2 * logits, -1).gather(-1, ids), atol=1e-6)
    heard = Statements.of(registry.counts()["selected_logprob"]["stated"])
    assert (heard.moved, heard.transforms) == (0 if shift == "pre_shifted" else 3, ("temperature:0.5",))
    registry.reset()
    assert registry.counts()["selected_logprob"]["calls"] == 0
    assert Statements.of(registry.counts()["selected_logprob"]["stated"]).options == {}
