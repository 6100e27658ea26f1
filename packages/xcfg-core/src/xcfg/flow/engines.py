"""What the runs of one journey share: living workers, and the memory of what they have made."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from xcfg.flow.options import RunOptions
from xcfg.flow.scratch import scratch_folder
from xcfg.running.pool import WorkerPool


@dataclass(frozen=True)
class Engines:
    """Workers that outlive one run of several.

    scored, judged: keys of the side scores and ids of the cases that these runs have made; they are made once, also
    where nothing older may be resumed.
    """

    pool: WorkerPool
    scored: set[str] = field(default_factory=set)
    judged: set[str] = field(default_factory=set)


@contextlib.contextmanager
def engines(options: RunOptions) -> Iterator[Engines]:
    """Give a pool without workers, by the limits of `options`; at the end every worker and the scratch are gone."""
    with scratch_folder() as scratch:
        pool = WorkerPool(
            scratch,
            max_alive=options.max_workers,
            memory_budget=options.memory_budget,
            build_timeout=options.build_timeout,
            score_timeout=options.score_timeout,
            on_event=options.on_event,
            forkserver=True,
        )
        try:
            yield Engines(pool)
        finally:
            pool.close()
