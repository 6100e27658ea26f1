"""L1 and L2: whether two phases sum over the same ids, and score the frozen ones. A gate gives no number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from xcfg.binding import bind
from xcfg.schema.codec import evolve
from xcfg.schema.names import Status

from xcfg_ops_logp.contract import VocabSpec, vocab_of
from xcfg_ops_logp.matrix.replay import Phase

Held = tuple[str, str]
MET: Held = (Status.PASS.value, "")


def ownership(phases: Sequence[Phase], reports: Sequence[Sequence[Any]]) -> Held:
    """Return whether both phases sum over the same ids: sizes, policy, and what captured columns beyond them hold.

    reports: per phase the ScoreReports of its ranks; one that says nothing of a vocabulary sums over all columns.
    """
    specs = []
    for phase, said in zip(phases, reports, strict=True):
        widths = {call.logits.shape[1] for call in phase.calls()}
        if len(widths) != 1:
            return Status.NOT_COMPARABLE.value, f"{phase.name} was handed logits of the widths {sorted(widths)}"
        width = widths.pop()
        spec = _spec(said, width)
        real = spec.org_vocab_size or width
        if width > real and spec.vocab_padding_policy == "mask" and _finite_beyond(phase, real):
            why = f"{phase.name} masks {width - real} of {width} columns, and its captured logits do not"
            return Status.NOT_COMPARABLE.value, why
        specs.append(spec)
    found = bind(*specs)
    return MET if not found.refusals else (found.status, found.reason)


def selection(phases: Sequence[Phase], selected: NDArray[np.generic]) -> Held:
    """Return whether each phase scored every active token once, with the id that was frozen for it."""
    for phase in phases:
        seen = 0
        for call in phase.calls():
            mine = call.tokens >= 0
            ids = selected[call.tokens[mine]].astype(np.int64)
            wrong = np.flatnonzero(call.selected.numpy()[mine] != ids)
            if len(wrong):
                token, scored = int(call.tokens[mine][wrong[0]]), int(call.selected.numpy()[mine][wrong[0]])
                why = f"{phase.name} scored the id {scored} at token {token}, frozen as {int(selected[token])}"
                return Status.INVALID_IDENTITY.value, why
            seen += int(mine.sum())
        if seen != phase.count:
            return Status.INVALID_IDENTITY.value, f"{phase.name} scored {seen} of {phase.count} active tokens"
    return MET


def _spec(reports: Sequence[Any], width: int) -> VocabSpec:
    said = [report.mechanism for report in reports if report.mechanism.get("vocabulary") is not None]
    if not said:
        return VocabSpec(org_vocab_size=width, padded_vocab_size=width, num_pad_rows=0, vocab_padding_policy="mask")
    spec = vocab_of(said[0])
    if spec.vocab_padding_policy == "mask" or spec.org_vocab_size == width:
        return evolve(spec, vocab_padding_policy="mask")
    return evolve(spec, org_vocab_size=width)


def _finite_beyond(phase: Phase, real: int) -> bool:
    return any(bool((call.logits[:, real:] != -torch.inf).any()) for call in phase.calls())
