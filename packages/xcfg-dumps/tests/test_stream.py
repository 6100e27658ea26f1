"""Streamed OpenAI answers: chunks joined per id and choice, in order; what was cut off or lacks ids is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from xcfg.errors import ArtifactError
from xcfg.flow.dumps import choose_reader
from xcfg_dumps.vllm_stream import answers

NAN = float("nan")


def chat(layouts, index=0, *, name="chatcmpl-1", choice=0, ids=True):
    """The chunks of one choice as vLLM streams them: role, then one token at a time, the last with the reason."""
    prompt = layouts.IDS[index][: -len(layouts.ROLLOUT[index])]
    tokens = layouts.IDS[index][len(prompt) :]
    base = {"id": name, "object": "chat.completion.chunk", "created": 1, "model": "m"}
    role = {"index": choice, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    yield {**base, "choices": [role], **({"prompt_token_ids": list(prompt)} if ids else {})}
    for at, (token, value) in enumerate(zip(tokens, layouts.ROLLOUT[index], strict=True)):
        content = [{"token": "x", "logprob": value, "bytes": None, "top_logprobs": [{"token": "y", "logprob": -0.1}]}]
        part = {"index": choice, "delta": {"content": "x"}, "logprobs": {"content": content}}
        part |= {"finish_reason": "stop" if at == len(tokens) - 1 else None}
        yield {**base, "choices": [part | ({"token_ids": [token]} if ids else {})]}


def completion(layouts, index=0, *, name="cmpl-1", choice=0, echo=False):
    """The same for completions; every field stands in every chunk, the usage as null."""
    prompt = layouts.IDS[index][: -len(layouts.ROLLOUT[index])]
    tokens = layouts.IDS[index][len(prompt) :]
    for at, (token, value) in enumerate(zip(tokens, layouts.ROLLOUT[index], strict=True)):
        head = [None, *[-9.0] * (len(prompt) - 1)] if echo and not at else []
        logprobs = {"tokens": ["x"] * (len(head) + 1), "token_logprobs": [*head, value], "top_logprobs": [None]}
        part = {"index": choice, "text": "x", "logprobs": logprobs, "stop_reason": None, "token_ids": [token]}
        part |= {"finish_reason": "stop" if at == len(tokens) - 1 else None}
        part |= {"prompt_token_ids": None if at else list(prompt)}
        yield {"id": name, "object": "text_completion", "created": 1, "model": "m", "choices": [part], "usage": None}


USAGE = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [], "usage": {"prompt_tokens": 2}}


def events(chunks):
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"


@pytest.mark.parametrize("form", ["events", "lines"])
@pytest.mark.parametrize("kind", [chat, completion])
def test_a_stream_gives_what_the_answer_gives(layouts, rows, tmp_path, manager, form, kind):
    """The oracle is the canonical table written out by hand, as for answers that were not streamed."""
    chunks = list(kind(layouts))
    path = layouts.jsonl(tmp_path, events(chunks) if form == "events" else chunks)
    assert choose_reader(path, manager, None)[0] == "openai"
    found = rows("openai", path)
    assert found.columns["token_id"].tolist() == [11, 12, 300, 70_000, 13]
    assert found.columns["active"].tolist() == [0, 0, 1, 1, 1]
    np.testing.assert_array_equal(found.columns["logp_rollout"], [NAN, NAN, -0.5, -1.25, -3.0])
    assert found.sample_ids == (chunks[0]["id"],)


def test_interleaved_streams_are_kept_apart(layouts, rows, tmp_path):
    """Failing means that tokens of one answer stand in another."""
    first, second = list(chat(layouts, 0, name="a")), list(chat(layouts, 1, name="b"))
    mixed = [first[0], second[0], first[1], second[1], *first[2:], USAGE | {"id": "a"}]
    found = rows("openai", layouts.jsonl(tmp_path, events(mixed)))
    assert found.sample_ids == ("a", "b")
    assert found.columns["token_id"].tolist() == [11, 12, 300, 70_000, 13, 21, 22, 23]


def test_choices_of_one_answer_are_samples_of_their_own(layouts, rows, tmp_path):
    """The second choice begins after the first has ended, and both are numbered nevertheless."""
    chunks = [*completion(layouts, 0), *completion(layouts, 1, choice=1)]
    assert rows("openai", layouts.jsonl(tmp_path, chunks)).sample_ids == ("cmpl-1/0", "cmpl-1/1")


def test_echo_in_a_stream_gives_the_prompt_its_values(layouts, rows, tmp_path):
    found = rows("openai", layouts.jsonl(tmp_path, list(completion(layouts, echo=True))))
    np.testing.assert_array_equal(found.columns["logp_rollout"], [NAN, -9.0, -0.5, -1.25, -3.0])


def test_chunks_and_answers_in_one_file(layouts, rows, tmp_path):
    records = [layouts.completion_answer(1), *completion(layouts, 0)]
    assert rows("openai", layouts.jsonl(tmp_path, records)).sample_ids == ("1", "cmpl-1")


def test_a_stream_that_does_not_end_is_refused(layouts, rows, tmp_path):
    """Failing means that the head of a sequence is compared as if it were the whole."""
    for kind in (chat, completion):
        path = layouts.jsonl(tmp_path, list(kind(layouts))[:-1])
        with pytest.raises(ArtifactError, match=r"line 1: choice 0 of '.*' begins here and never ends"):
            rows("openai", path)


def test_a_chat_stream_without_ids_is_refused(layouts, rows, tmp_path):
    """Its server may have held tokens back, and nothing in the stream would show it."""
    path = layouts.jsonl(tmp_path, events(chat(layouts, ids=False)))
    with pytest.raises(ArtifactError, match="log probabilities and no token_ids") as caught:
        rows("openai", path)
    assert "return_token_ids" in caught.value.hint


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda chunks: [*chunks, chunks[-1]], "goes on after its end"),
        (lambda chunks: [{**chunks[0], "id": None}], "a chunk without an id"),
        (lambda chunks: [*chunks[:2], {"error": {"message": "out of memory"}}], "ended the stream with an error"),
        (lambda chunks: [{**chunks[0], "choices": [1]}], "a choice is 1, not an object"),
        (lambda chunks: [chunks[0], *chunks[2:]], "2 log probabilities"),
    ],
)
def test_a_stream_that_is_not_whole_is_refused(layouts, rows, tmp_path, change, says):
    chunks = change(list(chat(layouts)))
    if "2 log" in says:  # the ids are whole, a chunk's log probabilities are gone
        chunks[-1]["choices"][0]["token_ids"] = [70_000, 13, 14]
    with pytest.raises(ArtifactError) as caught:
        rows("openai", layouts.jsonl(tmp_path, events(chunks)))
    assert says in str(caught.value)


def test_an_event_that_is_no_json_names_its_line(layouts, rows, tmp_path):
    text = events(chat(layouts)).replace("data: [DONE]", "data: {oops")
    with pytest.raises(ArtifactError, match="line 9 is not JSON"):
        rows("openai", layouts.jsonl(tmp_path, text))


def test_a_last_chunk_that_brings_the_usage_alone_says_how_long_the_prompt_is(layouts, tmp_path):
    """Failing means that a stream without prompt ids is refused although its length is known."""
    chunks = [{**chunk, "prompt_token_ids": None} for chunk in chat(layouts)]
    path = layouts.jsonl(tmp_path, [*chunks, USAGE])
    (_, answer) = next(iter(answers(path)))
    assert answer["usage"] == {"prompt_tokens": 2}
