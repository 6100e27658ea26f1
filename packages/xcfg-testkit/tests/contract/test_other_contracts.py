"""Knob, renderer, dump-reader and plugin contracts: good fakes pass, each bad one fails on its test."""

from __future__ import annotations

import textwrap

import pytest
from xcfg_testkit.fakes.knobs import BAD as BAD_KNOBS

pytest_plugins = ["pytester"]

RENDERERS = {
    "text": "test_renders_bytes",
    "empty": "test_renders_bytes",
    "clock": "test_same_bytes_each_time",
    "only_passes": "test_every_case_and_status_is_there",
    "all_pass": "test_a_failure_is_no_pass",
    "no_status": "test_statuses_change_the_output",
    "unescaped": "test_markup_is_escaped",
}
READERS = {
    "NeverDetects": "test_recognises_its_own",
    "ClaimsAll": "test_refuses_what_is_not_its_own",
    "DropsLast": "test_reads_every_value",
    "Ragged": "test_reads_every_value",
    "Unstable": "test_reads_the_same_twice",
    "Eager": "test_reads_in_batches",
    "ForgivesMissing": "test_a_missing_file_is_an_artifact_error",
    "ForgivesTruncated": "test_a_truncated_file_is_an_artifact_error",
    "Unpickles": "test_nothing_is_unpickled",
}


def test_knobs(outcomes, failed):
    """If this fails, a knob that the planner cannot use is accepted."""
    source = (
        "from xcfg_testkit import KnobContract\nfrom xcfg_testkit.fakes import knobs as fakes\n\n"
        "class TestGood(KnobContract):\n    knobs = fakes.GOOD\n\n"
    )
    source += "".join(f"class Test_{name}(KnobContract):\n    knobs = fakes.BAD['{name}']\n\n" for name in BAD_KNOBS)
    found = outcomes(source)
    assert failed(found["TestGood"]) == set()
    for name in BAD_KNOBS:
        test = name.rstrip("_0123456789")
        assert failed(found[f"Test_{name}"]) == {test}, name


def test_renderers(outcomes, failed):
    """If this fails, a report that hides a failed case is accepted."""
    source = (
        "from xcfg_testkit import RendererContract\nfrom xcfg_testkit.fakes import renderers as fakes\n\n"
        "class TestSuffix(RendererContract):\n    descriptor = fakes.descriptor('good', suffixes=('html',))\n\n"
    )
    source += "".join(
        f"class Test_{name}(RendererContract):\n    descriptor = fakes.descriptor('{name}')\n\n"
        for name in ("good", *RENDERERS)
    )
    found = outcomes(source)
    assert failed(found["Test_good"]) == set()
    assert failed(found["TestSuffix"]) == {"test_descriptor"}
    for name, test in RENDERERS.items():
        assert test in failed(found[f"Test_{name}"]), name
    assert "test_no_cases" in failed(found["Test_all_pass"])


def test_dump_readers(outcomes, failed):
    """If this fails, a reader that loses tokens or runs code is accepted."""
    source = "from xcfg_testkit import DumpReaderContract\nfrom xcfg_testkit.fakes import readers as fakes\n\n"
    source += "".join(
        f"class Test{name}(DumpReaderContract):\n    descriptor = fakes.descriptor('{name}')\n"
        "    def write_sample(self, folder):\n        return fakes.write_sample(folder)\n"
        "    def expected(self):\n        return fakes.SAMPLE\n\n"
        for name in ("Good", *READERS)
    )
    found = outcomes(source)
    assert failed(found["TestGood"]) == set()
    for name, test in READERS.items():
        assert test in failed(found[f"Test{name}"]), name


