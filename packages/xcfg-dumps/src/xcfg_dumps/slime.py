"""slime, miles and vime: rollout dumps and training dumps (`--save-debug-rollout-data`, `--save-debug-train-data`).

Read for the layout: THUDM/slime at 624b824a (2026-08-21, after v0.3.1), slime/observability/rollout_data_utils.py
and train_data_utils.py, slime/utils/types.py; radixark/miles at 31f1ca96 (2026-08-21, after v0.1.0),
miles/ray/rollout/debug_data.py and miles/utils/train_dump_utils.py; vllm-project/vime at 2b83ea20, the same two modules
as slime's under vime/observability, with the same layouts (its .straw.json archives are refused, see refused_layouts).

Rollout: {"rollout_id", "samples": [Sample.to_dict()]} (miles adds "metadata"). tokens is the prompt and the
response; rollout_log_probs and loss_mask have response_length entries; loss_mask None means all ones; tokens of
tools have 0.0 and mask 0. Training, format_version 2 (slime): {"samples": [...], "dp_shards"}, every per-sample
column under its plural name, sample_index for Sample.index. Training, older slime and miles: one file per rank,
{"rollout_id", "rank", "rollout_data": {column: [per sample]}, "cp_rank", "cp_size"}; a folder of them is one dump.
Ranks of one tensor-parallel group write the same samples: equal copies are one, others an error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xcfg.dumps import Folder, list_folder
from xcfg.errors import ArtifactError

from xcfg_dumps.plain import Numbers
from xcfg_dumps.ptfile import PtFile, is_pt, open_pt
from xcfg_dumps.samples import Sample, after, batches, floats, mask, number, whole

PATTERN = "*.pt"
TRAINING = {"log_probs": "training", "rollout_log_probs": "rollout"}
GATHER = (
    "Dump one step with --context-parallel-size 1, or with a slime that writes format_version 2, which gathers the "
    "slices; miles at 31f1ca96 writes each rank's slices and does not."
)


class RolloutReader:
    """Reads a rollout dump: the rollout side."""

    def detect(self, path: Path) -> str:
        """Return why the file is a rollout dump: its pickle begins with rollout_id and samples of tokens."""
        head = _head(path)
        others = _named(head, "format_version") or _named(head, "train_log_probs")
        if _named(head, "samples") and _named(head, "response_length") and not others:
            return "a torch archive with rollout_id and samples that have response_length (slime rollout dump)"
        return ""

    def read(self, path: Path) -> Iterator[dict[str, Any]]:
        """Yield batches of the rollout side. Raises ArtifactError, naming the sample."""
        file = open_pt(path)
        yield from batches(_rollout(file), path.name)


class TrainReader:
    """Reads a training dump, or a folder with one per rank: the training side, and the rollout's if it is there."""

    def detect(self, path: Path) -> str:
        """Return why the file, or the first one in a folder, is a training dump."""
        head = _head(next(iter(_files(path)), path))
        if _named(head, "format_version") and _named(head, "samples"):
            return "a torch archive with format_version, samples and dp_shards (slime training dump, version 2)"
        if _named(head, "rollout_data") and _named(head, "rank"):
            return "a torch archive with rank and rollout_data (training dump of one rank; slime before v2, miles)"
        return ""

    def folder(self, path: Path) -> Folder:
        """Return the files of all ranks."""
        return list_folder(path, (PATTERN,))

    def read(self, path: Path) -> Iterator[dict[str, Any]]:
        """Yield batches. Raises ArtifactError, naming the sample."""
        yield from batches(_unique(_training(path)), path.name)


def _head(path: Path) -> bytes:
    return open_pt(path).head() if is_pt(path) else b""


def _named(head: bytes, key: str) -> bool:
    """Whether the pickle's first bytes hold `key` as a text."""
    return b"X" + len(key).to_bytes(4, "little") + key.encode() in head


def _files(path: Path) -> list[Path]:
    return list(list_folder(path, (PATTERN,)).files) if path.is_dir() else [path]


def _document(file: PtFile, key: str, kind: type) -> tuple[dict[str, Any], Any]:
    document = file.load()
    if not isinstance(document, dict) or not isinstance(document.get(key), kind):
        keys = ", ".join(map(str, document)) if isinstance(document, dict) else type(document).__name__
        raise ArtifactError(f"{file.where} has no {key!r}; it holds {keys[:200]}")
    return document, document[key]


