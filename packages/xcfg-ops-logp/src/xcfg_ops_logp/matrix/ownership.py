"""L1: whether two phases sum over the same ids, each of which one rank owns. A gate gives no number.

Who owns what is read from the run: where the engine placed the operator on each rank, or, where an engine gathers
logits before it calls one, what the live head of each rank says (`mechanism["vocabulary_shard"]` of its score report).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from xcfg.binding import bind
from xcfg.errors import IdentityError
from xcfg.schema.codec import evolve
from xcfg.schema.names import Status

from xcfg_ops_logp.contract import VocabSpec, common_tiles, owners, real_shards, tiled, vocab_of
from xcfg_ops_logp.contract.shards import Shard, ShardMap
from xcfg_ops_logp.matrix.replay import Phase

Held = tuple[str, str]
MET: Held = (Status.PASS.value, "")
SHARD = "vocabulary_shard"
PADDING = "head_padding"


class _UnmetError(Exception):
    """What a phase says of its vocabulary cannot be."""


def ownership(phases: Sequence[Phase], reports: Sequence[Sequence[Any]]) -> tuple[Held, dict[str, Any]]:
    """Return whether both phases sum over the same ids, and who owned them; the second is empty where they do not.

    Who owned them: per phase its shards by rank, and the tiles [start, stop, rank, rank] that lie on one rank of
    either.

    reports: per phase the ScoreReports of its ranks; one that says nothing of a vocabulary sums over all columns.
    Checked for each phase: one width; shards that tile the padded vocabulary, so that every id has one owner; equal
    shards in all calls, and in what ranks report; masked columns that are masked; head rows beyond the vocabulary whose
    logits fit their norms. Checked between the phases: the fields of VocabSpec.
    """
    specs: list[VocabSpec] = []
    shown: dict[str, Any] = {}
    try:
        for phase, said in zip(phases, reports, strict=True):
            spec, shown[phase.name] = _owned(phase, said)
            specs.append(spec)
    except _UnmetError as fault:
        return (Status.NOT_COMPARABLE.value, str(fault)), {}
    found = bind(*specs)
    if found.refusals:
        return (found.status, found.reason), {}
    maps = [real_shards([(start, stop) for start, stop in item["shards"]], item["real"]) for item in shown.values()]
    tiles = [[tile.start, tile.stop, tile.first_rank, tile.second_rank] for tile in common_tiles(*maps)]
    return MET, {**shown, "common_tiles": tiles}


def _owned(phase: Phase, reports: Sequence[Any]) -> tuple[VocabSpec, dict[str, Any]]:
    widths, maps, hidden = set(), set(), 0.0
    for call in phase.calls():
        widths.add(call.logits.shape[1])
        maps.add(call.shards)
        hidden = max(hidden, math.inf if math.isnan(call.beyond) else call.beyond)
    if len(widths) != 1:
        raise _UnmetError(f"{phase.name} was handed logits of the widths {sorted(widths)}")
    if len(maps) != 1:
        raise _UnmetError(f"{phase.name} was placed on other shards from one call to the next: {sorted(maps)}")
    width = widths.pop()
    reported = _reported(phase.name, reports)
    spec = _spec(reported, width)
    real, ids = spec.org_vocab_size or width, reported.org_vocab_size or width
    shards = _shards(phase.name, maps.pop(), width, reports)
    _check_tiling(phase.name, shards, real, reported.padded_vocab_size)
    if width > real and spec.vocab_padding_policy == "mask" and _finite_beyond(phase, real):
        raise _UnmetError(f"{phase.name} masks {width - real} of {width} columns, and its captured logits do not")
    largest = max(hidden, _largest_beyond(phase, ids))
    norm = _pad_norm(reports)
    if norm == 0 and largest > 0:
        raise _UnmetError(
            f"{phase.name} reports that every head row beyond {ids} ids is zero, and a logit there is {largest:.3g}"
        )
    shown = {"shards": [list(shard) for shard in shards], "real": real, "columns": max(width, shards[-1][1])}
    beyond = {"pad_row_norm": norm, "largest_padded_logit": largest}
    return evolve(spec, pad_row_norm=norm), {**shown, "policy": spec.vocab_padding_policy, **beyond}


def _reported(name: str, reports: Sequence[Any]) -> VocabSpec:
    """Return the one vocabulary that the ranks report; empty where none reports any."""
    said = {vocab_of(item.mechanism) for item in reports if item.mechanism.get("vocabulary") is not None}
    if len(said) > 1:
        raise _UnmetError(f"the ranks of {name} report different vocabularies: {'; '.join(sorted(map(str, said)))}")
    return said.pop() if said else VocabSpec()


def _spec(reported: VocabSpec, width: int) -> VocabSpec:
    """Return what enters the sum over `width` columns: all of them where nothing is reported or the padding counts."""
    if reported == VocabSpec():
        return VocabSpec(org_vocab_size=width, padded_vocab_size=width, num_pad_rows=0, vocab_padding_policy="mask")
    if reported.vocab_padding_policy == "mask" or reported.org_vocab_size == width:
        return evolve(reported, vocab_padding_policy="mask")
    return evolve(reported, org_vocab_size=width)


def _shards(name: str, placed: ShardMap, width: int, reports: Sequence[Any]) -> ShardMap:
    """Return the shards by tensor-parallel rank, from the operator's placement or from what ranks report.

    width: of the captured logits, which are one shard where nothing is split and nobody says anything.
    """
    stated = _stated(name, reports)
    if placed:
        if reports and len(stated) != len(placed):
            raise _UnmetError(f"{name} has {len(stated)} tensor-parallel ranks, and its operator {len(placed)} shards")
        for (rank, shard), mine in zip(stated.items(), placed, strict=False):
            if shard is not None and shard != mine:
                raise _UnmetError(f"rank {rank} of {name} holds the ids {shard}, and its operator was placed at {mine}")
        return placed
    silent = [rank for rank, shard in stated.items() if shard is None]
    if silent and len(stated) == 1:
        return ((0, width),)
    if silent:
        raise _UnmetError(
            f"the vocabulary of {name} is split over {len(stated)} ranks, and the ranks {silent} do not say which ids "
            f"they hold: report mechanism[{SHARD!r}], or hand local logits to a sharded operator"
        )
    shards = tuple(shard for shard in stated.values() if shard is not None)
    return shards[:1] if len(set(shards)) == 1 and shards[0][0] == 0 else shards  # every rank holds the whole


def _stated(name: str, reports: Sequence[Any]) -> dict[int, Shard | None]:
    """Return tensor-parallel rank -> the ids that its head holds, None where it does not say; replicas must agree."""
    found: dict[int, Shard | None] = {}
    for report in reports:
        record = getattr(report, "record", None)
        rank = record.coordinates.get("tp", 0) if record is not None else 0
        said = report.mechanism.get(SHARD)
        shard = None if said is None else (int(said[0]), int(said[1]))
        if found.get(rank, shard) != shard:
            raise _UnmetError(f"replicas of the tensor-parallel rank {rank} of {name} hold different ids")
        found[rank] = shard
    return dict(sorted(found.items())) or {0: None}


def _check_tiling(name: str, shards: ShardMap, real: int, padded: int | None) -> None:
    domain = tiled(shards)
    if domain is None:
        edges = sorted({0, *(edge for shard in shards for edge in shard)})
        try:
            owners(shards, edges[:-1])
        except IdentityError as fault:
            raise _UnmetError(f"{name}: {fault.message}") from fault
        raise _UnmetError(f"the shards {list(shards)} of {name} do not tile a vocabulary")
    if domain[1] < real:
        raise _UnmetError(f"the shards of {name} end at {domain[1]}, and the vocabulary has {real} ids")
    if len(shards) > 1 and padded is not None and domain[1] != padded:
        raise _UnmetError(f"the shards of {name} end at {domain[1]}, and {padded} columns are reported")


def _pad_norm(reports: Sequence[Any]) -> float | None:
    """Return the largest norm of a head row beyond the vocabulary, over ranks; None where no rank says it."""
    found = [float(report.mechanism[PADDING]["largest_norm"]) for report in reports if PADDING in report.mechanism]
    return max(found, default=None)


def _finite_beyond(phase: Phase, real: int) -> bool:
    return any(bool((call.logits[:, real:] != float("-inf")).any()) for call in phase.calls())


def _largest_beyond(phase: Phase, real: int) -> float:
    """Return the largest finite magnitude among captured columns beyond the vocabulary, 0 where there are none."""
    parts = [call.logits[:, real:].double().abs() for call in phase.calls() if call.logits.shape[1] > real]
    return max((float(part[part.isfinite()].max()) for part in parts if part.isfinite().any()), default=0.0)
