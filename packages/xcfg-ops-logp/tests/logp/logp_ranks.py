"""Real processes: eight ranks that each run a function of this module in groups of 1, 2, 4 and 8.

Over gloo on the CPU, or over NCCL on a card. One card serves all ranks then: each is given a host name of its own,
without which NCCL refuses two ranks on one device, so that they talk over sockets.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from xcfg.plugin.operators import load_factory
from xcfg_ops_logp.matrix.capture import Capture
from xcfg_ops_logp.sharded.tree import Tree

WORLD = 8
SIZES = (1, 2, 4, 8)
ROWS = 5
DEVICE = {"gloo": "cpu", "nccl": "cuda:0"}
ALONE = tuple(range(3, 192, 19))
"""Rows that are also scored alone, at all places of a buffer."""
LAYOUTS: dict[str, tuple[int, dict[int, list[int]]]] = {
    "vllm 151936": (151_936, {size: [151_936 // size] * size for size in SIZES}),
    "megatron 152064": (151_936, {size: [152_064 // size] * size for size in SIZES}),
    "49152": (49_152, {size: [49_152 // size] * size for size in SIZES}),
    "512": (512, {size: [512 // size] * size for size in SIZES}),
    "500 in 512": (500, {size: [512 // size] * size for size in SIZES}),
    "500 in 128 each": (500, {size: [max(128, -(-500 // (128 * size)) * 128)] * size for size in SIZES}),
    "500 ragged": (500, {1: [500], 2: [37, 463], 4: [1, 130, 256, 113], 8: [17, 3, 99, 64, 1, 100, 200, 16]}),
    "2 padded": (2, {size: [16] * size for size in SIZES}),
    "1 padded": (1, {size: [1] * size for size in SIZES}),
}
"""Name -> (real entries, columns of each rank per tensor-parallel size). Columns beyond the entries hold padding."""


def case(vocabulary: int, padded: int, dtype: torch.dtype, rows: int = ROWS) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [rows, padded] with the padding at 7, and ids; a row of ties, one with -inf, one of large magnitude."""
    generator = torch.Generator().manual_seed(vocabulary)
    logits = torch.randn(rows, vocabulary, generator=generator) * 4
    logits[1, :: max(1, vocabulary // 7)] = 11.0
    logits[2, 1::2] = -torch.inf
    logits[3] += 3e4
    logits[4] = torch.where(logits[4] > 0, 0.0, -0.0)
    selected = torch.randint(0, vocabulary, (rows,), generator=generator)
    selected[0], selected[2] = vocabulary - 1, 0
    padded_logits = torch.nn.functional.pad(logits, (0, padded - vocabulary), value=7.0).to(dtype)
    device = DEVICE[dist.get_backend()] if dist.is_initialized() else "cpu"
    return padded_logits.to(device), selected.to(device)


def scored(operator: Any, group: Any, widths: list[int], rank: int, vocabulary: int, dtype: torch.dtype) -> Any:
    """Values and gradient of this rank's columns; the loss weighs all three outputs."""
    logits, selected = case(vocabulary, sum(widths), dtype)
    start = sum(widths[:rank])
    operator.place(group, start)
    operator.vocab = vocabulary
    local = logits[:, start : start + widths[rank]].clone().requires_grad_()
    values = operator.values(local, selected)
    weights = torch.arange(1, ROWS + 1, device=local.device)
    loss = (weights * (values.logprob - 2 * values.logsumexp + 3 * values.entropy)).sum()
    loss.backward()
    detached = tuple(item.detach().cpu() for item in values)
    return {"values": detached, "gradient": local.grad.cpu(), "summed": operator.summed}


class Shardwise(Tree):
    """A planted fault: every rank adds up what is its own, then ranks are added one after the other."""

    backward = False

    def merged(self, shares):
        sums = []
        for share in shares:
            own = torch.zeros_like(share[0][1])
            for _, value in share:
                own = own + value
            sums.append(own)
        total = torch.zeros_like(sums[0])
        for own in reversed(sums) if self.backward else sums:
            total = total + own
        return total


class Backwards(Shardwise):
    """The same fault, the ranks from the last to the first."""

    backward = True


class Swapped(Tree):
    """A change that is none: the order in which ranks are told apart is not the order of the sum."""

    def merged(self, shares):
        return super().merged(shares[::-1])


def many_rows(kind: str, options: dict[str, Any], layout: str, rows: int, groups: Any) -> Any:
    """Log probabilities of more rows, since one row in ten shows a changed last digit of its sum.

    {size: [rows]}; with "again" the same once more, with "alone" the rows of ALONE one by one.
    """
    vocabulary, sizes = LAYOUTS[layout]
    made = globals().get(kind) or load_factory(kind)
    found = {}
    for size, (group, rank) in groups.items():
        logits, selected = case(vocabulary, sum(sizes[size]), torch.float32, rows)
        operator = made(**options)
        start = sum(sizes[size][:rank])
        operator.place(group, start)
        operator.vocab = vocabulary
        local = logits[:, start : start + sizes[size][rank]]
        found[size] = operator(local, selected).cpu()
        if kind in globals():  # a plant, looked at once
            continue
        found["again", size] = operator(local, selected).cpu()
        alone = [operator(local[row : row + 1], selected[row : row + 1]) for row in ALONE]
        found["alone", size] = torch.cat(alone).cpu()
    return found


def every_size(factory: str, options: dict[str, Any], layouts: list[str], dtype: str, groups: Any) -> Any:
    """Score one backend at all sizes this rank is in: {(layout, size): result}."""
    made = load_factory(factory)
    found = {}
    for layout in layouts:
        vocabulary, sizes = LAYOUTS[layout]
        for size, (group, rank) in groups.items():
            operator = made(**options)
            found[layout, size] = scored(operator, group, sizes[size], rank, vocabulary, getattr(torch, dtype))
    return found


def refused(widths: list[int], groups: Any) -> str:
    """What a wrong tiling is answered with, on this rank of four."""
    if 4 not in groups:
        return ""
    group, rank = groups[4]
    operator = Tree()
    operator.place(group, 100 * rank)
    try:
        operator(torch.zeros(1, widths[rank]), torch.zeros(1, dtype=torch.int64))
    except Exception as error:  # noqa: BLE001 - the refusal is the answer
        return str(error)
    return ""


def captured(widths: list[int], starts: list[int], groups: Any) -> Any:
    """What the capture of a debug matrix keeps of one call on this rank of four."""
    if 4 not in groups:
        return None
    group, rank = groups[4]
    logits, selected = case(500, 512, torch.float32)
    edge = sum(widths[:rank])
    with tempfile.TemporaryDirectory() as folder:
        capture = Capture(folder=folder, factory="xcfg_ops_logp.reference:build", options="{}")
        capture.place(group, starts[rank])
        capture.vocab = 500
        capture(logits[:, edge : edge + widths[rank]], selected)
        (file,) = Path(folder).glob("*/*.pt")
        return {**torch.load(file), "summed": capture.summed}


def _main(
    rank: int,
    folder: str,
    jobs: list[tuple[str, tuple[Any, ...]]],
    world: int,
    backend: str,
    algorithm: str,
    wait: float,
) -> None:
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(wait - 10)  # a rank that hangs says where
    if backend == "nccl":
        os.environ |= {"NCCL_ALGO": algorithm} if algorithm else {}
        os.environ |= {"NCCL_HOSTID": f"rank-{rank}", "NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo"}
        torch.cuda.set_device(DEVICE[backend])
    card = torch.device(DEVICE[backend]) if backend == "nccl" else None
    where = f"file://{folder}/rendezvous"
    dist.init_process_group(backend, init_method=where, rank=rank, world_size=world, device_id=card)
    groups: dict[int, tuple[Any, int]] = {}
    for size in SIZES:
        if size > world:
            continue
        group = dist.new_group(list(range(size))) if size > 1 else None
        if rank < size:
            groups[size] = (group, rank)
    found = [globals()[name](*arguments, groups) for name, arguments in jobs]
    torch.save(found, f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def run(
    folder: Path,
    jobs: list[tuple[str, tuple[Any, ...]]],
    world: int = WORLD,
    backend: str = "gloo",
    algorithm: str = "",
    wait: float = 280.0,
) -> list[list[Any]]:
    """Run the named functions in `world` processes; return what each rank answered, job by job.

    algorithm: NCCL_ALGO, where not NCCL's choice. wait: seconds that a rank is given; one that hangs says where.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["logp_ranks"])
    ranks = [
        context.Process(target=_main, args=(rank, str(folder), jobs, world, backend, algorithm, wait))
        for rank in range(world)
    ]
    for process in ranks:
        process.start()
    try:
        for process in ranks:
            process.join(wait)
        codes = [process.exitcode for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert codes == [0] * world, f"exit codes of the ranks: {codes}"
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(world)]


def whole(found: list[Any], layout: str, size: int) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """Values of rank 0, which all ranks must share, and the gradient of all columns, without the padding."""
    shares = [found[rank][layout, size] for rank in range(size)]
    for share in shares[1:]:
        for mine, first in zip(share["values"], shares[0]["values"], strict=True):
            assert same(mine, first), "two ranks have two values"
    vocabulary = LAYOUTS[layout][0]
    gradient = torch.cat([share["gradient"] for share in shares], dim=-1)
    assert not gradient[:, vocabulary:].any(), "padding has a gradient"
    return shares[0]["values"], gradient[:, :vocabulary]


def same(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Equality of bits."""
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[first.element_size()]
    return first.dtype == second.dtype and torch.equal(first.contiguous().view(kind), second.contiguous().view(kind))


def differing(found: list[Any], layout: str) -> list[int]:
    """Sizes whose values or gradient have other bits than one rank's."""
    base = whole(found, layout, 1)
    return [size for size in SIZES[1:] if size <= len(found) and not all(_pairs(base, whole(found, layout, size)))]


def _pairs(first: Any, second: Any) -> Iterator[bool]:
    for mine, other in zip((*first[0], first[1]), (*second[0], second[1]), strict=True):
        yield same(mine, other)