def _taken(samples: Numbers) -> Iterator[tuple[int, Any]]:
    """Yield the elements in order and let go of each, so that a sample's lists die with it."""
    for index in range(len(samples)):
        item, samples[index] = samples[index], None
        yield index, item


def _rollout(file: PtFile) -> Iterator[Sample]:
    _, samples = _document(file, "samples", Numbers)
    named = all(isinstance(item, dict) and item.get("index") is not None for item in samples)
    versions = _versions(samples)
    for index, record in _taken(samples):
        if not isinstance(record, dict):
            raise ArtifactError(f"{file.where}: sample {index} is no dictionary")
        sample_id = str(record["index"]) if named else str(index)
        where = f"{file.where}, sample {sample_id}"
        tokens = _array(file, record, "tokens", where, whole)
        length = number(record.get("response_length"), f"{where}: response_length")
        scores = _scores(file, record, "rollout_log_probs", length, where)
        if scores is None:
            raise ArtifactError(
                f"{where} has no rollout_log_probs",
                hint="slime's own rollout asks the engine for them; a custom one has to keep them in the Sample.",
            )
        active = _active(file, record, "loss_mask", length, len(tokens), where)
        if record.get("remove_sample"):
            active = np.zeros_like(active)
        columns = {} if versions is None else {"weight_version": np.full(len(tokens), versions[index])}
        yield Sample(sample_id, tokens, active, {"rollout": after(scores, len(tokens), where)}, columns)


def _versions(samples: Iterable[Any]) -> list[int] | None:
    """Return one weight version per sample, or None unless every sample was made under one that is a number."""
    found = []
    for record in samples:
        versions = record.get("weight_versions") if isinstance(record, dict) else None
        texts = {str(item) for item in versions} if isinstance(versions, list) else set()
        text = texts.pop() if len(texts) == 1 else ""
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            return None
        found.append(int(text))
    return found


def _training(path: Path) -> Iterator[Sample]:
    files = _files(path)
    if not files:
        raise ArtifactError(f"{str(path)!r} holds no .pt file")
    rollouts: dict[Any, str] = {}
    for item in files:
        file = open_pt(item)
        document = file.load()
        if not isinstance(document, dict):
            raise ArtifactError(f"{file.where} holds a {type(document).__name__}, not a training dump")
        rollouts.setdefault(document.get("rollout_id"), item.name)
        if len(rollouts) > 1:
            shown = ", ".join(f"{rollout!r} in {name}" for rollout, name in rollouts.items())
            raise ArtifactError(f"{str(path)!r} mixes rollouts: {shown}", hint="Keep one rollout_id per folder.")
        yield from _version_2(file, document) if "samples" in document else _per_rank(file, document)


def _version_2(file: PtFile, document: dict[str, Any]) -> Iterator[Sample]:
    version, samples = document.get("format_version"), document["samples"]
    if version != 2 or not isinstance(samples, Numbers):
        raise ArtifactError(f"{file.where} has format_version {version!r}", hint="Known: 2.")
    named = all(isinstance(item, dict) and item.get("sample_index") is not None for item in samples)
    for index, record in _taken(samples):
        if not isinstance(record, dict):
            raise ArtifactError(f"{file.where}: sample {index} is no dictionary")
        name = record["sample_index"] if named else record.get("rollout_position", index)
        yield _trained(file, record, str(name), record.get("data_parallel_rank"))


def _per_rank(file: PtFile, document: dict[str, Any]) -> Iterator[Sample]:
    columns = document.get("rollout_data")
    if not isinstance(columns, dict):
        raise ArtifactError(f"{file.where} has neither samples nor rollout_data")
    if document.get("cp_size", 1) not in (1, None):
        raise ArtifactError(
            f"{file.where} holds the slices of context parallel rank {document.get('cp_rank')!r} of "
            f"{document['cp_size']!r}",
            hint=GATHER,
        )
    lengths = _array(file, columns, "response_lengths", file.where, whole)
    names = columns.get("sample_indices")
    indices = range(len(lengths)) if names is None else _array(file, columns, "sample_indices", file.where, whole)
    wanted = ("tokens", "loss_masks", *TRAINING, "total_lengths", "entropy")
    held = {key: columns[key] for key in wanted if isinstance(columns.get(key), Numbers)}
    short = next((key for key, column in held.items() if _count(column) != len(lengths)), None)
    if short is not None or len(indices) != len(lengths):
        raise ArtifactError(
            f"{file.where}: {short or 'sample_indices'} has another length than response_lengths ({len(lengths)})"
        )
    for row, name in enumerate(indices):
        record = {key: column[row] for key, column in held.items() if key != "total_lengths"}
        record["response_lengths"] = int(lengths[row])
        yield _trained(file, record, str(int(name)), document.get("rank"))


