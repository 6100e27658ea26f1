"""The printed form of an analysis: what was compared, the numbers, the views, the finding, what to do."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from xcfg.schema.analysis import Analysis, SignatureFinding, View

from xcfg_analysis.figures import MAIN


def text(found: Analysis) -> str:
    """Return the analysis for a terminal."""
    blocks = [_head(found)]
    if found.figures:
        blocks.append(_figures(found))
    blocks += [_view(view) for view in found.views]
    blocks += [_finding(item) for item in found.signatures]
    blocks.append(_end(found))
    return "\n\n".join(blocks)


def number(value: float | None) -> str:
    """Return four significant digits, or a dash."""
    return "-" if value is None else f"{value:.4g}"


def _head(found: Analysis) -> str:
    judged = "not judged" if found.threshold is None else f"{found.mismatches} over {number(found.threshold)}"
    lines = [
        f"{' + '.join(found.source)}: {found.recognised}",
        f"{found.tokens} active tokens in {found.sequences} sequences, {judged}; status {found.status}",
    ]
    if found.reason:
        lines.append(found.reason)
    if found.fitted_tokens and found.fitted_tokens < found.tokens:
        lines.append(
            f"signatures were fitted on {found.fitted_tokens} of them, in whole sequences spread over the dump"
        )
    if found.unattested:
        lines.append(f"not attested by the file: {', '.join(found.unattested)}")
    return "\n".join(lines)


def _figures(found: Analysis) -> str:
    shown = [(name, number(found.figures.get(name))) for name in MAIN if name in found.figures]
    return "d = training - rollout, nats; the last part of a name is its reducer\n" + columns(shown)


def _view(view: View) -> str:
    head = ("tokens", "mean |d|", "max |d|", "mean d", "rms")
    rows = [
        (
            str(row["group"]),
            str(row["tokens"]),
            number(row["mean_abs"]),
            number(row["max_abs"]),
            f"{row['bias']:+.3g}",
            number(row["rms"]),
        )
        for row in view.rows
    ]
    return f"by {view.by} (rms varies {view.spread:.1f} times)\n" + columns([("", *head), *rows])


def _finding(item: SignatureFinding) -> str:
    effect = item.effect
    size = (
        "" if effect is None else f"; {number(effect.value)} nats rms ({number(effect.low)} to {number(effect.high)})"
    )
    share = "" if item.explained is None else f", {item.explained:.0%} of the squared drift"
    lines = [f"SIGNATURE {item.name}: confidence {item.confidence:.4f}{share}{size}"]
    lines += wrapped("what", item.says)
    lines += wrapped("where", item.where)
    for token in item.evidence:
        lines += wrapped(
            "token",
            f"sample {token.sample_id!r} position {token.position} id {token.token_id}: training {token.training:.6f}, "
            f"rollout {token.rollout:.6f}, d {token.training - token.rollout:+.6f}",
        )
    lines += wrapped("fix", item.fix)
    lines += wrapped("refuted by", item.refuted_by)
    return "\n".join(lines)


def _end(found: Analysis) -> str:
    lines = list(wrapped("", found.conclusion, indent=0))
    for item in found.insufficient_data:
        lines += wrapped("", f"insufficient data for {item.name}: {item.reason}")
    if found.next_step:
        lines += wrapped("next", found.next_step)
    if found.next_command:
        lines.append(f"{' ' * 13}{found.next_command}")
    return "\n".join(lines)


def wrapped(label: str, words: str, *, indent: int = 2) -> Iterator[str]:
    """Yield `words` in lines that fit the terminal, beside `label`."""
    lead = " " * indent + (f"{label:<11}" if label else "")
    width = max(60, min(120, shutil.get_terminal_size((120, 24)).columns))
    clean = "".join(char if char.isprintable() else " " for char in words)
    yield from textwrap.wrap(clean, width, initial_indent=lead, subsequent_indent=" " * len(lead))


def fixed_lines(stated: Iterable[str]) -> list[str]:
    """Return one line for all knobs that cannot be aligned for the same reason. stated: `PATH: WHY`, as a document."""
    told: dict[str, list[str]] = {}
    for item in stated:
        path, _, why = item.partition(": ")
        told.setdefault(why, []).append(path)
    return [f"cannot be aligned: {', '.join(paths)}: {why}" for why, paths in told.items()]


def columns(rows: Iterable[Sequence[str]]) -> str:
    """Return aligned columns; the first is left-aligned."""
    cells = [list(row) for row in rows]
    widths = [max(len(row[at]) for row in cells) for at in range(len(cells[0]))]
    lines = (
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in cells
    )
    return "\n".join("  " + line.rstrip() for line in lines)
