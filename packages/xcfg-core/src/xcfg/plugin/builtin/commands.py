"""The commands of core: what `xcfg --help` prints and where each is found, before any plugin is loaded."""

from __future__ import annotations

from xcfg.plugin.provide import CommandProvider

CORE_COMMANDS = (
    CommandProvider(
        name="freeze",
        summary="Freeze one rollout, so that it can be scored again.",
        factory="xcfg.cli.cmd_freeze:freeze",
    ),
    CommandProvider(name="plan", summary="Show the cases of an experiment.", factory="xcfg.cli.cmd_plan:plan"),
    CommandProvider(
        name="run", summary="Score and compare every case of an experiment.", factory="xcfg.cli.cmd_run:run"
    ),
    CommandProvider(
        name="compare",
        summary="Compare what is already stored or dumped.",
        factory="xcfg.cli.cmd_compare:compare",
    ),
    CommandProvider(
        name="verify",
        summary="Check the seals of a run, and its numbers again.",
        factory="xcfg.cli.cmd_verify:verify",
    ),
    CommandProvider(
        name="matrix",
        summary="Run the debug matrix of one module: gates, controls, one factor at a time.",
        factory="xcfg.cli.cmd_matrix:matrix",
    ),
    CommandProvider(
        name="doctor",
        summary="Say what is usable here, and which engine arguments are traps.",
        factory="xcfg.cli.cmd_doctor:doctor",
    ),
    CommandProvider(
        name="plugins",
        summary="List plugins and say what is wrong with them.",
        factory="xcfg.cli.cmd_plugins:plugins",
    ),
    CommandProvider(name="knobs", summary="List what can be varied.", factory="xcfg.cli.cmd_knobs:knobs"),
    CommandProvider(
        name="ops",
        summary="List operator backends, and explain a resolution.",
        factory="xcfg.cli.cmd_ops:ops",
    ),
    CommandProvider(
        name="schema", summary="Print the JSON Schema of a document.", factory="xcfg.cli.cmd_schema:schema"
    ),
)
