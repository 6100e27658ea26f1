"""Reading dumps of many tokens: rate against a floor, and the peak of memory per token.

Each format is written once, as its framework writes it, in samples of 1,000 tokens. The subject reads the file into
the table that is compared (`xcfg.open_dump`), the floor is the least that anybody does with it: json.loads of every
line for JSON, torch.load (restricted) for .pt, one numpy pass over every column for arrays. The peak is that of a
process of its own, less what it held after its imports; pages of a mapped file (.pt) count. `table` is what the
table itself takes per token. `--rounds 0` measures that process alone. `--large` does that at 10^7 tokens for the
formats of lines, which are written a record at a time: about 1 to 3 GB each, under --scratch, one after the other.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _ratio import alternate, arguments, cpu_seconds, report, timed

LENGTH, PROMPT = 1000, 200
LARGE = 10**7
LINES = ("jsonl", "nemo-rl", "prime-rl", "vllm")
FORMATS = ("jsonl", "nemo-rl", "prime-rl", "vllm", "slime-rollout", "slime-train", "npz", "safetensors", "parquet")


def samples(tokens: int) -> Iterator[tuple[int, Any, Any, Any]]:
    """Yield (index, ids int64 [1000], rollout and training float32 [1000]), the training side a little off."""
    random = np.random.default_rng(0)
    for index in range(tokens // LENGTH):
        ids = random.integers(0, 150_000, LENGTH)
        rollout = -random.exponential(1.0, LENGTH).astype(np.float32)
        yield index, ids, rollout, rollout + random.normal(0, 0.02, LENGTH).astype(np.float32)


def write_lines(path: Path, records: Iterator[dict[str, Any]]) -> None:
    with path.open("w") as stream:
        for record in records:
            stream.write(json.dumps(record) + "\n")


def canonical(tokens: int) -> Iterator[dict[str, Any]]:
    for index, ids, rollout, training in samples(tokens):
        for at in range(LENGTH):
            yield {
                "sample_id": index,
                "position": at,
                "token_id": int(ids[at]),
                "active": at >= PROMPT,
                "logp_rollout": float(rollout[at]),
                "logp_train": float(training[at]),
            }


def nemo_rl(tokens: int) -> Iterator[dict[str, Any]]:
    mask = [0.0] * PROMPT + [1.0] * (LENGTH - PROMPT)
    for index, ids, rollout, training in samples(tokens):
        yield {
            "content": ["text"],
            "input_lengths": [LENGTH],
            "token_ids": [ids.tolist()],
            "token_loss_mask": [mask],
            "sample_loss_mask": [1.0],
            "advantages": [mask],
            "generation_logprobs": [rollout.tolist()],
            "prev_logprobs": [training.tolist()],
            "idx": index,
        }


def prime_rl(tokens: int) -> Iterator[dict[str, Any]]:
    mask = [False] * PROMPT + [True] * (LENGTH - PROMPT)
    for index, ids, rollout, training in samples(tokens):
        floats = {name: training.tolist() for name in ("advantages", "mismatch_kl", "importance_ratio", "prob_delta")}
        yield {
            "schema_version": 1,
            "step": 0,
            "rank": 0,
            "export_sequence_idx": index,
            "token_ids": ids.tolist(),
            "position_ids": list(range(LENGTH)),
            "loss_mask": mask,
            "inference_logprobs": rollout.tolist(),
            "trainer_logprobs": training.tolist(),
            "entropy": training.tolist(),
            **floats,
        }


def vllm(tokens: int) -> Iterator[dict[str, Any]]:
    for index, ids, rollout, _ in samples(tokens):
        chosen = [
            {str(token): {"logprob": value, "rank": 1, "decoded_token": "x"}}
            for token, value in zip(ids[PROMPT:].tolist(), rollout[PROMPT:].tolist(), strict=True)
        ]
        output = {"index": 0, "text": "", "token_ids": ids[PROMPT:].tolist(), "logprobs": chosen}
        yield {"request_id": str(index), "prompt_token_ids": ids[:PROMPT].tolist(), "outputs": [output]}


def slime(path: Path, tokens: int, kind: str) -> None:
    import torch

    found: list[dict[str, Any]] = []
    tail = LENGTH - PROMPT
    for index, ids, rollout, training in samples(tokens):
        if kind == "slime-rollout":
            lists = {"tokens": ids.tolist(), "rollout_log_probs": rollout[PROMPT:].tolist(), "loss_mask": [1] * tail}
            found.append({"index": index, "response_length": tail, "weight_versions": ["1"], **lists})
        else:
            scores = {"log_probs": training, "rollout_log_probs": rollout}
            tensors = {name: torch.from_numpy(values[PROMPT:].copy()) for name, values in scores.items()}
            tensors |= {"tokens": torch.from_numpy(ids), "loss_masks": torch.ones(tail, dtype=torch.int32)}
            found.append({"data_parallel_rank": 0, "sample_index": index, "response_lengths": tail, **tensors})
    document: dict[str, Any] = {"rollout_id": 0, "samples": found}
    torch.save(document if kind == "slime-rollout" else {"format_version": 2, "rank": 0, **document}, path)


def columns(tokens: int) -> dict[str, Any]:
    parts = list(samples(tokens))
    ids, rollout, training = (np.concatenate([part[at] for part in parts]) for at in (1, 2, 3))
    position = np.tile(np.arange(LENGTH), len(parts))
    scores = {"logp_rollout": rollout, "logp_train": training}
    keys = {"sample_id": np.repeat(np.arange(len(parts)), LENGTH), "position": position, "token_id": ids}
    return {**keys, "active": position >= PROMPT, **scores}


def write(kind: str, folder: Path, tokens: int) -> Path:
    suffix = {"npz": "npz", "safetensors": "safetensors", "parquet": "parquet"}.get(kind, "jsonl")
    path = folder / f"dump.{'pt' if kind.startswith('slime') else suffix}"
    lines: dict[str, Callable[[int], Iterator[dict[str, Any]]]] = {
        "jsonl": canonical,
        "nemo-rl": nemo_rl,
        "prime-rl": prime_rl,
        "vllm": vllm,
    }
    if kind in lines:
        write_lines(path, lines[kind](tokens))
    elif kind.startswith("slime"):
        slime(path, tokens, kind)
    elif kind == "npz":
        np.savez(path, **columns(tokens))
    elif kind == "safetensors":
        from safetensors.numpy import save_file

        save_file(columns(tokens), path)
    else:
        from pyarrow import parquet, table

        parquet.write_table(table(columns(tokens)), path)
    return path


def floor(kind: str, path: Path) -> None:
    """The least that anybody does with the file."""
    if kind.startswith("slime"):
        import torch

        torch.load(path, weights_only=True)
    elif path.suffix == ".jsonl":
        with path.open("rb") as stream:
            for line in stream:
                json.loads(line)
    else:
        for values in arrays(path).values():
            float(np.asarray(values).sum())


def arrays(path: Path) -> Any:
    if zipfile.is_zipfile(path):
        return np.load(path)
    if path.suffix == ".safetensors":
        from safetensors.numpy import load_file

        return load_file(path)
    from pyarrow import parquet

    return {name: column.to_numpy() for name, column in zip(COLUMNS, parquet.read_table(path).columns, strict=True)}


COLUMNS = ("sample_id", "position", "token_id", "active", "logp_rollout", "logp_train")


def opened(kind: str, path: Path) -> Any:
    """What the subject does: the rows of the file, and the table where both sides are there."""
    from xcfg.dumps import read_rows, table_of
    from xcfg.plugin.operators import load_factory

    reader = load_factory(FACTORIES[kind])()
    assert reader.detect(path)
    rows = read_rows(reader, path)
    return table_of(rows) if len(rows.sides) == 2 else rows


FACTORIES = {
    "jsonl": "xcfg.dumps.jsonl:JsonlReader",
    "safetensors": "xcfg.dumps.tensors:SafetensorsReader",
    "nemo-rl": "xcfg_dumps.nemo_rl:NemoRlReader",
    "prime-rl": "xcfg_dumps.prime_rl:PrimeRlReader",
    "vllm": "xcfg_dumps.vllm_json:RequestOutputReader",
    "slime-rollout": "xcfg_dumps.slime:RolloutReader",
    "slime-train": "xcfg_dumps.slime:TrainReader",
    "npz": "xcfg_dumps.npz:NpzReader",
    "parquet": "xcfg_dumps.parquet:ParquetReader",
}


def memory(field: str) -> int:
    """Return VmRSS (now) or VmHWM (the peak since exec) of this process, in bytes; Linux only."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def peak(kind: str, path: Path) -> None:
    """In a process of its own: print the peak above what the imports took, and the bytes of the result."""
    import xcfg.dumps
    from xcfg.plugin.operators import load_factory

    load_factory(FACTORIES[kind])
    if kind == "parquet":
        import pyarrow.parquet  # noqa: F401
    before, started = memory("VmRSS"), cpu_seconds()
    found = opened(kind, path)
    seconds = cpu_seconds() - started
    after = memory("VmHWM")
    if isinstance(found, xcfg.dumps.Rows):
        held = list(found.columns.values())
    else:
        held = [found.training, found.rollout, found.active, found.token_ids, found.positions, found.weight_version]
        held += [*found.columns.values(), *([] if found.rank is None else [found.rank])]
    print(json.dumps({"peak": after - before, "table": sum(values.nbytes for values in held), "seconds": seconds}))


