"""What is asked of a freeze before an engine is started, and what becomes of what the engine returned."""

from __future__ import annotations

import errno
import math
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from xcfg.errors import (
    ConfigError,
    ExecutionError,
    IdentityError,
    LaunchError,
    UnknownNameError,
    UsageError,
    WorkerError,
)
from xcfg.flow import freeze as journey
from xcfg.flow.checkpoints import Checkpoint
from xcfg.flow.freeze import FreezeOptions, _rollout, freeze, stop_ids
from xcfg.flow.prompts import check_length, check_vocabulary, read_prompts
from xcfg.identity.rollout import read_rollout
from xcfg.plugin.readback import state
from xcfg.schema.names import Applied, Lifecycle
from xcfg.schema.runtime import KnobApplication, RuntimeDescriptor
from xcfg.schema.worker import BuildReport


@pytest.fixture
def prompts(tmp_path):
    def write(text):
        file = tmp_path / "prompts.jsonl"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return file

    return write


@pytest.fixture
def options(prompts, tmp_path):
    file = prompts('{"text": "a"}\n')
    return lambda **more: FreezeOptions(
        **({"checkpoint": "builtin:x", "prompts": file, "output": tmp_path / "o"} | more)
    )


def test_prompts_are_read_in_order_and_blank_lines_skipped(prompts):
    text = '{"text": "a"}\n\n  \n{"token_ids": [0, 5], "id": "x"}\r\n{"text": "c"}'
    assert read_prompts(prompts(text)) == [{"text": "a"}, {"token_ids": [0, 5], "id": "x"}, {"text": "c"}]


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b\x0c\x1c"])
def test_a_line_ends_at_a_newline_and_nowhere_else(separator, prompts):
    """JSON allows these characters raw in a text (the control ones escaped); each is a line end to str.splitlines."""
    text = separator if separator > "\x7f" else "".join(f"\\u{ord(item):04x}" for item in separator)
    assert read_prompts(prompts(f'{{"text": "a{text}b"}}\n')) == [{"text": f"a{separator}b"}]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "not JSON"),
        ("NaN", "not JSON"),
        ('{"text": "a", "text": "b"}', "twice"),
        ("[]", "either text or token_ids"),
        ('"text"', "either text or token_ids"),
        ("{}", "either text or token_ids"),
        ('{"id": "x"}', "either text or token_ids"),
        ('{"text": "a", "token_ids": [1]}', "either text or token_ids"),
        ('{"text": "a", "temperature": 1}', "either text or token_ids"),
        ('{"text": ""}', "$.text: "),
        ('{"text": null}', "$.text: "),
        ('{"text": ["a"]}', "$.text: "),
        ('{"text": "\\ud800"}', "Unicode"),
        ('{"token_ids": []}', "$.token_ids: "),
        ('{"token_ids": [-1]}', "$.token_ids: "),
        ('{"token_ids": [true]}', "$.token_ids: "),
        ('{"token_ids": [1.0]}', "$.token_ids: "),
        ('{"token_ids": "1"}', "$.token_ids: "),
        ('{"token_ids": null}', "$.token_ids: "),
        ('{"text": "a", "id": 1}', "$.id: "),
    ],
)
def test_a_faulty_prompt_is_refused_with_file_and_line(line, says, prompts):
    file = prompts(f'{{"text": "good"}}\n\n{line}\n{{"text": "good"}}\n')
    with pytest.raises(ConfigError) as error:
        read_prompts(file)
    assert error.value.message.startswith(f"{file}:3")
    assert says in error.value.message


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_a_file_without_a_prompt_is_refused(text, prompts):
    with pytest.raises(ConfigError, match="holds no prompt"):
        read_prompts(prompts(text))


def test_a_file_that_cannot_be_read_is_refused(prompts, tmp_path):
    for file in (tmp_path / "nowhere", tmp_path, prompts(b'{"text": "\xff"}')):
        with pytest.raises(ConfigError, match="cannot be read"):
            read_prompts(file)


