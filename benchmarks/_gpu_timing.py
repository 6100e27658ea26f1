"""Times of GPU work: CUDA events, the L2 cache flushed before each repetition, cases taken in turn, medians and spread.

Every case runs once per round, so that what the card does meanwhile (clocks, power) falls on all of them. A flush
writes four times the L2 cache; the host queues the next case while it runs, so launch latency does not count unless a
case has more launches than the flush can hide.
"""

from __future__ import annotations

import platform
import statistics
import sys
import traceback
from collections.abc import Callable
from importlib import metadata
from typing import Any

import torch

Case = Callable[[], Any]


class Record:
    """What one part of a benchmark found; `checks` decide the exit code."""

    def __init__(self) -> None:
        self.checks: list[dict[str, Any]] = []
        self.times: dict[str, dict[str, Any]] = {}
        self.facts: dict[str, Any] = {}

    def check(self, name: str, ok: bool, **detail: Any) -> None:
        """Keep one check and print it where it failed."""
        self.checks.append({"name": name, "ok": bool(ok), **detail})
        if not ok:
            print(f"FAILED {name}: {detail}", flush=True)

    def attempt(self, name: str, action: Callable[[], None]) -> None:
        """Run checks that may raise; an exception is a failed check."""
        try:
            action()
        except Exception as error:  # noqa: BLE001 - one broken case must not hide the others
            traceback.print_exc(limit=4)
            self.check(name, False, error=f"{type(error).__name__}: {str(error)[:400]}")

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"checks": self.checks, "times": self.times, "facts": self.facts}


def card() -> dict[str, Any]:
    """The card and the versions."""
    properties = torch.cuda.get_device_properties(0)
    versions = {}
    for name in ("torch", "triton", "liger-kernel", "vllm"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return {
        "card": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "l2_bytes": properties.L2_cache_size,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "versions": versions,
    }


def measure(record: Record, group: str, cases: dict[str, Case], *, rounds: int, warm: int = 3) -> None:
    """Time `cases`, interleaved; entries `group/name` of record.times, in milliseconds and bytes."""
    flush = torch.empty(4 * torch.cuda.get_device_properties(0).L2_cache_size, dtype=torch.int8, device="cuda")
    alive: dict[str, Case] = {}
    for name, case in cases.items():
        entry: dict[str, Any] = {}
        record.times[f"{group}/{name}"] = entry
        try:
            for _ in range(warm):
                case()
            torch.cuda.synchronize()
            entry["extra_bytes"] = extra_memory(case)
            alive[name] = case
        except Exception as error:  # noqa: BLE001 - a variant that does not compile is a result
            entry["error"] = f"{type(error).__name__}: {str(error)[-300:]}"
            print(f"{group}/{name}: {entry['error']}", file=sys.stderr, flush=True)
    marks: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in alive}
    names = list(alive)
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)] if names else ():
            flush.zero_()
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            alive[name]()
            end.record()
            marks[name].append((begin, end))
        torch.cuda.synchronize()
    for name, pairs in marks.items():
        times = sorted(begin.elapsed_time(end) for begin, end in pairs)
        deciles = statistics.quantiles(times, n=10) if len(times) > 1 else times * 2
        record.times[f"{group}/{name}"] |= {
            "median_ms": statistics.median(times),
            "p10_ms": deciles[0],
            "p90_ms": deciles[-1],
            "min_ms": times[0],
            "rounds": len(times),
        }


def extra_memory(case: Case) -> int:
    """Bytes allocated at the peak of one run beyond what is allocated before it, outputs included."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    case()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Equal as integers: NaN equals itself, 0 and -0 differ."""
    width = {2: torch.int16, 4: torch.int32, 8: torch.int64}[left.element_size()]
    return left.dtype == right.dtype and torch.equal(left.contiguous().view(width), right.contiguous().view(width))


def table(times: dict[str, dict[str, Any]], group: str, floor_ms: float, *, inverse: bool) -> list[str]:
    """Lines: median, 10-90 %, ratio (floor / time where inverse, else time / floor), MiB."""
    lines = []
    for key, entry in times.items():
        if not key.startswith(group + "/"):
            continue
        name = key.removeprefix(group + "/")
        if "median_ms" not in entry:
            lines.append(f"{name:44s} not run: {entry.get('error', '')[:60]}")
            continue
        ratio = floor_ms / entry["median_ms"] if inverse else entry["median_ms"] / floor_ms
        entry["ratio"] = ratio
        lines.append(
            f"{name:44s} {entry['median_ms']:8.3f} ms  {entry['p10_ms']:8.3f}..{entry['p90_ms']:<8.3f}"
            f" ratio {ratio:6.3f}  {entry['extra_bytes'] / 2**20:9.1f} MiB"
        )
    return lines
