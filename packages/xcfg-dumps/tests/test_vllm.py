"""vLLM: RequestOutput and the OpenAI forms; the chosen token among others, null, -9999, echo, text in place of ids."""

from __future__ import annotations

import json

import numpy as np
import pytest
from xcfg.dumps import join, table_of
from xcfg.errors import ArtifactError


def response(rows):
    return rows.columns["logp_rollout"][rows.columns["active"]].tolist()


def test_the_chosen_token_is_looked_up_and_not_the_first(layouts, rows, tmp_path):
    """Failing means that the most likely token's value stands for the sampled one's."""
    assert response(rows("vllm", layouts.jsonl(tmp_path, [layouts.vllm_request(0)]))) == [-0.5, -1.25, -3.0]


def test_a_scored_prompt_is_active_where_it_has_a_value(layouts, rows, tmp_path):
    scored = [None, layouts.entry(12, -2.0), layouts.entry(13, None), layouts.entry(14, -4.0)]
    outputs = [{"index": 0, "token_ids": [99], "logprobs": None}]
    record = layouts.vllm_request(0, prompt_token_ids=[11, 12, 13, 14], prompt_logprobs=scored, outputs=outputs)
    found = rows("vllm", layouts.jsonl(tmp_path, [record]))
    assert found.columns["active"].tolist() == [0, 1, 0, 1, 0]
    np.testing.assert_array_equal(found.columns["logp_rollout"], [np.nan, -2.0, np.nan, -4.0, np.nan])


def test_prompt_values_are_kept_beside_a_response_and_are_not_active(layouts, rows, tmp_path):
    record = layouts.vllm_request(0, prompt_logprobs=[None, layouts.entry(12, -9.0)])
    found = rows("vllm", layouts.jsonl(tmp_path, [record]))
    assert found.columns["active"].tolist() == [0, 0, 1, 1, 1]
    assert found.columns["logp_rollout"][1] == -9.0


def test_flat_logprobs(layouts, rows, tmp_path):
    """FlatLogprobs: spans of flat lists; the first prompt position is an empty span."""
    flat = {
        "start_indices": [0, 2, 4],
        "end_indices": [2, 4, 5],
        "token_ids": [5, 300, 70_000, 5, 13],
        "logprobs": [-0.1, -0.5, -1.25, -0.2, -3.0],
        "ranks": [1, 7, 1, 2, 1],
        "decoded_tokens": [None] * 5,
    }
    prompt = {"start_indices": [0, 0], "end_indices": [0, 1], "token_ids": [12], "logprobs": [-9.0]}
    outputs = [layouts.vllm_request(0)["outputs"][0] | {"logprobs": flat}]
    path = layouts.jsonl(tmp_path, [layouts.vllm_request(0, outputs=outputs, prompt_logprobs=prompt)])
    found = rows("vllm", path)
    np.testing.assert_array_equal(found.columns["logp_rollout"], [np.nan, -9.0, -0.5, -1.25, -3.0])
    for changes in ({"end_indices": [2, 4, 9]}, {"start_indices": [3, 2, 4]}, {"logprobs": [-1.0]}, {"token_ids": [1]}):
        bad = [outputs[0] | {"logprobs": flat | changes}]
        with pytest.raises(ArtifactError):
            rows("vllm", layouts.jsonl(tmp_path, [layouts.vllm_request(0, outputs=bad)]))


def test_several_outputs_of_one_request_are_samples_of_their_own(layouts, rows, tmp_path):
    first = layouts.vllm_request(0)["outputs"][0]
    path = layouts.jsonl(tmp_path, [layouts.vllm_request(0, outputs=[first, first | {"index": 1}])])
    assert rows("vllm", path).sample_ids == ("0/0", "0/1")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"logprobs": None}, "holds no log probabilities"),
        ({"logprobs": []}, "has 0 positions for 3 tokens"),
        ({"logprobs": [{"5": {"logprob": -1.0}}] * 3}, "position 0 has no entry for its token 300"),
        ({"token_ids": [300, 70_000]}, "has 3 positions for 2 tokens"),
        ({"token_ids": None}, "not a list of integers"),
        ({"logprobs": [None, None, None]}, "logp_rollout is nan on 3 active tokens"),
        ({"logprobs": [{"300": -1.0}, {"70000": {"logprob": "x"}}, {"13": -1.0}]}, "not a list of numbers"),
        ({"logprobs": [[1], [2], [3]]}, "has no entry for its token"),
    ],
)
def test_an_output_that_is_not_whole_is_refused(layouts, rows, tmp_path, changes, says):
    outputs = [layouts.vllm_request(0)["outputs"][0] | changes]
    with pytest.raises(ArtifactError) as caught:
        rows("vllm", layouts.jsonl(tmp_path, [layouts.vllm_request(0, outputs=outputs)]))
    assert says in str(caught.value)


@pytest.mark.parametrize("prompt", [None, "text", [1, None]])
def test_a_request_without_prompt_ids_has_no_positions(layouts, rows, tmp_path, prompt):
    with pytest.raises(ArtifactError, match="prompt_token_ids is"):
        rows("vllm", layouts.jsonl(tmp_path, [layouts.vllm_request(0, prompt_token_ids=prompt)]))


