"""Real gloo processes that hold a sharded `selected_logprob` to its claims, in groups of 1, 2, 4 and 8 ranks.

Two ranks cannot show the order of a sum, since a + b is b + a: four and eight do. Shards are of one width with padding
behind the vocabulary, and ragged without. Of a few hundred rows some have another last bit in another order.
"""

from __future__ import annotations

import json
import multiprocessing
import tempfile
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xcfg.plugin.operators import load_factory

if TYPE_CHECKING:
    import torch

SIZES = (1, 2, 4, 8)
VOCABULARY = 8_209
WIDE = 8_216
ROWS = 192
ALONE = range(0, ROWS, 24)
RAGGED = {1: (8_209,), 2: (37, 8_172), 4: (1, 4_130, 4_000, 78), 8: (17, 3, 1_999, 64, 1, 3_100, 3_000, 25)}
LAYOUTS: dict[str, dict[int, tuple[int, ...]]] = {
    "padded": {size: (WIDE // size,) * size for size in SIZES},
    "ragged": RAGGED,
}
SECONDS = 240.0
NO_NUMBER = "no distribution, no number"
VOID = 4
"""The first rows of the logits, once more with a NaN in the first or last column, with +inf, and with -inf alone."""
Values = dict[str, "torch.Tensor"]


@cache
def over_ranks(factory: str, options: str, dtype: str) -> dict[str, list[str]]:
    """Return claim -> where it did not hold: `run-to-run`, `batch-invariant` and `tp-invariant` of a sharded operator.

    Beside them NO_NUMBER: that a NaN or +inf on one rank alone, or -inf on all, gives no number on any.

    factory: `module:attr`; options: its keywords as JSON; dtype: of the logits. Raises RuntimeError where a rank fails.
    """
    answers = _run(factory, options, dtype)
    found: dict[str, list[str]] = {"run-to-run": [], "batch-invariant": [], "tp-invariant": [], NO_NUMBER: []}
    for layout in LAYOUTS:
        one = answers[0][layout, 1]["together"]
        for size in SIZES:
            where = f"{layout}, {size} ranks"
            shares = [answers[rank][layout, size] for rank in range(size)]
            if not all(_same(share["together"], share["again"]) for share in shares):
                found["run-to-run"].append(where)
            if not all(_same(share["together"][list(ALONE)], share["alone"]) for share in shares):
                found["batch-invariant"].append(where)
            if not all(_same(one, share["together"]) for share in shares):
                found["tp-invariant"].append(where)
            if any(share["void"].isfinite().any() for share in shares):
                found[NO_NUMBER].append(where)
    return found


def _same(first: torch.Tensor, second: torch.Tensor) -> bool:
    from xcfg_testkit.contract.logprob import same_bits

    return same_bits(first, second)


def _run(factory: str, options: str, dtype: str) -> list[dict[tuple[str, int], Values]]:
    import torch

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["torch.distributed", "numpy", "xcfg.plugin.operators"]
    )  # imported once for all ranks
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(target=_rank, args=(rank, folder, factory, options, dtype)) for rank in range(SIZES[-1])
        ]
        for process in ranks:
            process.start()
        try:
            for process in ranks:
                process.join(SECONDS)
            codes = [process.exitcode for process in ranks]
        finally:
            for process in ranks:
                process.kill()
                process.join()
        if any(code != 0 for code in codes):  # None: it did not end in time
            raise RuntimeError(f"{factory} over {SIZES[-1]} ranks: their exit codes are {codes}")
        return [torch.load(Path(folder, f"{rank}.pt"), weights_only=False) for rank in range(SIZES[-1])]


def _rank(rank: int, folder: str, factory: str, options: str, dtype: str) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=SIZES[-1])
    groups = {size: dist.new_group(list(range(size))) for size in SIZES[1:]}
    logits, selected = _case(getattr(torch, dtype))
    found = {}
    for layout, sizes in LAYOUTS.items():
        for size, widths in sizes.items():
            if rank >= size:
                continue
            operator = load_factory(factory)(**json.loads(options))
            start = sum(widths[:rank])
            operator.place(groups.get(size), start)
            operator.vocab = VOCABULARY
            mine = slice(start, start + widths[rank])
            found[layout, size] = {
                **_scored(operator, logits[:, mine].contiguous(), selected),
                "void": operator(_void(logits)[:, mine].contiguous(), selected[:VOID]),
            }
    torch.save(found, f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def _scored(operator: Callable[..., torch.Tensor], local: torch.Tensor, selected: torch.Tensor) -> Values:
    import torch

    def each(rows: Iterable[int]) -> Any:
        return [operator(local[row : row + 1].clone(), selected[row : row + 1].clone()) for row in rows]

    together = operator(local, selected)
    return {"together": together, "again": operator(local, selected), "alone": torch.cat(each(ALONE))}


def _case(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits [ROWS, WIDE] whose padding would be seen in every sum, and ids [ROWS]."""
    import torch

    generator = torch.Generator().manual_seed(VOCABULARY)
    logits = torch.randn(ROWS, VOCABULARY, generator=generator) * 3
    selected = torch.randint(0, VOCABULARY, (ROWS,), generator=generator)
    return torch.nn.functional.pad(logits, (0, WIDE - VOCABULARY), value=12.0).to(dtype), selected


def _void(logits: torch.Tensor) -> torch.Tensor:
    """Return [VOID, WIDE] without a distribution: what is wrong lies on one rank, and its padding is as it was."""
    import torch

    rows = logits[:VOID].clone()
    rows[0, 0], rows[1, VOCABULARY - 1], rows[2, VOCABULARY // 2] = torch.nan, torch.nan, torch.inf
    rows[3, :VOCABULARY] = -torch.inf
    return rows