GOOD_PLUGIN = """
from xcfg.plugin import hookimpl
from xcfg_testkit.fakes.knobs import GOOD
from xcfg.schema.operators import OperatorBackendDescriptor

def backend(name, **fields):
    return OperatorBackendDescriptor(operation="gemm", backend_id=name, summary="s", factory="json:dumps", **fields)

@hookimpl
def xcfg_knobs():
    return GOOD

@hookimpl
def xcfg_operator_backends():
    return (backend("a"), backend("b"))
"""
WITH_TABLE = (
    GOOD_PLUGIN
    + """
from xcfg.schema.arguments import ArgumentTable, Condition, EngineArgument, Outcome, Trap
from xcfg.schema.runtime import RuntimeDescriptor

@hookimpl
def xcfg_runtimes():
    fields = {"adapter": "json:dumps", "placement": "json:dumps", "arguments": f"{__name__}:table"}
    return (RuntimeDescriptor(name="r", summary="s", arms={}, **fields),)

def table():
    when = (Condition(flag="block-size"),)
    return ArgumentTable(
        arguments=(EngineArgument(flags=("block-size", "X_Y")),),
        traps=(Trap(name="t", when=when, outcome=Outcome.TRAP, happens="it bites", source="seen"),),
    )
"""
)
PLUGINS = {
    "test_argument_tables_hold_together": WITH_TABLE.replace("    when =", "    import torch\n    when ="),
    "test_argument_tables_hold_together_2": WITH_TABLE.replace('"X_Y"', '"block-size"'),
    "test_argument_tables_hold_together_3": WITH_TABLE.replace('"X_Y"', '"block_sizes"'),
    "test_argument_tables_hold_together_4": WITH_TABLE.replace('flag="block-size"', 'flag="never"'),
    "test_argument_tables_hold_together_5": WITH_TABLE.replace("when=when", "when=()"),
    "test_argument_tables_hold_together_6": WITH_TABLE.replace('source="seen"', 'source=""'),
    "test_argument_tables_hold_together_7": WITH_TABLE.replace("return ArgumentTable(", "return dict("),
    "test_it_is_light": "import torch" + GOOD_PLUGIN,
    "test_hooks_are_known": GOOD_PLUGIN + "\n@hookimpl\ndef xcfg_knob():\n    return ()\n",
    "test_hooks_are_known_2": GOOD_PLUGIN + "\ndef xcfg_runtimes():\n    return ()\n",
    "test_hooks_return_tuples_of_records": GOOD_PLUGIN.replace("return GOOD", "return list(GOOD)"),
    "test_hooks_return_tuples_of_records_2": GOOD_PLUGIN.replace("return GOOD", "return (backend('c'),)").replace(
        "return (backend('c'),)", "return (backend('c'),)"
    ),
    "test_it_registers_something": "x = 1\n",
    "test_ids_are_unique": GOOD_PLUGIN.replace('backend("b")', 'backend("b", aliases=("a",))'),
    "test_records_survive_json": GOOD_PLUGIN.replace('backend("b")', 'backend("b", topologies={"rollout": {1: 2}})'),
    "test_factories_name_what_exists": GOOD_PLUGIN.replace("json:dumps", "json:absent"),
    "test_factories_name_what_exists_2": GOOD_PLUGIN.replace("json:dumps", "there_is_no_such_package:x"),
}


def test_plugins(outcomes, failed, pytester, monkeypatch):
    """If this fails, a plugin that the loader cannot use, or that slows every command, is accepted."""
    monkeypatch.syspath_prepend(str(pytester.path))
    monkeypatch.setenv("PYTHONPATH", str(pytester.path))
    source = "from xcfg_testkit import PluginContract\n\n"
    for name, text in {"good": GOOD_PLUGIN, "table": WITH_TABLE, **PLUGINS}.items():
        (pytester.path / f"inner_{name}.py").write_text(textwrap.dedent(text))
        source += f"class Test_{name}(PluginContract):\n    module = 'inner_{name}'\n\n"
    source += "class TestEntry(PluginContract):\n    module = 'inner_good'\n    entry_point = 'ops-logp'\n"
    found = outcomes(source)
    assert failed(found["Test_good"]) == set()
    assert failed(found["Test_table"]) == set()
    assert failed(found["TestEntry"]) == {"test_the_entry_point"}
    for name in PLUGINS:
        assert name.rstrip("_0123456789") in failed(found[f"Test_{name}"]), name


@pytest.mark.parametrize("name", ["xcfg_ops_logp.plugin"])
def test_a_real_plugin(outcomes, failed, name):
    """If this fails, the package that ships with xcfg breaks its own contract."""
    found = outcomes(
        "from xcfg_testkit import PluginContract\n\n"
        f"class TestReal(PluginContract):\n    module = '{name}'\n    entry_point = 'ops-logp'\n"
    )
    assert failed(found["TestReal"]) == set()
