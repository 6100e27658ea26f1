"""Opening foreign dumps: which reader takes a file and why, one file or two, redacted or not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xcfg.dumps import DumpTable, Folder, Joined, Rows, damage, join, order_sides, read_rows, redact, table_of
from xcfg.dumps.damage import is_special
from xcfg.dumps.folder import survey
from xcfg.errors import ArtifactError
from xcfg.plugin._resolve import resolve
from xcfg.plugin.manager import PluginManager
from xcfg.plugin.protocols import DumpReader
from xcfg.plugin.provide import DumpReaderDescriptor


@dataclass(frozen=True)
class Part:
    """One file or folder that was read: the reader's name, why it was chosen, the rows, what of a folder was read."""

    path: Path
    reader: str
    why: str
    rows: Rows
    folder: Folder | None = None

    @property
    def label(self) -> str:
        """The file, its reader and the reason, for people."""
        return f"{self.path.name} ({self.reader}: {self.why})"

    def remarks(self, *, redacted: bool = False) -> list[str]:
        """Return what of a folder was read and what was left out, as far as the reader says; else nothing."""
        if self.folder is not None:
            return [self.folder.describe(redacted=redacted)]
        if self.path.is_dir():
            return [f"of the folder: the reader {self.reader} does not say which files it read"]
        return []


@dataclass(frozen=True)
class Dump:
    """A dump that was read: the reader's name, why it was chosen, and all its tokens.

    path, reader, why: of the first file, or joined with ` + ` where the dump is two files. lines: for people,
    what was recognised and why, what of a folder was read, and how two files met; remarks: those about folders.
    rows: what the table was made of. redacted: ids are hashes and no file is named.
    """

    path: Path
    reader: str
    why: str
    table: DumpTable
    lines: tuple[str, ...] = ()
    rows: Rows | None = None
    redacted: bool = False
    remarks: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The lines as one."""
        return "; ".join(self.lines)


def choose_reader(path: Path, manager: PluginManager, name: str | None) -> tuple[str, str, DumpReader]:
    """Return the reader's name, why it was chosen, and the reader.

    Raises ArtifactError when several readers recognise the file, or none: then with what is wrong with it, as far
    as its first and last bytes show, or else with what was tried.
    """
    if name is not None:
        return name, "named on the command line", _make(manager.dump_reader(name).record)
    if is_special(path):
        _refuse_damaged(path)
    offered = {item.record.name: item.record for item in manager.dump_readers()}
    found = []
    for candidate in sorted(offered):
        reader = _make(offered[candidate])
        why = reader.detect(path)
        if why:
            found.append((candidate, why, reader))
    if len(found) == 1:
        return found[0]
    if found:
        reasons = "; ".join(f"{candidate}: {why}" for candidate, why, _ in found)
        raise ArtifactError(
            f"several readers recognise {str(path)!r}: {reasons}", hint="Name one of them with --format NAME."
        )
    _refuse_damaged(path)
    more = (
        ""
        if any(item.distribution == "xcfg-dumps" for item in manager.dump_readers())
        else " More come with xcfg-dumps."
    )
    raise ArtifactError(
        f"no reader recognises {str(path)!r}",
        hint=f"Tried: {', '.join(sorted(offered))}.{more} Write the canonical columns, one JSON object per token: "
        "the page 'Compare a dump' shows them.",
    )


def _refuse_damaged(path: Path, said: str = "") -> None:
    """Raise ArtifactError where the first and last bytes of the file show what is wrong with it."""
    found = damage(path)
    if found is not None:
        raise ArtifactError(f"{str(path)!r} {found.what}{said}", hint=found.hint) from None


def _make(record: DumpReaderDescriptor) -> DumpReader:
    factory: Any = resolve(record.factory)
    reader: DumpReader = factory()
    return reader


def open_part(path: Path, manager: PluginManager, *, reader: str | None = None) -> Part:
    """Return one file, of one side or both. Raises ArtifactError when it is absent, unknown or not canonical."""
    if not path.exists():
        raise ArtifactError(
            f"{str(path)!r} does not exist",
            hint="Give a file that holds log probabilities per token; `xcfg analyze` also takes the folder of a run.",
        )
    name, why, chosen = choose_reader(path, manager, reader)
    folder = survey(chosen, path) if path.is_dir() else None
    try:
        return Part(path, name, why, read_rows(chosen, path), folder)
    except ArtifactError as error:
        for file in filter(Path.is_file, (path,) if folder is None else folder.files):
            _refuse_damaged(file, f" (the reader {name}: {error.message})")
        raise


def open_dump(
    path: Path,
    manager: PluginManager,
    *,
    reader: str | None = None,
    other: Path | None = None,
    other_reader: str | None = None,
    redacted: bool = False,
) -> Dump:
    """Return the dump in `path`, or in `path` and `other`, of which one has each side; the order is free.

    redacted: ids become salted hashes and no file is named. Raises ArtifactError: a file is absent, unknown or
    not canonical, a side is missing, both files hold the same side or both, or the files contradict each other.
    """
    try:
        first = open_part(path, manager, reader=reader)
        parts, joined = [first], None
        rows = first.rows
        if other is not None:
            parts.append(open_part(other, manager, reader=other_reader))
            rows, joined = join(*order_sides(rows, parts[1].rows))
        if redacted:
            rows, joined = redact(rows), joined and _anonymous(joined)
        table = table_of(rows, joined)
    except ArtifactError:
        if not redacted:
            raise
        # The message names samples, tokens and files.
        raise ArtifactError(
            "the dump cannot be compared, and why would name what --redact hides",
            hint="Run it without --redact, where nobody else reads the output.",
        ) from None
    lines = [f"a redacted dump ({part.reader})" if redacted else part.label for part in parts]
    remarks = [remark for part in parts for remark in part.remarks(redacted=redacted)]
    lines += remarks
    return Dump(
        path=path,
        reader=" + ".join(part.reader for part in parts),
        why=" + ".join(part.why for part in parts),
        table=table,
        lines=tuple(lines if joined is None else [*lines, joined.describe()]),
        rows=rows,
        redacted=redacted,
        remarks=tuple(remarks),
    )


def _anonymous(joined: Joined) -> Joined:
    return Joined(
        rollout="the rollout file",
        training="the training file",
        samples=joined.samples,
        tokens=joined.tokens,
        only_rollout=("redacted",) * len(joined.only_rollout),
        only_training=("redacted",) * len(joined.only_training),
        only_rollout_tokens=joined.only_rollout_tokens,
        only_training_tokens=joined.only_training_tokens,
        active_in_one=joined.active_in_one,
    )
