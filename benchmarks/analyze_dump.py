"""`xcfg analyze FILE` in a fresh interpreter against reading the same file and one numpy pass in another one.

The dump has drift of two bfloat16 sides and a bias on one training rank in four. Exit code 1 when a run does not name
`some-ranks`, or when torch is imported on the way. `--tokens 10000000 --format safetensors` gives rate and peak memory.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from _ratio import alternate, arguments, report, timed
from safetensors.numpy import save_file

LENGTH = 500
READ = {
    "safetensors": "from safetensors.numpy import load_file; t = load_file(sys.argv[1]); "
    "a, b, m = t['logp_train'], t['logp_rollout'], t['active']",
    "jsonl": "import json; rows = [json.loads(line) for line in open(sys.argv[1])]; "
    "a = np.array([r['logp_train'] for r in rows]); b = np.array([r['logp_rollout'] for r in rows]); "
    "m = np.array([r['active'] for r in rows])",
}
PASS = "d = np.where(m, a.astype('f8') - b, 0.0); print(int(m.sum()), d.mean(), np.abs(d).max())"


def write(folder: Path, tokens: int, form: str) -> Path:
    """Write a dump of `tokens` tokens in sequences of 500 and return its path."""
    rng = np.random.default_rng(1)
    place = np.arange(tokens, dtype=np.int64)
    sample, position = place // LENGTH, place % LENGTH + 1
    logp = -rng.exponential(1.5, tokens)
    drift = rng.normal(0, 0.06, tokens) * np.sqrt(1 - np.exp(logp))
    rank = sample % 4
    columns = {
        "sample_id": sample,
        "position": position,
        "token_id": rng.integers(0, 49152, tokens),
        "active": position > 20,
        "logp_rollout": logp.astype(np.float32),
        "logp_train": (logp + drift + 0.2 * (rank == 1)).astype(np.float32),
        "rank": rank,
        "weight_version": sample % 3,
        "entropy": rng.exponential(1.5, tokens).astype(np.float32),
        "logsumexp": rng.normal(16, 2, tokens).astype(np.float32),
    }
    path = folder / f"dump.{form}"
    if form == "safetensors":
        save_file(columns, path)
        return path
    lists = {name: values.tolist() for name, values in columns.items()}
    with path.open("w") as stream:
        for row in zip(*lists.values(), strict=True):
            stream.write(json.dumps(dict(zip(lists, row, strict=True))) + "\n")
    return path


def product(path: Path) -> dict:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "xcfg", "analyze", str(path), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 1:
        raise SystemExit(f"xcfg analyze ended with {done.returncode}: {done.stderr[-500:]}")
    return {
        "document": json.loads(done.stdout),
        "torch": any(line.endswith("| torch") for line in done.stderr.splitlines()),
    }


def main() -> int:
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--format", choices=sorted(READ), default="jsonl")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        path = write(Path(scratch), given.tokens, given.format)
        seen = product(path)
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        named = [item["name"] for item in seen["document"]["signatures"]]
        run = [sys.executable, "-m", "xcfg", "analyze", str(path)]
        floor = [sys.executable, "-c", f"import sys, numpy as np; {READ[given.format]}; {PASS}", str(path)]

        def quiet(command: list[str], allowed: tuple[int, ...]) -> None:
            if subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode not in allowed:
                raise SystemExit(f"{command} failed")

        ratios = alternate(timed(lambda: quiet(run, (1,))), timed(lambda: quiet(floor, (0,))), given.rounds)
        seconds = sorted(ratios.wall.subject)[len(ratios.wall.subject) // 2]
        report(
            f"analyze_dump {given.format}",
            ratios,
            as_json=given.json,
            tokens=given.tokens,
            mib=round(os.path.getsize(path) / 2**20, 1),
            named=", ".join(named),
            torch_imported=seen["torch"],
            tokens_per_second=round(given.tokens / seconds),
            peak_mib=round(peak),
        )
    return 0 if named == ["some-ranks"] and not seen["torch"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
