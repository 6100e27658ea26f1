"""Peak memory does not grow with the number of tokens: of every registered backend that runs on a CPU.

Two instruments that share nothing: torch's own record of what it allocates, and the operating system's resident peak.
Figures for 10^6 tokens are those of benchmarks/logp_memory.py, which fits the same line.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from hard_rows import LINEAR, backends, named
from xcfg.plugin.operators import load_factory
from xcfg_testkit import cost

ENTRIES, CHUNK = 32_768, 4
FEW, MANY = 8, 64
KEPT = 64
"""Bytes that a backend may keep of a row: what it returns, what it gathers, and a sort of it; a row has 65,536."""

BOUNDED_BY = {"xcfg.ablation_linear_logp": {"materialization": "chunked", "chunk_size": CHUNK}}
"""Backends whose rows at a time are an axis, so that by default they take all; the others have `chunk_rows`."""


def peak(function, rows: int, *, head: bool) -> int:
    """Return the most that one call allocates; all rows lie in the same memory, so that inputs cost nothing."""
    one = torch.randn(1, 4 if head else ENTRIES, generator=torch.Generator().manual_seed(rows)).bfloat16()
    return cost.measure(function, one.expand(rows, -1), torch.zeros(rows, dtype=torch.int64)).peak_bytes


def of(operator, *, head: bool):
    """Return the operator as a function of rows and ids; a head's weights are the same for every number of rows."""
    if not head:
        return operator
    weight = torch.randn(ENTRIES, 4, generator=torch.Generator().manual_seed(0)).bfloat16()
    return lambda hidden, ids: operator(hidden, weight, ids)


@pytest.mark.parametrize("backend", backends(device="cpu"), ids=named)
def test_the_peak_does_not_grow_with_the_tokens(backend):
    """If this fails, 10^6 tokens need memory for more than a chunk of their logits."""
    bound = BOUNDED_BY.get(backend.backend_id, {"chunk_rows": CHUNK})
    assert bound.keys() <= {item.name for item in backend.options}, "nothing bounds the memory of this backend"
    head = backend.operation == LINEAR
    function = of(load_factory(backend.factory)(**bound), head=head)
    few, many = (peak(function, rows, head=head) for rows in (FEW, MANY))
    assert few >= CHUNK * ENTRIES * 2, "the measurement sees no chunk at all"
    assert many - few <= KEPT * (MANY - FEW), f"{(many - few) / (MANY - FEW):.0f} bytes for each further row"


@pytest.mark.parametrize("plant", ["every chunk is kept", "one copy of everything", "a byte for each entry"])
def test_growth_that_was_planted_is_seen(plant):
    """If this fails, the test above cannot see a backend whose memory grows with the tokens."""

    def grows(logits, selected):
        kept = [logits.bool()] if plant == "a byte for each entry" else []
        kept += [logits.float()] if plant == "one copy of everything" else []
        found = []
        for rows, ids in zip(logits.split(CHUNK), selected.split(CHUNK), strict=True):
            wide = rows.float().log_softmax(-1)
            kept += [wide] if plant == "every chunk is kept" else []
            found.append(wide.gather(-1, ids[:, None])[:, 0])
        assert kept
        return torch.cat(found)

    few, many = (peak(grows, rows, head=False) for rows in (FEW, MANY))
    assert many - few > KEPT * (MANY - FEW)


RESIDENT = """
import resource, sys, torch
from xcfg.plugin.operators import load_factory
torch.set_num_threads(1)
base = torch.randn(1, 151_936).bfloat16()
operator = load_factory(sys.argv[1])(chunk_rows=8)
def score(rows):
    operator(base.expand(rows, -1), torch.zeros(rows, dtype=torch.int64))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(score(16), score(256))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux")
@pytest.mark.parametrize("factory", ["xcfg_ops_logp.reference:build", "xcfg_ops_logp.sharded.tree:Tree"])
def test_the_resident_peak_does_not_grow_either(factory):
    """If this fails, memory that torch does not record grows with the tokens: 240 rows more are 139 MiB in float32."""
    done = subprocess.run(
        [sys.executable, "-c", RESIDENT, factory], capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr[-2000:]
    few, many = (int(word) * 1024 for word in done.stdout.split())
    assert many - few < 240 * 151_936, "a byte for each further logit"
