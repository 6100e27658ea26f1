"""Implements every hook, and writes down the order in which they were called."""

from __future__ import annotations

from xcfg.plugin import hookimpl

TRANSCRIPT = []


@hookimpl
def xcfg_after_run(summary, folder, experiment):
    TRANSCRIPT.append(f"xcfg_after_run {summary} {folder} {experiment}")


@hookimpl
def xcfg_after_case(summary, case):
    TRANSCRIPT.append(f"xcfg_after_case {case} {summary}")


@hookimpl
def xcfg_before_case(case):
    TRANSCRIPT.append(f"xcfg_before_case {case}")


@hookimpl
def xcfg_commands():
    TRANSCRIPT.append("xcfg_commands")
    return ()


@hookimpl
def xcfg_profiles():
    TRANSCRIPT.append("xcfg_profiles")
    return ()


@hookimpl
def xcfg_dump_readers():
    TRANSCRIPT.append("xcfg_dump_readers")
    return ()


@hookimpl
def xcfg_signatures():
    TRANSCRIPT.append("xcfg_signatures")
    return ()


@hookimpl
def xcfg_renderers():
    TRANSCRIPT.append("xcfg_renderers")
    return ()


@hookimpl
def xcfg_debug_matrices():
    TRANSCRIPT.append("xcfg_debug_matrices")
    return ()


@hookimpl
def xcfg_checkpoints():
    TRANSCRIPT.append("xcfg_checkpoints")
    return ()


@hookimpl
def xcfg_runtimes():
    TRANSCRIPT.append("xcfg_runtimes")
    return ()


@hookimpl
def xcfg_operator_backends():
    TRANSCRIPT.append("xcfg_operator_backends")
    return ()


@hookimpl
def xcfg_knobs():
    TRANSCRIPT.append("xcfg_knobs")
    return ()
