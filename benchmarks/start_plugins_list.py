"""Start-up: `xcfg plugins list` against a click command line that prints one word.

Both are fresh interpreters. What remains is finding and loading every plugin; no torch may be loaded on the way.
"""

from __future__ import annotations

import subprocess
import sys

from _ratio import alternate, arguments, report, timed

BARE = """
import click

@click.group()
def cli(): ...

@cli.command()
def show():
    click.echo("hello")

cli(["show"])
"""
PROBE = """
import sys
from xcfg.cli.main import main
code = main(["plugins", "list"])
heavy = [name for name in ("torch", "transformers", "vllm", "megatron") if name in sys.modules]
raise SystemExit(f"loaded {heavy}" if heavy else code)
"""


def run(*command: str) -> None:
    """Run one interpreter to its end; CalledProcessError when it fails."""
    subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    given = arguments(__doc__, 15).parse_args()
    run("-c", PROBE)
    ratio = alternate(timed(lambda: run("-m", "xcfg", "plugins", "list")), timed(lambda: run("-c", BARE)), given.rounds)
    report("start_plugins_list", ratio, as_json=given.json, torch_loaded=False)


if __name__ == "__main__":
    main()
