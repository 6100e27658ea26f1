"""One forward of a batch over all ranks: physical columns, what this rank is handed, what the operator is handed."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from xcfg.errors import WorkerError
from xcfg.plugin.protocols import ShardedLogprob

from xcfg_megatron.engine import Engine
from xcfg_megatron.parallel import zigzag


def width_of(engine: Engine, longest: int) -> int:
    """Return the columns of a batch: what sequence and context parallelism can split evenly."""
    ranks = engine.ranks
    multiple = ranks.tensor if engine.config.sequence_parallel else 1
    if ranks.context > 1:
        multiple *= 2 * ranks.context
    return -(-longest // multiple) * multiple


def forward(engine: Engine, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Run ids int64 [rows, columns], padded on the right, from position 0 on.

    Return (columns of this rank int64 [local], logits [rows, local, padded vocabulary / tensor ranks]). Columns are
    added up to width_of. Where an operator stands in the place of the head: final hidden states [rows, local, K].
    """
    width = width_of(engine, ids.shape[1])
    ids = torch.nn.functional.pad(ids, (0, width - ids.shape[1]))
    columns = zigzag(width, engine.ranks.context_rank, engine.ranks.context)
    positions = columns[None].expand(len(ids), -1)
    mask = None
    if engine.ranks.context == 1:
        mask = torch.ones(1, 1, width, width, dtype=torch.bool, device=engine.device).triu(1)
    logits = engine.model(ids[:, columns].to(engine.device), positions.to(engine.device), mask)
    if engine.head is not None:
        engine.head.check(logits)
    return columns, logits


def logprobs(engine: Engine, rows: torch.Tensor, selected: torch.Tensor, policy: str) -> torch.Tensor:
    """Call the operator on rows of logits [N, V / ranks]; note over how many columns it summed.

    An operator in the place of the head is called on hidden states [N, K] instead.

    policy: `mask` hides the columns that pad the vocabulary, `include` does not. An operator that knows no shards is
    given the columns of all ranks. Raises WorkerError where it does not return one value for each id.
    """
    entries = engine.shape.vocab if policy == "mask" else engine.shape.padded
    if engine.head is not None:
        engine.columns[entries] += len(rows)
        return _one_each(engine, engine.head.logprobs(rows, selected, entries), selected)
    function = engine.operator.function
    if isinstance(function, ShardedLogprob):
        function.vocab = entries
    else:
        rows = _whole(engine, rows)[:, :entries]
    found: torch.Tensor = engine.operator(rows, selected)
    engine.columns[function.summed if isinstance(function, ShardedLogprob) else rows.shape[-1]] += len(rows)
    return _one_each(engine, found, selected)


def _one_each(engine: Engine, values: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
    """Return `values` [N]; WorkerError for another shape, of which one value would be written to every token."""
    if values.shape != selected.shape:
        backend = engine.scorer.binding.backend_id
        raise WorkerError(f"{backend!r} returned {tuple(values.shape)}, not {tuple(selected.shape)} values")
    return values


def vocabulary_seen(engine: Engine) -> dict[str, Any]:
    """Return what the sums since the last clear ran over in total: {"policy": mask | include, "real", "padded"}.

    An operator may add columns to those that it is handed; what it states of them holds then. Sums that are neither
    over the real columns nor over one larger number of them have a policy that says so.
    """
    real, padded = engine.shape.vocab, engine.shape.padded
    stated = engine.scorer.statements.vocabularies
    if not stated:
        return {"policy": _policy(set(engine.columns), real, padded), "real": real, "padded": padded}
    try:
        totals = {int(item["padded" if item["policy"] == "include" else "real"]) for item in stated}
        widest = max(padded, *(int(item["padded"]) for item in stated))
    except (KeyError, TypeError, ValueError):
        return {"policy": f"the operator states {stated!r}", "real": real, "padded": padded}
    total = max(totals)
    return {
        "policy": _policy(totals, real, total),
        "real": real,
        "padded": total if total > real else widest,
    }


def _policy(summed: set[int], real: int, padded: int) -> str:
    if summed <= {real}:
        return "mask"
    return "include" if summed == {padded} and padded > real else f"sums over {sorted(summed)} columns"


def _whole(engine: Engine, rows: torch.Tensor) -> torch.Tensor:
    if engine.ranks.tensor == 1:
        return rows
    shares = [torch.empty_like(rows.contiguous()) for _ in range(engine.ranks.tensor)]
    dist.all_gather(shares, rows.contiguous(), group=engine.ranks.tensor_group)
    return torch.cat(shares, dim=-1)
