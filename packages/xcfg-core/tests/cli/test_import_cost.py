"""What only lists must start at once: no tensor library, no engine, no array library."""

from __future__ import annotations

import pytest

HEAVY = ("torch", "numpy", "safetensors", "transformers", "vllm", "megatron")
PROBE = """
import sys
from xcfg.cli.main import main
code = main({words!r})
print("heavy:", sorted({{name.partition(".")[0] for name in sys.modules}} & set({heavy!r})))
sys.exit(code)
"""


@pytest.mark.parametrize("words", [[], ["--help"], ["plugins", "list"], ["knobs", "list"], ["ops", "list"], ["schema"]])
def test_listing_imports_nothing_heavy(process, words):
    done = process("-c", PROBE.format(words=words, heavy=HEAVY))
    assert done.returncode == (0 if words else 2)
    assert done.stdout.splitlines()[-1] == "heavy: []"


def test_help_imports_no_command(process):
    done = process(
        "-c",
        "import sys\n"
        "from xcfg.cli.main import main\n"
        "main(['--help'])\n"
        "print('commands:', [name for name in sys.modules if name.startswith('xcfg.cli.cmd_')])\n",
    )
    assert done.stdout.splitlines()[-1] == "commands: []"


def test_importing_the_manager_loads_no_plugin(process):
    done = process(
        "-c",
        "import sys, xcfg.plugin.manager\n"
        "print([name for name in sys.modules if name.startswith(('xcfg_', 'kit_'))])\n",
        kinds=("good",),
    )
    assert done.stdout == "[]\n"