def test_a_pipe_as_prompts_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="is a pipe or a device"):
        read_prompts(tmp_path / "pipe")


@pytest.mark.parametrize(
    ("prompt", "new", "hint"),
    [
        ({"token_ids": [1] * 500}, 13, "--max-new-tokens 12 or fewer"),
        ({"token_ids": [1] * 512}, 1, "shorter prompts"),
        ({"text": "a"}, 512, "--max-new-tokens 511 or fewer"),
    ],
)
def test_more_tokens_than_the_model_has_positions_are_refused(tmp_path, prompt, new, hint):
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 512}')
    checkpoint = Checkpoint(uri="mine", folder=tmp_path, digest="d")
    with pytest.raises(UsageError, match="do not fit into the 512 positions of 'mine'") as error:
        check_length([prompt], checkpoint, new)
    assert hint in error.value.hint
    check_length([{"token_ids": [1] * 500}], checkpoint, 12)
    (tmp_path / "config.json").write_text("{}")
    check_length([prompt], checkpoint, new)


def test_two_prompts_of_one_id_are_refused(prompts):
    with pytest.raises(ConfigError, match="'b' stands twice"):
        read_prompts(prompts('{"text": "a", "id": "b"}\n{"text": "c", "id": "d"}\n{"text": "e", "id": "b"}\n'))
    with pytest.raises(ConfigError, match="'prompt-1' stands twice"):
        read_prompts(prompts('{"text": "a", "id": "prompt-1"}\n{"text": "c"}\n'))


def test_text_without_a_tokenizer_is_refused_before_an_engine_is_built(tmp_path):
    checkpoint = Checkpoint("models/a", tmp_path, "")
    with pytest.raises(ConfigError, match=r"'prompt-1' is text, and 'models/a' has no tokenizer"):
        check_vocabulary([{"token_ids": [1]}, {"text": "a"}], checkpoint, Path("p.jsonl"))
    (tmp_path / "tokenizer.json").write_text("{}")
    check_vocabulary([{"token_ids": [1]}, {"text": "a"}], checkpoint, Path("p.jsonl"))


def test_a_stop_id_beyond_the_vocabulary_is_refused(options, tmp_path):
    (tmp_path / "config.json").write_text('{"vocab_size": 8, "eos_token_id": 2}')
    checkpoint = Checkpoint("models/a", tmp_path, "")
    assert stop_ids(options(stop_ids=(7,)), checkpoint) == (2, 7)
    with pytest.raises(UsageError, match="8 is no token id of 'models/a'"):
        stop_ids(options(stop_ids=(7, 8)), checkpoint)


@pytest.mark.parametrize(
    ("config", "size"),
    [('{"vocab_size": 8}', 8), ('{"vocab_size": 2, "text_config": {"vocab_size": 8}}', 8), ("{}", None), (None, None)],
)
def test_an_id_beyond_the_vocabulary_is_refused_before_an_engine_is_built(config, size, tmp_path):
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    checkpoint = Checkpoint("models/a", tmp_path, "")
    check_vocabulary([{"token_ids": [0, 7]}], checkpoint, Path("p.jsonl"))
    if size is None:
        check_vocabulary([{"token_ids": [10**9]}], checkpoint, Path("p.jsonl"))
        return
    with pytest.raises(ConfigError, match=r"p\.jsonl.*'b' has the token id 8, .*'models/a' has a vocabulary of 8"):
        check_vocabulary([{"token_ids": [7]}, {"token_ids": [8, 0], "id": "b"}], checkpoint, Path("p.jsonl"))


