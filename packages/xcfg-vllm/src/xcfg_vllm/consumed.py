"""From what entered the model on a rank to attestations, phases and batch sizes per token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xcfg.errors import WorkerError
from xcfg.identity.attest import attest_sequence
from xcfg.identity.rollout import Rollout
from xcfg.schema.identity import SequenceAttestation
from xcfg.schema.names import Phase

from xcfg_vllm.requests import Answer


@dataclass
class Consumed:
    """Flat over T tokens. ids, positions: what entered, -1 where nothing did. entered: how often.

    phase, step_batch: of the forward whose logits predict the token. single_token_forwards: those in which a request
    had one token of its response; others may prefill in the same step. max_tokens, max_requests: of the largest
    forward. complete: sequences taken in so far. filled: what entered before this score and may be in a cache still.
    moved: sequences of which somebody scored other ids than the answers name.
    """

    total: int
    ids: NDArray[np.int64] = field(init=False)
    positions: NDArray[np.int64] = field(init=False)
    entered: NDArray[np.int64] = field(init=False)
    phase: NDArray[np.int8] = field(init=False)
    step_batch: NDArray[np.int32] = field(init=False)
    forwards: int = 0
    single_token_forwards: int = 0
    max_tokens: int = 0
    max_requests: int = 0
    chunked: int = 0
    complete: list[slice] = field(default_factory=list)
    filled: Consumed | None = None
    moved: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Start with nothing consumed."""
        self.ids = np.full(self.total, -1, dtype=np.int64)
        self.positions = np.full(self.total, -1, dtype=np.int64)
        self.entered = np.zeros(self.total, dtype=np.int64)
        self.phase = np.zeros(self.total, dtype=np.int8)
        self.step_batch = np.zeros(self.total, dtype=np.int32)

    def take(self, rollout: Rollout, answers: Sequence[Answer], forwards: Sequence[Any], *, decode: bool) -> None:
        """Take in the forwards of one group of requests."""
        spans = {answer.request: rollout.span(answer.sequence) for answer in answers}
        firsts = {answer.request: answer.first for answer in answers}
        brought = {answer.request: answer.cached for answer in answers}
        for names, counts, ids, positions in forwards:
            self.forwards += 1
            single = False
            self.max_tokens = max(self.max_tokens, sum(counts))
            self.max_requests = max(self.max_requests, len(names))
            start = 0
            for name, count in zip(names, counts, strict=True):
                request = _match(name, spans)
                where = slice(start, start + count)
                start += count
                single |= decode and count == 1 and positions[where][0] >= firsts[request]
                span, at = spans[request], positions[where]
                whole = firsts[request] if decode else span.stop - span.start
                again = bool(at) and 0 <= at[0] < span.stop - span.start and self.entered[span.start + at[0]] > 0
                pieces = bool(at) and at[0] < whole and (at[0] > brought[request] or at[-1] + 1 < whole)
                self.chunked += int(pieces and not again)
                self._request(span, firsts[request], ids[where], at, len(names), decode)
            self.single_token_forwards += int(single)
        self._from_cache(rollout, answers)

    def _from_cache(self, rollout: Rollout, answers: Sequence[Answer]) -> None:
        """Attest to tokens that a cache brought: they entered at the head of a sequence, in this score or `filled`."""
        for answer in sorted(answers, key=lambda item: item.cached):
            span = rollout.span(answer.sequence)
            brought = slice(span.start, span.start + answer.cached)
            if answer.cached and bool((self.entered[brought] < 1).any()):
                prefix = rollout.token_ids[brought].astype(np.int64)
                if prefix.tobytes() not in self._prefixes(len(prefix)):
                    raise WorkerError(f"a cache brought {len(prefix)} tokens of a sequence that nobody filled in")
                self.ids[brought] = prefix
                self.positions[brought] = np.arange(len(prefix))
                self.entered[brought] += 1
            self.complete.append(span)

    def _prefixes(self, length: int) -> set[bytes]:
        """Return the first `length` tokens of every sequence that entered so far, as they entered."""
        whole = [span for span in self.complete if span.stop - span.start >= length]
        before = set() if self.filled is None else self.filled._prefixes(length)
        return before | {
            self.ids[span.start : span.start + length].tobytes()
            for span in whole
            if bool((self.entered[span.start : span.start + length] > 0).all())
        }

    def _request(self, span: slice, first: int, ids: list[int], positions: list[int], batch: int, decode: bool) -> None:
        length = span.stop - span.start
        if not positions or positions[0] < 0 or positions[-1] >= length:
            raise WorkerError(
                f"positions {positions[:1]} to {positions[-1:]} entered for a sequence of {length} tokens"
            )
        flat = span.start + np.asarray(positions, dtype=np.int64)
        self.ids[flat] = ids
        self.positions[flat] = positions
        self.entered[flat] += 1
        predicted = flat[flat + 1 < span.stop] + 1
        if not decode:
            self.step_batch[predicted] = batch
            self.phase[predicted] = int(Phase.PREFILL)
            return
        # Of a forward one token is drawn; those that a recomputation passes again were drawn before.
        last = predicted[-1:][self.phase[predicted[-1:]] == 0]
        self.step_batch[last] = batch
        kind = (
            Phase.FIRST_TOKEN
            if positions[-1] + 1 == first
            else Phase.DECODE
            if len(ids) == 1 and positions[0] >= first
            else Phase.RECOMPUTED
        )
        self.phase[last] = int(kind)

    def attestations(
        self, rollout: Rollout, answers: Sequence[Answer], *, consumed_last: bool
    ) -> tuple[SequenceAttestation, ...]:
        """Return one attestation per sequence: what entered, and the ids that the engine's answers name.

        Which id a value of a moved sequence belongs to is not known, so that it is attested as -1.
        """
        result = []
        for answer in sorted(answers, key=lambda item: item.sequence):
            span = rollout.span(answer.sequence)
            stop = span.stop if consumed_last else span.stop - 1
            if bool((self.entered[span.start : stop] < 1).any()):
                raise WorkerError(f"not every token of sequence {answer.sequence} entered the model")
            active = np.flatnonzero(rollout.active[span])
            handed = answer.tokens[active - answer.first]
            if answer.sequence in self.moved:
                handed = np.full_like(handed, -1)
            result.append(
                attest_sequence(answer.sequence, self.ids[span.start : stop], self.positions[span.start : stop], handed)
            )
        return tuple(result)


def _match(name: str, spans: dict[str, slice]) -> str:
    """Return the request of an engine's internal name, which may carry a suffix."""
    if name in spans:
        return name
    stem = name.rpartition("-")[0]
    if stem in spans:
        return stem
    raise WorkerError(f"the engine ran the request {name!r}, which nobody made")
