"""Write the measured tables of docs/explanation/signatures.md, or check that they are what the code does.

    python tools/gen_signatures.py            measure and rewrite them
    python tools/gen_signatures.py --check    end with 1 and a diff when one is out of date

What stands between `<!-- measured: NAME -->` and `<!-- end measured -->` belongs to the function NAME below.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator

import xcfg
from calibrate_signatures import ROOT, clean, planted
from xcfg_analysis.analyze import candidates
from xcfg_analysis.recognise import recognise
from xcfg_analysis.tokens import active_tokens

PAGE = ROOT / "docs/explanation/signatures.md"
BLOCK = re.compile(r"(<!-- measured: (\w+) -->\n).*?(<!-- end measured -->)", re.DOTALL)
SEEDS = 6
CLEAN = 200
NOISE = 70

plants = planted()
tried = candidates(xcfg.load_plugins())
SETS = plants.sets()


def names(table) -> tuple[list[str], dict[str, str]]:
    found = recognise(active_tokens(table), tried)
    return [item.descriptor.name for item in found.named], dict(found.insufficient)


def draws() -> Iterator[object]:
    for of in SETS:
        for seed in range(SEEDS):
            yield plants.draw(seed, of, 0.75)


def row(cells) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |\n"


def table(head, rows) -> str:
    return row(head) + row(["---"] * len(head)) + "".join(row(cells) for cells in rows)


def planted_table() -> str:
    """Return, per signature, how often it is found by size, and what else was named."""
    total = SEEDS * len(SETS)
    rows = []
    for name, plant in plants.PLANTS.items():
        cells, others = [f"`{name}`"], Counter()
        for size in plants.SIZES:
            hits: Counter[str] = Counter()
            for it in draws():
                plant(it, size)
                named, _ = names(it.table())
                hits[it.of] += name in named
                others.update(other for other in named if other != name)
            cells.append(", ".join(f"{hits[of]} / {SEEDS}" for of in SETS))
        cells.append(", ".join(f"`{other}` {count}" for other, count in others.most_common()) or "none")
        rows.append(cells)
    return table(("signature", "full size", "half", "a quarter", f"falsely accused beside it, of {3 * total}"), rows)


def column_table() -> str:
    """Return what becomes of a full-size fault when the columns that its signature uses are left out."""
    total = SEEDS * len(SETS)
    rows = []
    for name, columns in plants.OPTIONAL_OF.items():
        hits, lacking, others = 0, 0, Counter()
        for it in draws():
            plants.PLANTS[name](it, 1.0)
            it.without = columns
            named, insufficient = names(it.table())
            hits += name in named
            lacking += name in insufficient
            others.update(other for other in named if other != name)
        other = ", ".join(f"`{key}` {count}" for key, count in others.most_common()) or "none"
        rows.append((f"`{name}`", ", ".join(f"`{item}`" for item in columns), hits, lacking, other))
    head = ("signature", "left out", f"found, of {total}", "insufficient data", "other signatures named")
    return table(head, rows)


def alike_table() -> str:
    """Return how often a signature is named on its look-alike."""
    total = SEEDS * len(SETS)
    rows = []
    for name, (what, plant) in plants.LOOK_ALIKES.items():
        wrong, others = 0, Counter()
        for it in draws():
            plant(it)
            named, _ = names(it.table())
            wrong += name in named
            others.update(other for other in named if other != name)
        other = ", ".join(f"`{key}` {count}" for key, count in others.most_common()) or "none"
        rows.append((f"`{name}`", what.replace("|", "\\|"), f"{wrong} / {total}", other))
    return table(("signature", "look-alike", "falsely accused", "named instead"), rows)


def pair_table() -> str:
    """Return how often both of two faults are named."""
    total = SEEDS * len(SETS)
    rows = []
    for first, second in (*plants.PAIRS, *plants.HARD_PAIRS):
        both, single, others = 0, Counter(), Counter()
        for it in draws():
            plants.PLANTS[first](it, 1.0)
            plants.PLANTS[second](it, 1.0)
            named, _ = names(it.table())
            both += {first, second} <= set(named)
            single.update({first, second} & set(named))
            others.update(set(named) - {first, second})
        other = ", ".join(f"`{key}` {count}" for key, count in others.most_common()) or "none"
        rows.append((f"`{first}`", f"`{second}`", f"{both} / {total}", single[first], single[second], other))
    return table(("first", "second", "both found", "first", "second", "falsely accused"), rows)


def clean_table() -> str:
    """Return how often anything is named where nothing was planted."""
    rows = []
    for of in SETS:
        accused = Counter()
        for seed in range(CLEAN):
            found = recognise(clean(plants, 1000 + seed, 1, of), tried)
            accused.update(item.descriptor.name for item in found.named)
        rows.append((f"natural drift, `{of}` set, held-out sequences", CLEAN, _accused(accused)))
    for kind in ("gaussian", "laplace", "student"):
        accused = Counter()
        for seed in range(NOISE):
            for of in SETS:
                named, _ = names(plants.noisy(seed, kind, of).table())
                accused.update(named)
        label = "Student t, 3 degrees of freedom" if kind == "student" else kind
        rows.append((f"noise of the same rms, {label}", NOISE * len(SETS), _accused(accused)))
    return table(("nothing planted", "draws", "falsely accused"), rows)


def _accused(found: Counter) -> str:
    return ", ".join(f"`{key}` {count}" for key, count in found.most_common()) or "none"


def catalogue_table() -> str:
    """Return the closed forms."""
    rows = []
    for descriptor, _ in tried:
        needs = ", ".join(f"`{name}`" for name in descriptor.needs) or "none"
        optional = ", ".join(f"`{name}`" for name in descriptor.optional)
        rows.append(
            (f"`{descriptor.name}`", descriptor.tier, descriptor.closed_form.replace("|", "\\|"), needs, optional)
        )
    return table(("signature", "tier", "closed form", "needs", "uses"), rows)


TABLES: dict[str, Callable[[], str]] = {
    item.__name__: item for item in (catalogue_table, planted_table, column_table, alike_table, pair_table, clean_table)
}


def main(arguments: list[str]) -> int:
    old = PAGE.read_text(encoding="utf-8")
    new = BLOCK.sub(lambda match: f"{match[1]}\n{TABLES[match[2]]().strip()}\n\n{match[3]}", old)
    if new == old:
        return 0
    if "--check" in arguments:
        sys.stdout.writelines(
            difflib.unified_diff(old.splitlines(True), new.splitlines(True), str(PAGE), "measured", n=1)
        )
        print("out of date: run `python tools/gen_signatures.py`")
        return 1
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
