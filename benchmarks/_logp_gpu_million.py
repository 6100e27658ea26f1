"""10^6 tokens of a vocabulary of 151,936, a chunk at a time: time, peak of memory, bits that do not know the chunks.

All logits would be 283 GiB in bfloat16. Hidden states and logits are made on the card, a chunk after the other, from a
seed per chunk. What is counted is the peak of everything allocated (weights, a chunk of hidden states or logits, the
scores of all tokens), and the time of the scoring apart from that of making its input.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from _gpu_timing import Record, same_bits
from xcfg_ops_logp import triton_logits
from xcfg_ops_logp.kernels import linear, linear_tile
from xcfg_ops_logp.linear import fused
from xcfg_ops_logp.linear.reference import reference

TOKENS, DEPTH, VOCABULARY, CHUNK = 1_000_000, 4096, 151_936, 4096
Score = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _generator(chunk: int) -> torch.Generator:
    return torch.Generator(device="cuda").manual_seed(1000 + chunk)


def _ids(chunk: int) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (CHUNK,), device="cuda", generator=_generator(chunk))


def _score_all(
    record: Record, name: str, fill: Callable[[int], torch.Tensor], score: Score
) -> tuple[str, torch.Tensor]:
    """Score every token; a line to print, and the scores."""
    score(fill(0), _ids(0))  # as many rows as will be timed: few rows are another kernel
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    found = torch.empty(TOKENS, dtype=torch.float32, device="cuda")
    marks = []
    for chunk, start in enumerate(range(0, TOKENS, CHUNK)):
        count = min(CHUNK, TOKENS - start)
        rows, ids = fill(chunk)[:count], _ids(chunk)[:count]
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        found[start : start + count] = score(rows, ids)
        end.record()
        marks.append((begin, end))
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated()
    seconds = sum(begin.elapsed_time(end) for begin, end in marks) / 1000
    record.facts[name] = {"peak_bytes": peak, "beyond_inputs_bytes": peak - before, "scoring_seconds": seconds}
    record.check(f"every token has a finite score, {name}", bool(found.isfinite().all()))
    middle = len(marks) // 2
    rows, ids = fill(middle), _ids(middle)
    first = middle * CHUNK
    again = torch.cat([score(rows[at : at + 700], ids[at : at + 700]) for at in range(0, CHUNK, 700)])
    record.check(
        f"chunks of 700 give the bits of chunks of {CHUNK}, {name}", same_bits(found[first : first + CHUNK], again)
    )
    line = f"{name:28s} scoring {seconds:7.2f} s, {TOKENS / seconds:12,.0f} tokens/s, peak {peak / 2**20:8.1f} MiB"
    return f"{line}, {(peak - before) / 2**20:7.1f} MiB beyond weights and one chunk of input", found


def _logits(record: Record) -> str:
    """Logits made on the fly; they are gone when the weights come."""
    logits = torch.empty(CHUNK, VOCABULARY, dtype=torch.bfloat16, device="cuda")
    line, _ = _score_all(
        record,
        "logits, Triton",
        lambda chunk: logits.normal_(0, 4, generator=_generator(chunk)),
        lambda rows, ids: triton_logits.evaluate(rows, ids).logprob,
    )
    return line


def run(record: Record) -> list[str]:
    """Logits made on the fly through selected_logprob; hidden states through both forms with the head."""
    lines = [f"{TOKENS:,} tokens, vocabulary {VOCABULARY:,}, chunks of {CHUNK}"]
    lines.append(_logits(record))
    torch.manual_seed(11)
    weight = (torch.randn(VOCABULARY, DEPTH, device="cuda") / 21).bfloat16()
    hidden = torch.empty(CHUNK, DEPTH, dtype=torch.bfloat16, device="cuda")
    for name, form in (("head, blocks", linear.DEFAULT), ("head, tiles", linear_tile.DEFAULT)):
        line, found = _score_all(
            record,
            name,
            lambda chunk: hidden.normal_(generator=_generator(chunk)),
            lambda rows, ids, form=form: fused.evaluate(rows, weight, ids, form=form).logprob,
        )
        lines.append(line)
        hidden.normal_(generator=_generator(0))
        want = reference(hidden[:64], weight, _ids(0)[:64])
        bound = 2.0**-9 * (2 * want.logsumexp.abs() + want.logprob.abs() + 8) + 2.0**-13
        share = float(((found[:64].double() - want.logprob).abs() / bound).max())
        record.check(f"64 tokens against float64, {name}", share <= 1, share_of_bound=share)
    return lines
