"""Selected log probability on one GPU: correctness, bits, and times against the floor of reading or multiplying once.

    python benchmarks/selected_logprob_gpu.py [--json PATH] [--rounds 30] [--defaults] [--parts logits,head,tiles,...]

Needs torch with CUDA and Triton; Liger and vLLM are measured where they can be imported. Each part runs in a process
of its own, with a time limit, so that a variant that crashes the compiler takes no other part with it. Prints tables
and writes everything as JSON. Exits 1 where a check of values or bits failed, or a part that is not
optional gave no result; 2 without a card.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
LIMITS = {"logits": 190, "head": 140, "tiles": 110, "million": 60, "specialized": 50}
"""Seconds per part. The variants of the last one are optional: where it gives no record (the compiler crashed or hung)
that is reported and fails nothing; a failed check does."""


def run_part(part: str, rounds: int, path: Path, *, defaults: bool) -> int:
    """Run one part here; write its record, also when it breaks off."""
    sys.path[:0] = [
        str(HERE),
        *(str(HERE.parent / "packages" / name / "src") for name in ("xcfg-core", "xcfg-ops-logp")),
    ]
    timing = importlib.import_module("_gpu_timing")
    record = timing.Record()
    lines: list[str] = []

    def work() -> None:
        if part == "logits":
            lines.extend(importlib.import_module("_logp_gpu_logits").run(record, rounds, defaults=defaults))
            return
        if part == "million":
            lines.extend(importlib.import_module("_logp_gpu_million").run(record))
            return
        head = importlib.import_module("_logp_gpu_head")
        if part == "head":
            lines.extend(head.run(record, rounds, defaults=defaults))
        else:
            variants = head.TILES if part == "tiles" else head.SPECIALIZED
            if defaults:
                variants = {name: tiles for name, tiles in variants.items() if tiles == head.DEFAULT_TILES}
            lines.extend(head.run_tiles(record, rounds, variants))

    record.attempt(f"part {part}", work)
    failed = sum(not check["ok"] for check in record.checks)
    path.write_text(json.dumps({"card": timing.card(), **record.to_json(), "table": lines}, indent=1))
    print("\n".join(lines))
    print(f"{part}: {len(record.checks)} checks, {failed} failed", flush=True)
    return 1 if failed else 0


def main() -> int:
    """Run the parts one after the other and gather their records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--defaults", action="store_true", help="default shapes and peers only")
    parser.add_argument("--parts", default=",".join(LIMITS))
    parser.add_argument("--part", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        return run_part(arguments.part, arguments.rounds, arguments.json, defaults=arguments.defaults)
    if not importlib.import_module("torch").cuda.is_available():
        print("torch finds no CUDA device here; nothing was measured", file=sys.stderr)
        return 2
    found: dict[str, Any] = {}
    bad: list[str] = []
    absent: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for part in arguments.parts.split(","):
            path = Path(folder) / f"{part}.json"
            command = [sys.executable, __file__, "--part", part, "--rounds", str(arguments.rounds), "--json", str(path)]
            command += ["--defaults"] * arguments.defaults
            begin = time.monotonic()
            try:
                code: int | str = subprocess.run(command, timeout=LIMITS[part], check=False).returncode
            except subprocess.TimeoutExpired:
                code = f"stopped after {LIMITS[part]} s"
            found[part] = json.loads(path.read_text()) if path.exists() else {}
            found[part] |= {"exit": code, "seconds": time.monotonic() - begin}
            print(f"== {part}: exit {code}, {found[part]['seconds']:.0f} s", flush=True)
            if part == "specialized" and not path.exists():
                absent.append(part)
            elif code:
                bad.append(part)
            if arguments.json:
                arguments.json.write_text(json.dumps(found, indent=1))
    print(f"FAILED: {', '.join(bad)}" if bad else "all checks that ran held")
    print(f"no result: {', '.join(absent)}" if absent else "every part gave a result")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
