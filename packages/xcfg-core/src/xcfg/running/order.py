"""The order in which side scores run: engines are built as rarely as their devices allow."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from xcfg.running.launch import LaunchSpec

T = TypeVar("T")


def order_scores(items: Sequence[T], launch_of: Callable[[T], LaunchSpec], alive: Collection[str] = ()) -> list[T]:
    """Return `items` so that each worker is built once: equal launches together, else in the given order.

    Where any two launches of different sides share an accelerator, all scores of the side that comes first
    run before the others. Launches whose worker is alive (their keys in `alive`) come before those that need a
    new one. Scores that want a fresh process come last among their equals, since each ends a worker. What has to
    be last of all is, even where that builds a worker again.
    """
    launches = [launch_of(item) for item in items]
    keys = [launch.key for launch in launches]
    by_key: dict[str, LaunchSpec] = {}
    sides: dict[str, int] = {}
    for key, launch in sorted(zip(keys, launches, strict=True), key=lambda pair: pair[0] not in alive):
        by_key.setdefault(key, launch)
        sides.setdefault(launch.spec.side, len(sides))
    groups = {key: index for index, key in enumerate(by_key)}
    apart = _sides_collide(list(by_key.values()))
    ranking = [
        (launch.last, sides[launch.spec.side] if apart else 0, groups[key], launch.fresh, index)
        for index, (key, launch) in enumerate(zip(keys, launches, strict=True))
    ]
    return [items[rank[-1]] for rank in sorted(ranking)]


def _sides_collide(launches: list[LaunchSpec]) -> bool:
    occupied = [launch for launch in launches if launch.cuda]
    return any(
        first.spec.side != second.spec.side and first.overlaps(second)
        for index, first in enumerate(occupied)
        for second in occupied[index + 1 :]
    )
