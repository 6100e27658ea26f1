"""Where the commands of this package may write: never over what they read, over each other, or into the evidence."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from xcfg.errors import UsageError


def refuse_overwriting(run: Path, written: Mapping[str, Path | None], read: Mapping[str, Path | None]) -> None:
    """Raise UsageError when a file of `written` is one of `read`, another of `written`, or lies in the folder `run`.

    written, read: option -> file, None where it was not given. Links are followed.
    """
    taken = {file.resolve(): option for option, file in read.items() if file is not None}
    for option, file in written.items():
        if file is None:
            continue
        place = file.resolve()
        if place.exists() and not place.is_file() and not place.is_dir():
            continue  # a pipe or a device keeps nothing
        if place in taken:
            raise UsageError(
                f"{option} would write over {str(file)!r}, which is the file of {taken[place]}",
                hint="Name another file.",
            )
        if run.resolve() in (place, *place.parents):
            raise UsageError(
                f"{option} would write {str(file)!r} into the evidence in {str(run)!r}",
                hint="Nothing but xcfg run writes there; name a file outside it.",
            )
        taken[place] = option
