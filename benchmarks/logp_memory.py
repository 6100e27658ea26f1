"""What a selected log probability holds at its peak, per chunk and per row, and what that makes for 10^6 tokens.

Each `selected_logprob` of xcfg-ops-logp that runs on a CPU scores bfloat16 logits of the whole vocabulary, at several
counts of rows. Every row is the same memory (stride 0), so that the logits cost nothing and what is seen is what the
operator itself allocates: the running maximum over torch's allocations and releases. The peak grows by what is kept per
row, the rest is one chunk; a straight line through the counts says what 10^6 rows hold. The fit must be exact to 1 %.
"""

from __future__ import annotations

import argparse
import json
import platform

import torch
from xcfg.plugin.operators import load_factory
from xcfg_ops_logp.plugin import xcfg_operator_backends
from xcfg_testkit.cost import measure

TOKENS = 1_000_000
CLOSE = 0.01


def main() -> int:
    """Measure and print; 1 where a peak is no straight line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--chunk-rows", type=int, default=16)
    parser.add_argument("--rows", type=int, nargs=3, default=[32, 64, 96], help="three multiples of --chunk-rows")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    base = (torch.randn(1, options.vocabulary, generator=torch.Generator().manual_seed(0)) * 4).bfloat16()
    rows = []
    for item in xcfg_operator_backends():
        if item.operation != "selected_logprob" or "cpu" not in item.devices or item.diagnostic_only:
            continue
        operator = load_factory(item.factory)(chunk_rows=options.chunk_rows)
        peaks = []
        for count in options.rows:
            selected = torch.zeros(count, dtype=torch.int64)
            peaks.append(measure(operator, base.expand(count, -1), selected).peak_bytes)
        first, middle, last = options.rows
        per_row = (peaks[2] - peaks[0]) / (last - first)
        chunk = peaks[0] - per_row * first
        rows.append(
            {
                "backend": item.backend_id,
                "peaks": dict(zip(map(str, options.rows), peaks, strict=True)),
                "bytes_per_row": per_row,
                "chunk_bytes": chunk,
                "copies_of_a_chunk": chunk / (options.chunk_rows * options.vocabulary * 4),
                "bytes_at_a_million": chunk + per_row * TOKENS,
                "straight": abs(chunk + per_row * middle - peaks[1]) <= CLOSE * peaks[1],
            }
        )
    found = {
        "vocabulary": options.vocabulary,
        "chunk_rows": options.chunk_rows,
        "torch": torch.__version__,
        "machine": platform.machine(),
        "backends": rows,
    }
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        print(f"vocabulary {options.vocabulary:,}, {options.chunk_rows} rows at a time, torch {torch.__version__}")
        for row in rows:
            print(
                f"{row['backend']:32} {row['chunk_bytes'] / 2**20:7.1f} MiB a chunk"
                f" = {row['copies_of_a_chunk']:.2f} float32 copies, {row['bytes_per_row']:5.0f} bytes a row,"
                f" {row['bytes_at_a_million'] / 2**20:6.1f} MiB for 10^6 rows"
                f"{'' if row['straight'] else '  NO STRAIGHT LINE'}"
            )
    return 0 if all(row["straight"] for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
