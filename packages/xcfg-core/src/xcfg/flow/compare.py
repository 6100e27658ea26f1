"""The journey of a foreign dump: two log probabilities per token, judged as far as the dump attests to them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xcfg.comparison import ScoreTable, compare
from xcfg.contract import Contract, load_contract
from xcfg.dumps import DumpTable, read_table
from xcfg.errors import ArtifactError
from xcfg.flow.summary import edge_summary
from xcfg.plugin._resolve import resolve
from xcfg.plugin.manager import PluginManager
from xcfg.plugin.protocols import DumpReader
from xcfg.plugin.provide import DumpReaderDescriptor
from xcfg.schema.codec import evolve
from xcfg.schema.names import Arm, Status, exit_code
from xcfg.schema.result import Comparison
from xcfg.schema.summary import (
    RUN_SUMMARY,
    CaseSummary,
    ContractSummary,
    RunSummary,
    Seconds,
)


def choose_reader(path: Path, manager: PluginManager, name: str | None) -> tuple[str, str, DumpReader]:
    """Return the reader's name, why it was chosen, and the reader. Raises ArtifactError when none recognises it."""
    if name is not None:
        return name, "named on the command line", _make(manager.dump_reader(name).record)
    offered = {item.record.name: item.record for item in manager.dump_readers()}
    for candidate in sorted(offered):
        reader = _make(offered[candidate])
        why = reader.detect(path)
        if why:
            return candidate, why, reader
    raise ArtifactError(
        f"no reader recognises {str(path)!r}",
        hint=f"Formats here: {', '.join(sorted(offered))}. Other formats come with xcfg-dumps.",
    )


def _make(record: DumpReaderDescriptor) -> DumpReader:
    factory: Any = resolve(record.factory)
    reader: DumpReader = factory()
    return reader


@dataclass(frozen=True)
class Dump:
    """A dump that was read: the reader's name, why it was chosen, and all its tokens."""

    path: Path
    reader: str
    why: str
    table: DumpTable


def open_dump(path: Path, manager: PluginManager, *, reader: str | None = None) -> Dump:
    """Return the dump in `path`. Raises ArtifactError when it is not there, not recognised or not canonical."""
    if not path.exists():
        raise ArtifactError(f"{str(path)!r} does not exist", hint="Give a dump file that holds both log probabilities.")
    name, why, chosen = choose_reader(path, manager, reader)
    return Dump(path, name, why, read_table(chosen, path))


def compare_dump(path: Path, manager: PluginManager, *, reader: str | None = None) -> tuple[RunSummary, Comparison]:
    """Return the summary and the whole comparison of the dump in `path`."""
    return summarise(open_dump(path, manager, reader=reader))


def summarise(dump: Dump) -> tuple[RunSummary, Comparison]:
    """Return the summary and the whole comparison of a dump that was read."""
    path = dump.path
    contract = load_contract()
    comparison = judge_dump(dump.table, contract)
    case = CaseSummary(
        case_id=f"dump-{path.name}",
        attempt_id="",
        label=f"{path.name} ({dump.reader}: {dump.why})",
        status=comparison.status,
        assessment=comparison.assessment.assessment,
        reason=comparison.reason,
        assessment_reason=comparison.assessment.reason,
        resumed=False,
        threshold=comparison.threshold,
        edges={edge: edge_summary(result) for edge, result in comparison.edges.items()},
        seconds=Seconds(build=0.0, score=0.0, compare=0.0),
    )
    summary = RunSummary(
        schema_version=RUN_SUMMARY,
        experiment_id=path.name,
        exit_code=exit_code([Status(comparison.status)]),
        runtimes={"rollout": "dump", "training": "dump"},
        contract=ContractSummary(source=contract.source, version=contract.version, digest=contract.ref.digest),
        cases=(case,),
    )
    return summary, comparison


def judge_dump(table: DumpTable, contract: Contract) -> Comparison:
    """Return the comparison of a dump; without attested compute dtypes the status is UNOBSERVABLE.

    The rollout side counts as `recorded`: nobody attests that a dumped value came from decode or from prefill.
    """
    training = ScoreTable(
        arm=Arm.TRAINING.value,
        compute_dtype=table.dtypes.get("training", ""),
        logprob=table.training,
        active=table.active,
        columns=table.columns,
        owner_rank=table.rank,
    )
    recorded = ScoreTable(
        arm=Arm.RECORDED.value,
        compute_dtype=table.dtypes.get("rollout", ""),
        logprob=table.rollout,
        active=table.active,
    )
    tables = {item.arm: item for item in (training, recorded)}
    comparison = compare(tables, table.as_rollout(), contract, verdict_arm=Arm.RECORDED.value).comparison
    return evolve(comparison, unattested=table.unattested)
