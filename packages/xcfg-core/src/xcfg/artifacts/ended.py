"""What was planned and what is there: a case that never ended, and an attempt that was sealed and is gone.

A plan says which cases a run owes. When a run ends, also by Ctrl-C, it publishes `ended/<digest>.json`: the attempt
that stands for each case which ended. So a case without an attempt is *unfinished* (no run that ended names one), or
an attempt is *missing*: a record names it, or a later attempt has a higher number, which is given without gaps. What
was deleted together with every record that names it looks unfinished: there is nothing left that could tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from pathlib import Path

from xcfg.artifacts.checking import Context
from xcfg.artifacts.layout import CASES, ENDED, TEMPORARY, attempt_folder, attempt_number, is_component
from xcfg.artifacts.reading import listing, opened, read_bounded
from xcfg.errors import ArtifactError, ConfigError
from xcfg.schema.attempt import RUN_RECORD, AttemptCheck, RunRecord
from xcfg.schema.codec import convert, digest, parse_strict


def read_record(folder: Path, name: str) -> RunRecord:
    """Return the record `name` of the experiment folder; ArtifactError when it is malformed or altered."""
    try:
        with opened(folder, ENDED) as descriptor:
            document = parse_strict(read_bounded(name, parent=descriptor), source=name)
        if digest(document) != name.partition(".")[0]:
            raise ArtifactError("altered: its content does not hash to its name")
        record = convert(document, RunRecord, source=name)
    except (ConfigError, ValueError) as error:
        raise ArtifactError(f"malformed: {error}") from None
    if record.schema_version != RUN_RECORD:
        raise ArtifactError(f"schema_version {record.schema_version!r}, known is {RUN_RECORD}")
    bad = [item for pair in record.cases.items() for item in pair if not is_component(item)]
    if bad:
        raise ArtifactError(f"malformed: {bad[0]!r} is no case and no attempt")
    return record


def is_record(folder: Path, name: str) -> bool:
    """Whether `name` is a whole record of the experiment folder."""
    try:
        read_record(folder, name)
    except ArtifactError:
        return False
    return True


def check_planned(context: Context, only: str | None = None) -> Iterator[AttemptCheck]:
    """Yield one check per case that is planned and not sealed, and per attempt that was sealed and is gone.

    only: look at this case alone.
    """
    named = _named(context.folder)
    planned = _planned(context)
    for case_id in dict.fromkeys([*planned, *sorted(named)]):
        if only is None or case_id == only:
            yield from _case(context, case_id, planned.get(case_id), named.get(case_id, {}))


def _planned(context: Context) -> dict[str, str]:
    """Return what every whole revision plans: case id -> its label and the plan that names it."""
    result: dict[str, str] = {}
    for revision in context.revisions.whole:
        for line in revision.plan():
            label = line.get("label") or line["case_id"]
            result.setdefault(line["case_id"], f"{label!r} is planned in {revision.plan_path.name}")
    return result


def _named(folder: Path) -> dict[str, dict[str, str]]:
    """Return what the readable records name: case id -> attempt -> record. Others are reported where they lie."""
    result: dict[str, dict[str, str]] = {}
    try:
        names = listing(folder, ENDED)
    except ArtifactError:
        return {}
    for name in names:
        try:
            record = read_record(folder, name)
        except ArtifactError:
            continue
        for case_id, attempt in record.cases.items():
            result.setdefault(case_id, {}).setdefault(attempt, f"{ENDED}/{name[:12]}…")
    return result


def _case(context: Context, case_id: str, planned: str | None, named: Mapping[str, str]) -> Iterator[AttemptCheck]:
    place = context.folder / CASES / case_id
    try:
        names = listing(context.folder, CASES, case_id)
    except ArtifactError:
        return  # no folder of ours; it is reported by itself
    lost = {name: f"the end of its run is recorded in {record}" for name, record in named.items() if name not in names}
    gap = _first_gap(context, case_id, names)
    if gap is not None:
        lost.setdefault(gap, "a later one is there, and numbers are given without gaps")
    for name, why in sorted(lost.items()):
        told = f"missing: it was sealed and is gone ({why}); put it back from a copy, or run again to score it anew"
        yield AttemptCheck(path=str(place / name), ok=False, reasons=(told,))
    if planned is None or lost or any(attempt_number(name) is not None for name in names):
        return
    half = any(name.startswith(TEMPORARY) for name in names)
    state = "an attempt was being written when its run ended" if half else "nothing of it is sealed"
    told = f"unfinished: {planned}, {state}, and no run that ended names it; run the same command again to go on"
    yield AttemptCheck(path=str(place), ok=False, reasons=(told,), unfinished=True)


def _first_gap(context: Context, case_id: str, names: Iterable[str]) -> str | None:
    """Return the first attempt that is not there although a later one is, and is valid; None without one."""
    there = {number: name for name in names if (number := attempt_number(name)) is not None}
    first = next(number for number in count(1) if number not in there)
    later = sorted(number for number in there if number > first)
    is_gap = any(context.check_attempt(case_id, there[number]).ok for number in later)
    return attempt_folder(first) if is_gap else None
