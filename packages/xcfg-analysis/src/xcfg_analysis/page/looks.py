"""What the drift of a run looks like: the signatures, tried on the verdict's edge of one row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from xcfg.dumps import DumpTable
from xcfg.dumps.table import SCORE_COLUMNS
from xcfg.schema.analysis import SignatureFinding, UnansweredSignature
from xcfg.schema.names import Arm

from xcfg_analysis.analyze import candidates, finding
from xcfg_analysis.cube.load import Evidence
from xcfg_analysis.cube.rows import Row
from xcfg_analysis.recognise import recognise
from xcfg_analysis.tokens import active_tokens

TRAINING = Arm.TRAINING.value


@dataclass(frozen=True)
class Looks:
    """The signatures that were named, those that lacked data, and how many tokens they were fitted on."""

    named: tuple[SignatureFinding, ...] = ()
    insufficient: tuple[UnansweredSignature, ...] = ()
    fitted: int = 0


def looks_like(evidence: Evidence, row: Row, plugins: Any) -> Looks:
    """Return the signatures of d = training - rollout on the edge that decides the verdict of `row`."""
    table = edge_table(evidence, row)
    if table is None or not table.rows:
        return Looks()
    tokens = active_tokens(table)
    found = recognise(tokens, candidates(plugins))
    return Looks(
        named=tuple(finding(item, table) for item in found.named),
        insufficient=tuple(
            UnansweredSignature(name=name, reason=reason) for name, reason in sorted(found.insufficient.items())
        ),
        fitted=len(tokens.d),
    )


def edge_table(evidence: Evidence, row: Row) -> DumpTable | None:
    """Return the verdict's edge of a row as a table; None where the row has no figures.

    Optional columns are those of the training score, NaN where the score does not say. rank: the training rank that
    owns the token, where there are several.
    """
    found = evidence.difference(row, row.verdict_edge) if row.verdict_edge else None
    columns = evidence.columns(row, TRAINING)
    training, rollout = evidence.scores(row, TRAINING), evidence.scores(row, row.verdict_arm)
    if found is None or columns is None or training is None or rollout is None:
        return None
    frozen = evidence.run.rollout
    versions = frozen.tensors["weight_version"]
    owner = columns.get("owner_rank")
    single = owner is None or len(np.unique(owner[found[1]])) < 2
    return DumpTable(
        training=training,
        rollout=rollout,
        active=found[1],
        token_ids=frozen.token_ids,
        positions=frozen.tensors["position_ids"],
        offsets=frozen.offsets,
        sample_ids=tuple(item.request_id for item in frozen.manifest.sequences),
        weight_version=versions,
        rank=None if single else owner,
        columns={name: columns[name] for name in SCORE_COLUMNS if name in columns},
    )
