"""The baseline file: written from a measured run, read back strictly."""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path

from xcfg.errors import ConfigError, NotComparableError, UsageError
from xcfg.schema.codec import convert, pretty_json, read_strict
from xcfg.schema.gate import BASELINE, BaselineCase, GateBaseline

from xcfg_analysis.cube.rows import Cube, Row
from xcfg_analysis.gate.figures import FEWEST, STATISTICS, corridors, devices_of, edge_of, figures_of
from xcfg_analysis.gate.settings import settings_of
from xcfg_analysis.rules.points import MEASURED

WRITTEN_BY = f"`xcfg gate RUN --write-baseline FILE` writes {BASELINE!r}."
FROM_SEQUENCES = "95 % bootstrap interval over sequences"


def make_baseline(cube: Cube, percent: float | None = None) -> GateBaseline:
    """Return the baseline of a run whose every planned case was measured.

    percent: the half width of the corridor, stated; None: made from the spread over sequences. Raises
    NotComparableError when a case is missing, was not measured or holds a figure that is not finite: a gate that
    starts from a hole would let the hole through for ever.
    """
    holes = [f"{label} is missing" for label in cube.missing]
    holes += [f"{row.label} is {row.status}" for row in cube.rows if row.status not in MEASURED]
    holes += [f"{row.label} holds no usable number" for row in cube.rows if row.status in MEASURED and _unusable(row)]
    holes += [f"a newer attempt does not count: {text}" for text in cube.rejected]
    holes += [f"{label} stands twice" for label in _twice(cube)]
    if holes or not cube.rows:
        raise NotComparableError(
            f"no baseline was written: {'; '.join(holes) or 'the run holds no case'}",
            hint="A baseline holds every case of a run, each PASS or MISMATCH. Run what is missing, or narrow the run.",
        )
    return GateBaseline(
        schema_version=BASELINE,
        experiment_id=cube.experiment_id,
        contract=dict(cube.contract),
        rollout=cube.rollout,
        runtimes=dict(cube.runtimes),
        devices=dict(devices_of(cube)),
        corridor=FROM_SEQUENCES if percent is None else f"stated: {percent:g} % to either side",
        cases={row.label: _case(row, percent) for row in cube.rows},
        settings=settings_of(cube),
    )


def _case(row: Row, percent: float | None) -> BaselineCase:
    edge = edge_of(row)
    return BaselineCase(
        case_id=row.case_id,
        role=row.role,
        status=row.status,
        assessment="" if row.assessment is None else row.assessment.assessment,
        active_tokens=0 if edge is None else edge.active_tokens,
        figures=corridors(row, percent),
    )


def _unusable(row: Row) -> bool:
    edge = edge_of(row)
    return edge is None or not edge.active_tokens or None in figures_of(row).values()


def _twice(cube: Cube) -> list[str]:
    labels = [row.label for row in cube.rows]
    return sorted({label for label in labels if labels.count(label) > 1})


def write_baseline(path: Path, baseline: GateBaseline) -> None:
    """Write the file in one step, so that a reader never sees half of it. Raises UsageError where it cannot be."""
    data, temporary = pretty_json(baseline), path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise UsageError(f"{str(path)!r} cannot be written: {error.strerror}") from None


def read_baseline(path: Path) -> GateBaseline:
    """Return the baseline in `path`. Raises ConfigError when it is not one, has a hole, or a corridor upside down."""
    try:
        document = read_strict(path)
    except ConfigError as error:
        error.hint = error.hint or WRITTEN_BY
        raise
    version = document.get("schema_version") if isinstance(document, dict) else None
    if version != BASELINE:
        raise ConfigError(
            f"is no baseline of a gate, but {version!r}",
            source=str(path),
            hint=WRITTEN_BY,
        )
    baseline = convert(document, GateBaseline, source=str(path))
    if not baseline.cases:
        raise ConfigError("the baseline holds no case, so it holds nothing", source=str(path), path="$.cases")
    for label, case in baseline.cases.items():
        if odd := sorted(set(STATISTICS) ^ set(case.figures)):
            raise ConfigError(
                f"{label!r} has to hold {', '.join(STATISTICS)} and nothing else; "
                f"{', '.join(odd)} {'is' if len(odd) == 1 else 'are'} missing or unknown",
                source=str(path),
                path="$.cases",
                hint=_HINT,
            )
        for name, figure in case.figures.items():
            if figure.low > figure.high:
                raise ConfigError(
                    f"the corridor of {name} of {label!r} is upside down", source=str(path), path="$.cases", hint=_HINT
                )
    return baseline


_HINT = f"Write it again from a run; a corridor needs {FEWEST} sequences or --corridor-percent."