@pytest.mark.parametrize(
    ("asked", "config", "generation", "ids"),
    [
        ({}, '{"eos_token_id": 2}', None, (2,)),
        ({}, '{"eos_token_id": 2}', '{"eos_token_id": [9, 4, 9]}', (4, 9)),
        ({}, '{"eos_token_id": 2}', '{"eos_token_id": null}', (2,)),
        ({}, '{"text_config": {"eos_token_id": 2}}', "{}", (2,)),
        ({}, '{"eos_token_id": null}', None, ()),
        ({}, None, None, ()),
        ({"stop_ids": (7, 2, 7)}, '{"eos_token_id": 4}', None, (2, 4, 7)),
        ({"stop_ids": (7,), "ignore_eos": True}, '{"eos_token_id": 4}', None, (7,)),
        ({"ignore_eos": True}, '{"eos_token_id": 4}', None, ()),
    ],
)
def test_sequences_end_at_the_checkpoints_end_of_sequence_unless_it_is_ignored(
    asked, config, generation, ids, options, tmp_path
):
    for name, text in (("config.json", config), ("generation_config.json", generation)):
        if text is not None:
            (tmp_path / name).write_text(text)
    assert stop_ids(options(**asked), Checkpoint("models/a", tmp_path, "")) == ids


@pytest.mark.parametrize("value", ["true", '"2"', "-1", "[2, null]", "2.0", "{}"])
def test_an_end_of_sequence_that_is_no_id_is_refused(value, options, tmp_path):
    (tmp_path / "config.json").write_text(f'{{"eos_token_id": {value}}}')
    with pytest.raises(IdentityError, match=r"eos_token_id in config\.json"):
        stop_ids(options(), Checkpoint("models/a", tmp_path, ""))


def test_a_checkpoint_inside_a_runtime_names_no_end_of_sequence(options):
    assert stop_ids(options(stop_ids=(3,)), CHECKPOINT) == (3,)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_p": math.nan}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"logprobs_mode": "raw"}, "logprobs_mode"),
        ({"stop_ids": (1, -1)}, "stop_ids"),
        ({"limit": 0}, "limit"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**53}, "seed"),
    ],
)
def test_settings_that_cannot_be_frozen_are_refused_before_anything_is_read(settings, says, options, manager):
    with pytest.raises(UsageError, match=says):
        freeze(manager, options(**settings, prompts=Path("/nowhere")))


def test_several_faults_are_named_together(options, manager):
    with pytest.raises(UsageError, match=r"max_new_tokens.*top_k.*limit"):
        freeze(manager, options(max_new_tokens=0, top_k=-1, limit=-1))


def test_a_frozen_rollout_is_never_overwritten(options, manager, tmp_path):
    (tmp_path / "o").mkdir()
    with pytest.raises(UsageError, match="exists"):
        freeze(manager, options())
    assert list((tmp_path / "o").iterdir()) == []
    (tmp_path / "dangling").symlink_to("nowhere")
    with pytest.raises(UsageError, match="exists"):
        freeze(manager, options(output=tmp_path / "dangling"))


def test_a_runtime_that_cannot_sample_or_is_not_there_is_refused(options, manager, tmp_path):
    with pytest.raises(UsageError, match="does not sample"):
        freeze(manager, options(runtime="external"))
    with pytest.raises(UnknownNameError):
        freeze(manager, options(runtime="extrenal"))
    assert not (tmp_path / "o").exists()


DESCRIPTOR = RuntimeDescriptor(name="mini", summary="", adapter="", placement="", arms={})
CHECKPOINT = Checkpoint("builtin:x", None, "d" * 64)
SAMPLED = [
    {"prompt_ids": [5, 6], "token_ids": [7, 8, 9], "logprobs": [-0.5, -1.0, -1.5], "transforms": []},
    {"prompt_ids": [1], "token_ids": [2], "logprobs": [-2.0], "transforms": [], "finish_reason": "stop"},
    {"prompt_ids": [3, 4], "token_ids": [], "logprobs": [], "transforms": []},
]
PROMPTS = [{"text": "a", "id": "first"}, {"text": "b"}, {"token_ids": [3, 4]}]