@pytest.mark.parametrize("form", ["lines", "list", "pretty", "single"])
def test_every_spelling_of_a_file_is_read_and_recognised(layouts, rows, tmp_path, form, manager):
    from xcfg.flow.dumps import choose_reader

    answers = [layouts.chat_answer(0), layouts.chat_answer(1)]
    text = {
        "lines": "".join(json.dumps(answer) + "\n" for answer in answers),
        "list": json.dumps(answers),
        "pretty": json.dumps(answers, indent=1),
        "single": json.dumps(answers[0], indent=1),
    }[form]
    path = layouts.jsonl(tmp_path, text, "dump.json")
    found = rows("openai", path)
    assert found.sample_ids == (("0",) if form == "single" else ("0", "1"))
    assert response(found)[:3] == [-0.5, -1.25, -3.0]
    assert choose_reader(path, manager, None)[0] == "openai"


def test_a_batch_file_names_its_samples_itself(layouts, rows, tmp_path):
    line = {"id": "x", "custom_id": "mine", "response": {"status_code": 200, "body": layouts.chat_answer(0)}}
    assert rows("openai", layouts.jsonl(tmp_path, [line])).sample_ids == ("mine",)
    failed = {"id": "x", "custom_id": "lost", "response": None, "error": {"code": 500}}
    with pytest.raises(ArtifactError, match="the request 'lost' has no answer"):
        rows("openai", layouts.jsonl(tmp_path, [line, failed]))


def test_echo_gives_the_prompt_its_values_and_keeps_it_inactive(layouts, rows, tmp_path):
    logprobs = {"tokens": ["x"] * 5, "token_logprobs": [None, -9.0, -0.5, -1.25, -3.0], "top_logprobs": [None] * 5}
    found = rows("openai", layouts.jsonl(tmp_path, [layouts.completion_answer(0, {"logprobs": logprobs})]))
    np.testing.assert_array_equal(found.columns["logp_rollout"], [np.nan, -9.0, -0.5, -1.25, -3.0])
    assert found.columns["active"].tolist() == [0, 0, 1, 1, 1]


def test_token_id_names_and_the_usage_stand_in_for_ids(layouts, rows, tmp_path):
    """Without prompt ids positions are still known; the rows of the prompt are absent and a join fills them."""
    bare = layouts.completion_answer(0, {"token_ids": None, "prompt_token_ids": None})
    found = rows("openai", layouts.jsonl(tmp_path, [bare]))
    assert found.columns["position"].tolist() == [2, 3, 4]
    assert found.columns["token_id"].tolist() == [300, 70_000, 13]
    train = rows("slime-train", layouts.slime_train(tmp_path, [layouts.slime_train_sample(0)]))
    assert table_of(*join(found, train)).token_ids.tolist() == [11, 12, 300, 70_000, 13]


@pytest.mark.parametrize(
    ("choice", "changes", "says"),
    [
        (
            {"token_ids": None, "logprobs": {"tokens": ["a"], "token_logprobs": [-1.0]}},
            {},
            "text in place of token ids",
        ),
        ({"token_ids": None, "logprobs": {"tokens": ["token_id:x"], "token_logprobs": [-1.0]}}, {}, "text in place"),
        ({"prompt_token_ids": None}, {"usage": None}, "does not say how long its prompt is"),
        ({"logprobs": None}, {}, "holds no logprobs"),
        ({"token_ids": [1, 2]}, {}, "3 log probabilities for 2 token ids"),
        ({"logprobs": {"tokens": ["a"], "token_logprobs": [-1.0, -2.0]}}, {}, "different lengths"),
        ({"logprobs": {"content": None}}, {}, "not a list of objects"),
        ({}, {"choices": []}, "not a list of objects"),
        ({}, {"choices": [1]}, "not a list of objects"),
    ],
)
def test_an_answer_that_is_not_whole_is_refused(layouts, rows, tmp_path, choice, changes, says):
    with pytest.raises(ArtifactError) as caught:
        rows("openai", layouts.jsonl(tmp_path, [layouts.completion_answer(0, choice, **changes)]))
    assert says in str(caught.value)


def test_two_choices_without_prompt_ids_cannot_be_placed(layouts, rows, tmp_path):
    """usage counts the prompts of a batch together."""
    answer = layouts.completion_answer(0, {"prompt_token_ids": None})
    answer["choices"] *= 2
    with pytest.raises(ArtifactError, match="how long its prompt is"):
        rows("openai", layouts.jsonl(tmp_path, [answer]))


def test_the_floor_of_the_server_is_kept_as_it_is(layouts, rows, tmp_path):
    """-9999 is what the server writes for -inf: a finite number that a signature can name, not a hole to fill."""
    logprobs = {"tokens": ["x"] * 3, "token_logprobs": [-9999.0, -1.0, -2.0]}
    path = layouts.jsonl(tmp_path, [layouts.completion_answer(0, {"logprobs": logprobs})])
    assert response(rows("openai", path)) == [-9999.0, -1.0, -2.0]


def test_a_null_at_a_sampled_token_names_the_sample(layouts, rows, tmp_path):
    logprobs = {"tokens": ["x"] * 3, "token_logprobs": [-1.0, None, -2.0]}
    path = layouts.jsonl(tmp_path, [layouts.completion_answer(0, {"logprobs": logprobs})])
    with pytest.raises(
        ArtifactError, match="logp_rollout is nan on 1 active tokens, the first at sample '0', position 3"
    ):
        rows("openai", path)
