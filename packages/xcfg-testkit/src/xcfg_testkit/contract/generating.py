"""What an adapter must fulfil that samples for `xcfg freeze`; part of RuntimeContract."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
from xcfg.plugin.protocols import Generator
from xcfg.running.generated import check_answers
from xcfg.schema.runtime import RuntimeDescriptor

from xcfg_testkit.contract.guard import Contract
from xcfg_testkit.contract.observing import Session, Setup, is_number
from xcfg_testkit.rollouts import tiny_rollout

TOKENS = 5
TEMPERATURE = 0.7


class GeneratingContract(Contract):
    """The tests of sampling; skipped where the descriptor does not say `generates`."""

    descriptor: ClassVar[RuntimeDescriptor]
    vocabulary: ClassVar[int] = 32

    def setup_of(self, side: str, scratch: Path) -> Setup:
        """Return what one side is built with."""
        raise NotImplementedError

    def test_generates_means_that_there_is_a_generator(self) -> None:
        """Failing means a descriptor that says `generates`, and no rollout side that samples."""
        if not self.descriptor.generates:
            pytest.skip("the runtime does not sample")
        assert "rollout" in self.descriptor.arms, "xcfg freeze runs the rollout side"

    @pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
    def test_generate_answers_every_prompt(self, mode: str, tmp_path: Path) -> None:
        """Failing means an answer that `xcfg freeze` cannot keep, or one that says nothing about its transforms.

        The fields are listed at xcfg.plugin.protocols.Generator. Nothing but temperature is asked for here.
        """
        answers = self._sampled(tmp_path, logprobs_mode=mode)
        for number, answer in enumerate(answers):
            assert len(answer["token_ids"]) == TOKENS, f"prompt {number}: nothing ends it before {TOKENS} tokens"
            assert all(token < self.vocabulary for token in answer["token_ids"]), f"prompt {number}: {answer}"
            assert all(is_number(value) for value in answer["logprobs"]), f"prompt {number}: {answer['logprobs']}"
            expected = [f"temperature:{TEMPERATURE!r}"] if mode == "processed_logprobs" else []
            assert list(answer["transforms"]) == expected, f"prompt {number}: {answer['transforms']}"

    def test_a_stop_id_ends_a_sequence(self, tmp_path: Path) -> None:
        """Failing means that sampling goes on after a stop id, drops it, or does not say why it ended.

        Here every id of the vocabulary is a stop id, so each answer is one token long.
        """
        for number, answer in enumerate(self._sampled(tmp_path, stop_ids=list(range(self.vocabulary)))):
            assert len(answer["token_ids"]) == 1, f"prompt {number}: {answer['token_ids']}"
            assert answer.get("finish_reason") == "stop", f"prompt {number}: {answer.get('finish_reason')!r}"

    def _sampled(self, scratch: Path, **fields: Any) -> list[dict[str, Any]]:
        """Return checked answers to prompts of different lengths."""
        if not self.descriptor.generates:
            pytest.skip("the runtime does not sample")
        rollout = tiny_rollout(vocabulary=self.vocabulary)
        prompts: list[dict[str, Any]] = [
            {"token_ids": [int(token) for token in rollout.token_ids[rollout.span(index)]], "id": f"p{index}"}
            for index in range(rollout.sequence_count)
        ]
        generate: dict[str, Any] = {
            "prompts": prompts,
            "max_new_tokens": TOKENS,
            "temperature": TEMPERATURE,
            "top_k": 0,
            "top_p": 1.0,
            "seed": 3,
            "logprobs_mode": "raw_logprobs",
            "stop_ids": [],
            **fields,
        }
        with Session(self.setup_of("rollout", scratch), rollout) as session:
            session.build()
            assert isinstance(session.adapter, Generator), "the descriptor says `generates`, the adapter cannot"
            answers = session.generate(generate)
        check_answers(answers, prompts, generate)
        return answers
