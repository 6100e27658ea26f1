"""The journey of a foreign dump: two log probabilities per token, judged as far as the dump attests to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from xcfg.comparison import ScoreTable, compare
from xcfg.contract import Contract, load_contract
from xcfg.dumps import DumpTable
from xcfg.flow.dumps import Dump, open_dump
from xcfg.flow.summary import edge_summary
from xcfg.plugin.manager import PluginManager
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

__all__ = ["Dump", "compare_dump", "judge_dump", "open_dump", "summarise"]


def compare_dump(path: Path, manager: PluginManager, **options: Any) -> tuple[RunSummary, Comparison]:
    """Return the summary and the whole comparison of the dump in `path`; options are those of `open_dump`."""
    return summarise(open_dump(path, manager, **options))


def summarise(dump: Dump) -> tuple[RunSummary, Comparison]:
    """Return the summary and the whole comparison of a dump that was read."""
    name = "redacted" if dump.redacted else dump.path.name
    contract = load_contract()
    comparison = judge_dump(dump.table, contract)
    case = CaseSummary(
        case_id=f"dump-{name}",
        attempt_id="",
        label=dump.label,
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
        experiment_id=name,
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
    reason = comparison.reason
    if comparison.status == Status.EMPTY_JOIN.value and table.joined is not None and table.joined.example:
        reason = f"no sample_id and position stand in both files: {table.joined.example}"
    return evolve(comparison, reason=reason, unattested=table.unattested)
