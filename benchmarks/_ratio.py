"""Ratios of two costs from one run: A B A B ..., so that what else the machine does falls on both.

Wall time is what a person waits for. CPU time (this process and the children that ended) moves less with the load
of a shared machine; it counts work on several cores several times.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

Cost = tuple[float, float]
"""(wall seconds, CPU seconds)."""


@dataclass(frozen=True)
class Ratio:
    """Seconds of both, round by round; median, low and high of subject / floor per round.

    fastest: the shortest subject over the shortest floor. What else a machine does only ever adds time, so this one
    moves least where the pairs scatter.
    """

    subject: list[float]
    floor: list[float]
    median: float
    low: float
    high: float
    fastest: float

    @staticmethod
    def of(subject: list[float], floor: list[float]) -> Ratio:
        ratios = [first / second for first, second in zip(subject, floor, strict=True)]
        fastest = min(subject) / min(floor)
        return Ratio(subject, floor, statistics.median(ratios), min(ratios), max(ratios), fastest)


@dataclass(frozen=True)
class Ratios:
    """The ratio in wall time and in CPU time."""

    wall: Ratio
    cpu: Ratio


def cpu_seconds() -> float:
    """Return CPU seconds of this process, its threads, and all children that were waited for."""
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        used = resource.getrusage(who)
        total += used.ru_utime + used.ru_stime
    return total


def timed(work: Callable[[], Any]) -> Callable[[], Cost]:
    """Return a function that does `work` and returns what it cost."""

    def clocked() -> Cost:
        started, used = time.perf_counter(), cpu_seconds()
        work()
        return time.perf_counter() - started, cpu_seconds() - used

    return clocked


def alternate(subject: Callable[[], Cost], floor: Callable[[], Cost], rounds: int, *, warm: int = 1) -> Ratios:
    """Return the ratios over `rounds` pairs, every other one in reverse order; `warm` pairs are not counted."""
    pairs: list[tuple[Cost, Cost]] = []
    for number in range(-warm, rounds):
        if number % 2:
            second = floor()
            first = subject()
        else:
            first = subject()
            second = floor()
        if number >= 0:
            pairs.append((first, second))
    wall, cpu = (Ratio.of([first[at] for first, _ in pairs], [second[at] for _, second in pairs]) for at in (0, 1))
    return Ratios(wall, cpu)


def arguments(doc: str | None, rounds: int) -> argparse.ArgumentParser:
    """Return the parser that every benchmark shares: --json and --rounds."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--rounds", type=int, default=rounds, help=f"pairs that are counted (default {rounds})")
    return parser


def report(name: str, ratios: Ratios, *, as_json: bool, **facts: Any) -> None:
    """Print both ratios, the median seconds, and `facts`; the load says how busy the machine was."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    if as_json:
        print(json.dumps({"benchmark": name, **asdict(ratios), "load": load, "cpus": os.cpu_count(), **facts}))
        return
    print(f"{name} ({len(ratios.wall.subject)} pairs, load {load:.1f} on {os.cpu_count()} CPUs)")
    for kind, ratio in (("wall", ratios.wall), ("CPU", ratios.cpu)):
        subject, floor = statistics.median(ratio.subject), statistics.median(ratio.floor)
        spread = f"min {ratio.low:.3f}, max {ratio.high:.3f}; of the fastest {ratio.fastest:.3f}"
        print(f"  {kind:<4} ratio {ratio.median:.3f} ({spread}); subject {subject:.4f} s, floor {floor:.4f} s")
    for key, value in facts.items():
        if isinstance(value, dict):
            print(f"  {key}")
            for part, figure in value.items():
                print(f"    {part:<58} {figure:{'>12.4f' if isinstance(figure, float) else '>12'}}")
        else:
            print(f"  {key}: {value}")
