"""The journey of `xcfg analyze`: open, compare, recognise, and say it in one document."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xcfg
from xcfg.dumps import DumpTable
from xcfg.plugin.operators import load_factory
from xcfg.schema.analysis import ANALYSIS, Analysis, SignatureFinding, TokenEvidence, UnansweredSignature
from xcfg.schema.names import Status
from xcfg.schema.result import Comparison, EdgeResult, Interval

from xcfg_analysis.figures import charted
from xcfg_analysis.recognise import Candidate, Named, Recognised, recognise
from xcfg_analysis.tokens import active_tokens
from xcfg_analysis.views import telling_views

EDGE = "training_vs_rollout"
EVIDENCE = 3
MEASURED = (Status.PASS.value, Status.MISMATCH.value, Status.UNOBSERVABLE.value)


def analyze_dump(
    paths: Sequence[Path],
    *,
    plugins: Any = None,
    reader: str | None = None,
    train_reader: str | None = None,
    redacted: bool = False,
) -> Analysis:
    """Return the analysis of a dump in one file, or in two (rollout and training side). Raises XcfgError.

    redacted: sample and token ids are salted hashes, and no file is named.
    exit_code: 0 nothing over the threshold and no signature; 1 a mismatch or a signature; 3 not comparable, which
    includes a dump without an attested compute dtype in which no signature was found.
    """
    manager = plugins or xcfg.load_plugins()
    dump = xcfg.open_dump(*paths, plugins=manager, reader=reader, train_reader=train_reader, redacted=redacted)
    comparison = xcfg.compare(dump)
    edge = comparison.edges.get(EDGE)
    tokens = active_tokens(dump.table)
    if edge is None or comparison.status not in MEASURED or not len(tokens.d):
        found = Recognised((), {}, 0.0)
    else:
        found = recognise(tokens, candidates(manager))
    named = tuple(finding(item, dump.table) for item in found.named)
    step, command = _next(comparison, edge, found)
    return Analysis(
        schema_version=ANALYSIS,
        conclusion=_conclusion(comparison, edge, found),
        assessment=comparison.assessment.assessment,
        signatures=named,
        next_step=step,
        next_command=next((item.next_command for item in named if item.next_command), command),
        exit_code=_exit_code(comparison.status, bool(named)),
        status=comparison.status,
        reason=comparison.reason,
        source=() if redacted else tuple(path.name for path in paths),
        recognised="; ".join(
            [dump.reader if redacted else f"{dump.reader}: {dump.why}", *dump.remarks, *_joined(dump.table)]
        ),
        tokens=0 if edge is None else edge.active_tokens,
        sequences=len(dump.table.sample_ids),
        fitted_tokens=len(tokens.d),
        threshold=None if edge is None or edge.max_abs is None else comparison.threshold,
        mismatches=0 if edge is None else edge.mismatches,
        unattested=comparison.unattested,
        figures=charted(edge, dump.table) if edge is not None else {},
        views=telling_views(edge, tokens) if edge is not None else (),
        insufficient_data=tuple(
            UnansweredSignature(name=name, reason=reason) for name, reason in sorted(found.insufficient.items())
        ),
    )


def candidates(manager: Any) -> list[Candidate]:
    """Return every usable signature of the installed plugins with its descriptor."""
    return [(item.record, load_factory(item.record.factory)()) for item in manager.signatures()]


def finding(item: Named, table: DumpTable) -> SignatureFinding:
    """Return a signature that was named as it stands in a document, with tokens of `table` that show it."""
    value, low, high = item.effect
    return SignatureFinding(
        name=item.descriptor.name,
        confidence=item.confidence,
        where=item.fit.where,
        says=item.fit.says,
        effect=Interval(value=value, low=low, high=high),
        explained=item.explained,
        parameters={name: float(number) for name, number in item.fit.parameters.items() if np.isfinite(number)},
        tokens=len(item.row),
        evidence=_evidence(item, table),
        fix=item.fit.fix,
        next_command=item.fit.next_command,
        refuted_by=item.fit.refuted_by,
    )


def _evidence(item: Named, table: DumpTable) -> tuple[TokenEvidence, ...]:
    """Return the tokens of which the form takes most, the first in the dump on a tie, from different sequences."""
    order = np.argsort(-item.size[: 1 << 20], kind="stable")
    sequence = np.searchsorted(table.offsets, item.row[order], side="right") - 1
    _, first = np.unique(sequence, return_index=True)
    picked = np.sort(first)[:EVIDENCE]
    return tuple(
        TokenEvidence(
            sample_id=table.sample_ids[int(sequence[at])],
            position=int(table.positions[row]),
            token_id=int(table.token_ids[row]),
            training=float(table.training[row]),
            rollout=float(table.rollout[row]),
        )
        for at in picked.tolist()
        for row in [int(item.row[order[at]])]
    )


def _joined(table: DumpTable) -> list[str]:
    return [] if table.joined is None else [table.joined.describe()]


def _conclusion(comparison: Comparison, edge: EdgeResult | None, found: Recognised) -> str:
    if comparison.status not in MEASURED or edge is None:
        return f"Nothing was compared: {comparison.reason or comparison.status}."
    if found.named:
        named = "; ".join(f"{item.descriptor.name} ({item.explained:.0%} of the squared drift)" for item in found.named)
        left = f"{found.unexplained:.0%} of the squared drift fits no known signature"
        return f"{named}. After that {left}."
    if edge.max_abs == 0:
        return "Both sides are equal, bit for bit, on every active token."
    if not found.related:
        return (
            "No known signature fits, and the two sides are hardly related: look at the join, the order of the "
            "samples, the tokenizer, or a shift of more than one position."
        )
    lacking = f" {len(found.insufficient)} could not be tried for lack of columns." if found.insufficient else ""
    return f"No known signature fits this drift.{lacking}"


def _next(comparison: Comparison, edge: EdgeResult | None, found: Recognised) -> tuple[str, str]:
    """Return what to do next, in words and as a command; both empty where nothing is to be done."""
    if comparison.status not in MEASURED:
        return "", ""
    if not found.related or (edge is not None and edge.max_abs == 0):
        return "", ""
    if not found.named and found.insufficient:
        return "export the columns that are lacking, and analyze again", ""
    if found.named:
        return "apply the fix to one side, score the same tokens again, and analyze again", "xcfg freeze --help"
    return "freeze these tokens (`--dump`), and vary settings on them with `xcfg run`", "xcfg freeze --help"


def _exit_code(status: str, named: bool) -> int:
    if status not in MEASURED:
        return 3
    if named or status == Status.MISMATCH.value:
        return 1
    return 0 if status == Status.PASS.value else 3