def main() -> None:
    if sys.argv[1:2] == ["--peak"]:
        peak(sys.argv[2], Path(sys.argv[3]))
        return
    parser = arguments(__doc__, 3)
    parser.add_argument("--tokens", type=int, default=10**6)
    parser.add_argument("--format", dest="formats", action="append", choices=FORMATS)
    parser.add_argument("--large", action="store_true", help="10^7 tokens of the formats of lines, no floor")
    parser.add_argument("--scratch", type=Path, help="where the files are written, in place of the temporary folder")
    given = parser.parse_args()
    if given.large:
        given.tokens, given.rounds, given.formats = LARGE, 0, given.formats or LINES
    for kind in given.formats or FORMATS:
        with tempfile.TemporaryDirectory(dir=given.scratch) as scratch:
            path = write(kind, Path(scratch), given.tokens)
            command = [sys.executable, __file__, "--peak", kind, str(path)]
            found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
            facts = {
                "tokens": given.tokens,
                "file_bytes_per_token": round(path.stat().st_size / given.tokens, 1),
                "peak_bytes_per_token": round(found["peak"] / given.tokens, 1),
                "table_bytes_per_token": round(found["table"] / given.tokens, 1),
                "tokens_per_cpu_second": round(given.tokens / found["seconds"]),
            }
            if not given.rounds:
                print(json.dumps({"benchmark": f"read_dump {kind}", **facts}))
                continue
            ratio = alternate(
                timed(lambda kind=kind, path=path: opened(kind, path)),
                timed(lambda kind=kind, path=path: floor(kind, path)),
                given.rounds,
            )
            report(f"read_dump {kind}", ratio, as_json=given.json, **facts)


if __name__ == "__main__":
    main()