def test_the_frozen_rollout_by_hand(options):
    rollout = _rollout(SAMPLED, PROMPTS, CHECKPOINT, DESCRIPTOR, options(temperature=0.7, seed=3))
    assert rollout.token_ids.tolist() == [5, 6, 7, 8, 9, 1, 2, 3, 4]
    assert rollout.offsets.tolist() == [0, 5, 7, 9]
    assert rollout.active.tolist() == [False, False, True, True, True, False, True, False, False]
    assert rollout.tensors["position_ids"].tolist() == [0, 1, 2, 3, 4, 0, 1, 0, 1]
    assert rollout.tensors["segment"].tolist() == [0, 0, 1, 1, 1, 0, 1, 0, 0]
    recorded = rollout.tensors["recorded_logprob"]
    assert recorded[rollout.active].tolist() == [-0.5, -1.0, -1.5, -2.0]
    assert np.isnan(recorded[~rollout.active]).all()
    manifest = rollout.manifest
    assert [item.request_id for item in manifest.sequences] == ["first", "prompt-1", "prompt-2"]
    assert (manifest.sampling.temperature, manifest.sampling.seed) == (0.7, 3)
    assert (manifest.sampling.logprobs_mode, manifest.sampling.transform_chain) == ("raw_logprobs", ())
    assert manifest.checkpoint.digest == "d" * 64
    assert manifest.generator["finish_reasons"] == ["", "stop", ""]
    assert manifest.sampling.extra == {}


def test_what_is_recorded_of_sampling_is_what_the_engine_says_it_applied(options):
    """The chain is copied from the answers: made a second time from the request, it could be another one."""
    chain = ["temperature:0.7", "top_k:5"]
    sampled = [{**item, "transforms": chain} for item in SAMPLED]
    asked = options(temperature=0.7, top_k=5, logprobs_mode="processed_logprobs", stop_ids=(2,))
    manifest = _rollout(sampled, PROMPTS, CHECKPOINT, DESCRIPTOR, asked).manifest
    assert manifest.sampling.transform_chain == tuple(chain)
    assert manifest.sampling.extra == {"stop_ids": [2]}
    with pytest.raises(WorkerError, match="raw log probabilities were asked for"):
        _rollout(sampled, PROMPTS, CHECKPOINT, DESCRIPTOR, options(temperature=0.7, top_k=5))


@pytest.mark.parametrize("index", [0, 1])
def test_log_probabilities_of_another_length_are_refused_although_the_total_fits(index, options):
    """One sample short and another long by the same count would shift every value between them by a token."""
    counts = [(2, 2), (4, 0)][index]
    sampled = [{**item, "logprobs": [-1.0] * count} for item, count in zip(SAMPLED, (*counts, 0), strict=True)]
    with pytest.raises(WorkerError, match=f"prompt 0 .*: it has 3 tokens and {counts[0]}"):
        _rollout(sampled, PROMPTS, CHECKPOINT, DESCRIPTOR, options())


def test_a_sample_without_a_prompt_is_refused(options):
    sampled = [{"prompt_ids": [], "token_ids": [7], "logprobs": [-0.5], "transforms": []}]
    with pytest.raises(WorkerError, match="prompt_ids is empty"):
        _rollout(sampled, PROMPTS[:1], CHECKPOINT, DESCRIPTOR, options())


@pytest.fixture
def sampler(monkeypatch):
    """A manager whose runtime samples, and an engine that returns SAMPLED; `started` counts its starts."""
    started = []

    def sample(*_):
        started.append(1)
        return SAMPLED

    monkeypatch.setattr(journey, "_sample", sample)
    monkeypatch.setattr(journey, "find_checkpoint", lambda uri, manager: CHECKPOINT)
    monkeypatch.setattr(journey, "read_prompts", lambda file: PROMPTS)
    record = RuntimeDescriptor(name="mini", summary="", adapter="", placement="", arms={}, generates=True)
    manager = SimpleNamespace(runtime=lambda name: SimpleNamespace(record=record))
    return SimpleNamespace(manager=manager, started=started)


def test_a_leftover_of_a_killed_freeze_does_not_stand_in_the_way(sampler, options, tmp_path):
    """Process ids come again; a folder named after one would end a freeze that has sampled for an hour."""
    leftover = tmp_path / f".tmp-o-{os.getpid()}"
    leftover.mkdir()
    rollout = freeze(sampler.manager, options())
    assert read_rollout(tmp_path / "o").sha256 == rollout.sha256
    assert {path.name for path in tmp_path.iterdir()} == {"o", leftover.name, "prompts.jsonl"}


