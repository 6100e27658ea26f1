"""`check_seals`: everything under a path held against its seals, offline and without torch.

It accepts an output root, one experiment, one case folder, one attempt, one score or one rollout. A fault
makes an entry not ok. Left-over temporary folders of a killed run and files that are not ours are named as
notes.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from xcfg.artifacts.checking import NOTE, Context, content_faults
from xcfg.artifacts.ended import check_planned, read_record
from xcfg.artifacts.layout import (
    ANALYSIS,
    CASES,
    COMPARISON,
    COMPLETE,
    ENDED,
    FAILURE,
    REQUESTED,
    ROLLOUTS,
    SCORES,
    TEMPORARY,
    attempt_number,
    is_component,
    is_digest,
    split_score,
)
from xcfg.artifacts.reading import Digests, listing, opened, read_bounded
from xcfg.artifacts.revisions import file_names, revision_number
from xcfg.artifacts.seals import check_folder
from xcfg.errors import ArtifactError, NothingSelectedError, UsageError
from xcfg.schema.attempt import AttemptCheck, CaseSeal, ScoreSeal


def check_seals(path: Path) -> tuple[AttemptCheck, ...]:
    """Return one check per revision, rollout, score, attempt, analysis and record under `path`, in a stable order.

    A planned case that never ended, and an attempt that was sealed and is gone, are checks that are not ok.

    An entry is ok only when every byte is what its seal says and its surroundings agree; reasons that begin
    with `note: ` do not spoil it. Raises UsageError when `path` does not exist, NothingSelectedError when no
    attempt and no score is there at all: nothing checked is no success.
    """
    path = Path(path)
    if not os.path.lexists(path):
        raise UsageError(
            f"{str(path)!r} does not exist", hint="Give an output root, an experiment, a case or an attempt."
        )
    if not path.is_dir():
        raise UsageError(
            f"{str(path)!r} is no folder", hint="Give an output root, an experiment, a case or an attempt."
        )
    checks = tuple(_dispatch(path))
    if not any(_is_evidence(check) for check in checks):
        planned = sum(check.unfinished for check in checks)
        told = f", and {planned} planned cases never ended" if planned else ""
        raise NothingSelectedError(f"no attempt and no side score is in {str(path)!r}{told}", hint=_where(path))
    return checks


def _where(path: Path) -> str:
    """Return which folder of `path` holds experiments, one level further down than was looked."""
    for name in sorted(os.listdir(path)):
        below = path / name
        if below.is_dir() and any((below / sub).is_dir() and _is_experiment(below / sub) for sub in os.listdir(below)):
            return f"There is some in {name!r}."
    return "A run writes to runs/<experiment>/ by default."


def _is_evidence(check: AttemptCheck) -> bool:
    """Whether a check speaks of a score, an attempt, or of anything that is wrong."""
    path = Path(check.path)
    is_score = path.parent.name == SCORES and split_score(path.name) is not None
    is_attempt = attempt_number(path.name) is not None
    wrong = not check.ok and not check.unfinished
    return wrong or is_score or is_attempt or os.path.lexists(path / COMPLETE)


def _dispatch(path: Path) -> Iterator[AttemptCheck]:
    place = path.absolute()
    above = place.parents
    if place.parent.name in _PLACES and _is_experiment(above[1]):
        context = Context(above[1])
        yield from _PLACES[place.parent.name](context, place.name)
        if place.parent.name == CASES:
            yield from check_planned(context, place.name)
    elif len(above) > 2 and above[1].name == CASES and _is_experiment(above[2]):
        yield from _attempt(Context(above[2]), place.parent.name, place.name)
    elif os.path.lexists(path / COMPLETE) or attempt_number(place.name) is not None:
        yield _alone(path)
    elif _is_experiment(path):
        yield from _experiment(path)
    else:
        for name in sorted(os.listdir(path)):
            if (path / name).is_dir() and _is_experiment(path / name):
                yield from _experiment(path / name)


def _is_experiment(folder: Path) -> bool:
    names = set(listing(folder))
    return bool(names.intersection((SCORES, CASES))) or any(revision_number(name) for name in names)


def _experiment(folder: Path) -> Iterator[AttemptCheck]:
    context = Context(folder)
    yield from _revisions(context)
    for place, check in _PLACES.items():
        try:
            names = listing(folder, place)
        except ArtifactError as error:
            yield _line(folder / place, (error.message,))
            continue
        for name in names:
            if name.startswith(TEMPORARY):
                yield _leftover(folder / place / name)
            else:
                yield from check(context, name)
    yield from check_planned(context)
    for name in listing(folder):
        if name.startswith(TEMPORARY):
            yield _leftover(folder / name)


def _revisions(context: Context) -> Iterator[AttemptCheck]:
    found = context.revisions
    for revision in found.whole:
        yield _line(revision.path, ())
    for number in found.pending:
        name, plan = file_names(number)
        yield _line(context.folder / name, (), (f"{NOTE}its {plan} was never published; nothing refers to it",))
    bare = not set(listing(context.folder)).intersection((SCORES, CASES))
    hint = ". If you wrote this file yourself: give the folder that a run wrote, runs/<experiment>" if bare else ""
    for name, reason in found.faults.items():
        yield _line(context.folder / name, (reason + hint,))
    if not found.records and not found.faults:
        yield _line(context.folder / file_names(1)[0], ("missing: the experiment has no revision",))
    known = {name for number in found.records for name in file_names(number)} | set(found.faults)
    for name in listing(context.folder):
        if name.startswith("plan") and name.endswith(".jsonl") and name not in known:
            twin = name.replace("plan", "experiment").removesuffix("l")
            if twin not in found.faults:
                yield _line(context.folder / name, (f"foreign: {twin} is missing",))


def _score(context: Context, name: str) -> Iterator[AttemptCheck]:
    path = context.folder / SCORES / name
    if split_score(name) is None:
        yield _foreign(path)
    else:
        yield _line(path, context.check_score(name).faults)


def _case(context: Context, case_id: str) -> Iterator[AttemptCheck]:
    folder = context.folder / CASES / case_id
    if not is_component(case_id) or stat.S_ISREG(folder.lstat().st_mode):
        yield _foreign(folder)
        return
    try:
        names = listing(context.folder, CASES, case_id)
    except ArtifactError as error:
        yield _line(folder, (error.message,))
        return
    for name in names:
        yield from _attempt(context, case_id, name)


def _attempt(context: Context, case_id: str, name: str) -> Iterator[AttemptCheck]:
    path = context.folder / CASES / case_id / name
    if name.startswith(TEMPORARY):
        yield _leftover(path)
    elif attempt_number(name) is None:
        yield _foreign(path)
    else:
        yield _line(path, context.check_attempt(case_id, name).faults)


def _rollout(context: Context, name: str) -> Iterator[AttemptCheck]:
    path = context.folder / ROLLOUTS / name
    yield _line(path, context.rollout_faults(name)) if is_digest(name.partition(".")[0]) else _foreign(path)


def _analysis(context: Context, name: str) -> Iterator[AttemptCheck]:
    path = context.folder / ANALYSIS / name
    yield _line(path, context.analysis_faults(name)) if is_digest(name.partition(".")[0]) else _foreign(path)


def _record(context: Context, name: str) -> Iterator[AttemptCheck]:
    path = context.folder / ENDED / name
    if not is_digest(name.partition(".")[0]):
        yield _foreign(path)
        return
    try:
        read_record(context.folder, name)
    except ArtifactError as error:
        yield _line(path, (error.message,))
    else:
        yield _line(path, ())


_PLACES = {ROLLOUTS: _rollout, SCORES: _score, CASES: _case, ANALYSIS: _analysis, ENDED: _record}


def _alone(path: Path) -> AttemptCheck:
    """Check a sealed folder that stands outside an experiment: by its own seal only."""
    digests = Digests()
    note = f"{NOTE}it stands alone, so plan line, rollout and scores were not checked"
    with opened(path.parent, path.name) as descriptor:
        case, faults = check_folder(descriptor, CaseSeal, digests)
        if case is None and "schema_version" in " ".join(faults):
            score, other = check_folder(descriptor, ScoreSeal, digests)
            return _line(path, other if score is not None else faults, (note,))
        if case is not None:
            faults += content_faults(
                case,
                {
                    name: read_bounded(name, parent=descriptor)
                    for name in (REQUESTED, COMPARISON, FAILURE)
                    if name in case.files
                },
            )
    return _line(path, faults, (note,))


def _leftover(path: Path) -> AttemptCheck:
    return _line(path, (), (f"{NOTE}left over from a run that was killed or is still writing; nothing reads it",))


def _foreign(path: Path) -> AttemptCheck:
    """Judge an entry whose name is not ours: a fault when it poses as something sealed, else a note."""
    if os.path.lexists(path / COMPLETE) or path.is_symlink():
        return _line(path, ("foreign: its name is none that the store gives",))
    return _line(path, (), (f"{NOTE}not written by xcfg; nothing reads it",))


def _line(path: Path, faults: Iterable[str], notes: Iterable[str] = ()) -> AttemptCheck:
    reasons = tuple(faults)
    return AttemptCheck(path=str(path), ok=not reasons, reasons=(*reasons, *notes))