def _count(column: Numbers) -> int:
    array = column.array()
    return len(column) if array is None else len(array)


def _trained(file: PtFile, record: Mapping[str, Any], name: str, rank: Any) -> Sample:
    where = f"{file.where}, sample {name}"
    tokens = _array(file, record, "tokens", where, whole)
    length = number(record.get("response_lengths"), f"{where}: response_lengths")
    scores = {side: _scores(file, record, key, length, where) for key, side in TRAINING.items()}
    found = {side: after(values, len(tokens), where) for side, values in scores.items() if values is not None}
    if "training" not in found:
        raise ArtifactError(
            f"{where} has no log_probs; there are {', '.join(map(str, record))}",
            hint="The last pipeline stage has them; older versions keep none under --use-rollout-logprobs.",
        )
    columns: dict[str, NDArray[Any]] = {"rank": np.full(len(tokens), number(rank, f"{where}: rank"), dtype=np.int16)}
    entropy = _scores(file, record, "entropy", length, where)
    if entropy is not None:
        columns["entropy"] = after(entropy, len(tokens), where)
    return Sample(name, tokens, _active(file, record, "loss_masks", length, len(tokens), where), found, columns)


def _array(file: PtFile, record: Mapping[str, Any], key: str, where: str, convert: Any) -> NDArray[Any]:
    if record.get(key) is None:
        raise ArtifactError(f"{where} has no {key}; there are {', '.join(map(str, record))[:300]}")
    values = file.array(record[key])
    result: NDArray[Any] = convert(record[key] if values is None else values, f"{where}: {key}")
    return result


def _scores(file: PtFile, record: Mapping[str, Any], key: str, length: int, where: str) -> NDArray[Any] | None:
    if record.get(key) is None:
        return None
    values = _array(file, record, key, where, floats)
    if len(values) != length:
        raise ArtifactError(
            f"{where}: {key} has {len(values)} values for a response of {length} tokens",
            hint=f"A slice of a context parallel group looks like this. {GATHER}",
        )
    return values


def _active(
    file: PtFile, record: Mapping[str, Any], key: str, length: int, total: int, where: str
) -> NDArray[np.bool_]:
    """Return bool [total]: the response where the loss mask says so; all of it where there is none."""
    if length >= total:
        raise ArtifactError(f"{where} has {total} tokens and a response of {length}: no prompt is left")
    chosen = np.ones(length, dtype=np.bool_)
    if record.get(key) is not None:
        chosen = _array(file, record, key, where, mask)
    if len(chosen) != length:
        raise ArtifactError(f"{where}: {key} has {len(chosen)} values for a response of {length} tokens")
    return np.concatenate([np.zeros(total - length, dtype=np.bool_), chosen])


def _unique(samples: Iterable[Sample]) -> Iterator[Sample]:
    """Yield each sample once. A copy must be equal bit for bit, its rank apart. Raises ArtifactError."""
    seen: dict[str, tuple[bytes, int]] = {}
    for sample in samples:
        rank = int(sample.columns["rank"][0])
        own = _digest(sample)
        if sample.sample_id not in seen:
            seen[sample.sample_id] = own, rank
            yield sample
            continue
        first, other = seen[sample.sample_id]
        if first != own:
            raise ArtifactError(
                f"sample {sample.sample_id!r} was written twice with different values, by ranks {other} and {rank}",
                hint="Copies of one tensor-parallel group are equal; these are slices, or ranks that disagree.",
            )


def _digest(sample: Sample) -> bytes:
    content = hashlib.sha256()
    for name, values in (("tokens", sample.token_ids), ("active", sample.active), *sorted(sample.logp.items())):
        content.update(f"{name} {values.dtype.str} {len(values)} ".encode())
        content.update(np.ascontiguousarray(values).tobytes())
    return content.digest()