@pytest.mark.parametrize("where", ["prompts.jsonl/o", "/proc/xcfg/o", "shut/o"])
def test_an_output_that_cannot_be_made_is_refused_before_an_engine_is_started(where, sampler, options, tmp_path):
    (tmp_path / "shut").mkdir(mode=0o500)
    if where == "shut/o" and os.access(tmp_path / "shut", os.W_OK):
        pytest.skip("this user may write everywhere")
    with pytest.raises(ExecutionError, match="could not be written") as caught:
        freeze(sampler.manager, options(output=tmp_path / where))
    assert caught.value.exit_code == 4 and "--output" in caught.value.hint
    assert sampler.started == []


def test_a_disk_that_is_full_at_the_end_is_an_error_and_leaves_nothing(sampler, options, tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("xcfg.identity.rollout.os.fsync", full)
    with pytest.raises(ExecutionError, match="No space left"):
        freeze(sampler.manager, options())
    assert {path.name for path in tmp_path.iterdir()} == {"prompts.jsonl"}


def test_a_name_that_is_taken_while_sampling_does_not_cost_the_sample(sampler, options, tmp_path, monkeypatch):
    def sample(*_):
        (tmp_path / "o").mkdir()
        (tmp_path / "o" / "theirs").touch()
        return SAMPLED

    monkeypatch.setattr(journey, "_sample", sample)
    with pytest.raises(ExecutionError, match="could not be written") as caught:
        freeze(sampler.manager, options())
    (kept,) = (path for path in tmp_path.iterdir() if path.name.startswith("o-"))
    assert str(kept) in caught.value.hint
    assert read_rollout(kept).manifest.active_count == 4
    assert [path.name for path in (tmp_path / "o").iterdir()] == ["theirs"]


def test_an_engine_that_fails_leaves_nothing_beside_the_output(sampler, options, tmp_path, monkeypatch):
    def fail(*_):
        raise WorkerError("gone")

    monkeypatch.setattr(journey, "_sample", fail)
    with pytest.raises(WorkerError):
        freeze(sampler.manager, options(output=tmp_path / "new" / "o"))
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.parametrize("actual", ["float32", "bfloat16"])
def test_an_engine_that_does_not_run_what_was_asked_for_samples_nothing(actual, options, monkeypatch):
    """Failing means that a manifest names settings of its generator which never ran."""
    found = KnobApplication(
        path="rollout.dtype",
        side="rollout",
        rank=0,
        requested="bfloat16",
        materialized="bfloat16",
        actual=actual,
        status=Applied.APPLIED,
        lifecycle=Lifecycle.ENGINE_CONSTRUCTION,
        evidence=(state("parameters of the live model", actual),),
    )
    closed = []

    class Pool:
        def __init__(self, *_, **__):
            pass

        def generate(self, launch, request, *, check):
            check((BuildReport(rank=0, world_size=1, applications=(found,)),))
            return SimpleNamespace(generated={0: SAMPLED})

        def close(self):
            closed.append(1)

    spec = SimpleNamespace(knobs={"rollout.dtype": "bfloat16", "batch.size": 8}, operators={}, side="rollout")
    monkeypatch.setattr(journey, "WorkerPool", Pool)
    monkeypatch.setattr(journey, "_launch", lambda *_: (SimpleNamespace(spec=spec), None))
    asked = (SimpleNamespace(knobs=dict), DESCRIPTOR, CHECKPOINT, PROMPTS, options())
    if actual == "bfloat16":
        assert journey._sample(*asked) == SAMPLED
    else:
        with pytest.raises(LaunchError, match=r"rollout\.dtype on rollout: .*float32") as caught:
            journey._sample(*asked)
        assert "Nothing was sampled" in caught.value.hint
    assert closed == [1]
