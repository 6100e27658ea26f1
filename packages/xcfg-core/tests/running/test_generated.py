"""Answers of a sampling engine: what freeze cannot keep is named before it is kept."""

from __future__ import annotations

import math

import pytest
from xcfg.errors import WorkerError
from xcfg.running.generated import check_answers

GENERATE = {"max_new_tokens": 2, "logprobs_mode": "processed_logprobs"}
PROMPTS = [{"token_ids": [1, 2]}, {"text": "a"}]
GOOD = {"prompt_ids": [1, 2], "token_ids": [3, 4], "logprobs": [-1.5, 0], "transforms": ["top_k:2"]}


def test_what_the_protocol_says_is_taken():
    check_answers([GOOD, {**GOOD, "prompt_ids": (9,), "finish_reason": "stop", "more": object()}], PROMPTS, GENERATE)
    empty = {**GOOD, "token_ids": [], "logprobs": []}
    check_answers([empty, empty], PROMPTS, GENERATE)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"prompt_ids": []}, "prompt_ids is empty"),
        ({"prompt_ids": [1, 3]}, "prompt_ids are not the token_ids of the prompt"),
        ({"prompt_ids": [1, 2.0]}, "prompt_ids is not a list of ids"),
        ({"prompt_ids": None}, "prompt_ids is not a list of ids"),
        ({"token_ids": [3, -1]}, "token_ids is not a list of ids"),
        ({"token_ids": [3, True]}, "token_ids is not a list of ids"),
        ({"token_ids": "34"}, "token_ids is not a list of ids"),
        ({"token_ids": [3]}, "1 tokens and 2 log probabilities"),
        ({"token_ids": [3, 4, 5], "logprobs": [-1, -1, -1]}, "3 tokens, and at most 2"),
        ({"logprobs": [-1, math.nan]}, "finite"),
        ({"logprobs": [-1, -math.inf]}, "finite"),
        ({"logprobs": [-1, None]}, "finite"),
        ({"logprobs": [-1, False]}, "finite"),
        ({"transforms": "top_k:2"}, "transforms is not a list"),
        ({"transforms": [2]}, "transforms is not a list"),
        ({"transforms": []}, "different transforms"),
        ({"finish_reason": None}, "finish_reason"),
    ],
)
def test_each_fault_is_named(change, says):
    with pytest.raises(WorkerError, match=says):
        check_answers([{**GOOD, **change}, {**GOOD, "prompt_ids": [7]}], PROMPTS, GENERATE)


@pytest.mark.parametrize("name", ["prompt_ids", "token_ids", "logprobs", "transforms"])
def test_a_missing_field_is_named_with_its_prompt(name):
    short = {key: value for key, value in GOOD.items() if key != name}
    with pytest.raises(WorkerError, match=f"prompt 1 .*lacks {name}"):
        check_answers([GOOD, short], PROMPTS, GENERATE)


@pytest.mark.parametrize(("answers", "says"), [(None, "NoneType"), ([GOOD], "1 continuations"), ([GOOD, 1], "an? int")])
def test_what_is_no_list_of_answers_is_refused(answers, says):
    with pytest.raises(WorkerError, match=says):
        check_answers(answers, PROMPTS, GENERATE)


def test_transforms_under_raw_log_probabilities_contradict_the_request():
    with pytest.raises(WorkerError, match="raw log probabilities were asked for, and transforms names top_k:2"):
        check_answers([GOOD, GOOD], PROMPTS, {})
