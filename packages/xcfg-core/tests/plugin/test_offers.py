"""The check of one returned record, and versions and references, each by itself."""

from __future__ import annotations

import sys

import pytest
from xcfg.errors import MissingDependencyError, PluginError
from xcfg.plugin import CommandProvider, DebugMatrix, SignatureDescriptor
from xcfg.plugin._compat import excludes_api, excludes_core, unmet
from xcfg.plugin._offers import COMMANDS, KNOBS, MATRICES, OPERATORS, SIGNATURES, check_records
from xcfg.plugin._resolve import describe, resolve
from xcfg.schema.knobs import Choice, KnobDefinition
from xcfg.schema.names import Lifecycle, SourceClass, Target
from xcfg.schema.operators import OperatorBackendDescriptor


def knob(name="kit.switch", **changes):
    return KnobDefinition(
        **{
            "name": name,
            "summary": "A knob.",
            "source_class": SourceClass.EXECUTION,
            "lifecycle": Lifecycle.REQUEST,
            "targets": Target.BOTH,
            "domain": Choice(values=(1, True, 0.5, "a")),
            **changes,
        }
    )


def backend(name, *aliases, operation="op"):
    return OperatorBackendDescriptor(
        operation=operation, backend_id=name, summary="A backend.", factory="m:f", aliases=aliases
    )


def test_a_checked_record_equals_what_was_returned():
    (checked,) = check_records(KNOBS, (knob(),))
    assert checked == knob()
    assert [type(value) for value in checked.domain.values] == [int, bool, float, str]


def test_plain_spellings_become_the_declared_types():
    (checked,) = check_records(KNOBS, (knob(lifecycle="request", domain=Choice(values=["a"])),))
    assert checked.lifecycle is Lifecycle.REQUEST
    assert checked.domain == Choice(values=("a",))


@pytest.mark.parametrize(
    ("record", "told"),
    [
        (knob(lifecycle="never"), "$.lifecycle"),
        (knob(name=""), "no usable name"),
        (knob(name="a b"), "no usable name"),
        (knob(name="batch.size@rollout"), "no usable name"),
        (knob(domain=None), "$.domain"),
        (knob(domain=object()), "object"),
        (knob(aliases={"a": {1, 2}}), "$.aliases"),
    ],
)
def test_faulty_fields_are_refused_with_their_path(record, told):
    with pytest.raises(PluginError) as caught:
        check_records(KNOBS, (knob("kit.good"), record))
    assert "xcfg_knobs[1]" in caught.value.message
    assert told in caught.value.message


def test_a_record_of_another_hook_is_refused():
    with pytest.raises(PluginError, match="not CommandProvider"):
        check_records(COMMANDS, (knob(),))


def test_aliases_are_ids_within_one_operation():
    with pytest.raises(PluginError, match="'op/x' twice"):
        check_records(OPERATORS, (backend("x"), backend("y", "x")))
    assert len(check_records(OPERATORS, (backend("x"), backend("x", operation="other"), backend("y", "y")))) == 3


def test_only_a_planned_record_may_lack_its_factory():
    planned = DebugMatrix(module="m", summary="s", factory="", status="planned")
    assert check_records(MATRICES, (planned,)) == (planned,)
    for status, factory in (("available", ""), ("planned", "nonsense"), ("soon", "m:f")):
        with pytest.raises(PluginError):
            check_records(MATRICES, (DebugMatrix(module="m", summary="s", factory=factory, status=status),))
    with pytest.raises(PluginError):
        check_records(COMMANDS, (CommandProvider(name="c", summary="s", factory="module.attr"),))


@pytest.mark.parametrize(
    ("requires", "version", "excluded"),
    [
        (["xcfg-core>=0.1,<0.2"], "0.1.5", False),
        (["xcfg-core>=0.1,<0.2"], "0.2.0", True),
        (["XCFG_Core<0.1"], "0.1.0", True),
        (["xcfg-core>=0.1"], "0.2.0rc1", False),
        (["xcfg-core>=9; extra == 'x'"], "0.1.0", False),
        (["xcfg-core>=9; python_version >= '3'"], "0.1.0", True),
        (["other>=9", "not a requirement at all ("], "0.1.0", False),
        (["xcfg-core ~~ 3"], "0.1.0", True),
        (["xcfg-core>=9"], "", False),
        ([], "0.1.0", False),
    ],
)
def test_requirement_on_core(requires, version, excluded):
    assert bool(excludes_core(requires, version)) is excluded


@pytest.mark.parametrize(("number", "excluded"), [(1, False), (2, True), (0, True), ("1", True), (True, True)])
def test_interface_number(number, excluded):
    plugin = type("Plugin", (), {"XCFG_API": number})
    assert bool(excludes_api(plugin)) is excluded


def test_unmet_requirements():
    assert unmet(("pluggy>=1.0", "msgspec", "xcfg-kit-none | pluggy")) == ()
    assert unmet(("xcfg-kit-none>=1",)) == ("xcfg-kit-none>=1 (not installed)",)
    (low,) = unmet(("pluggy>=999",))
    assert low.startswith("pluggy>=999 (installed is ")
    assert len(unmet(("xcfg-kit-none | pluggy>=999", "??"))) == 2


def test_resolve_finds_nested_attributes():
    assert resolve("os.path:join") is __import__("os").path.join
    assert resolve("collections:OrderedDict.fromkeys")


@pytest.mark.parametrize("reference", ["", "os", "os:", ":join", "os.path.join", "os:path:join", "os:a b", "1os:x"])
def test_resolve_refuses_what_is_no_reference(reference):
    with pytest.raises(PluginError, match="is not 'module:attr'"):
        resolve(reference)


def test_resolve_says_which_module_is_missing_and_how_to_get_it(tmp_path, monkeypatch):
    with pytest.raises(MissingDependencyError, match="needs the module 'kit_nowhere'") as caught:
        resolve("kit_nowhere.deep:f", install_hint="pip install kit", owner="kit")
    assert caught.value.hint == "pip install kit"
    (tmp_path / "kit_needs.py").write_text("import kit_absent\n")
    (tmp_path / "kit_leaves.py").write_text("import sys\nprint('noise')\nsys.exit(0)\n")
    (tmp_path / "kit_breaks.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingDependencyError, match="needs the module 'kit_absent'") as caught:
        resolve("kit_needs:f")
    assert "'kit_absent'" in caught.value.hint
    with pytest.raises(PluginError, match="ZeroDivisionError"):
        resolve("kit_breaks:f")
    with pytest.raises(PluginError, match="SystemExit"):
        resolve("kit_leaves:f")


def test_resolve_keeps_stdout_clean(tmp_path, monkeypatch, capsys):
    (tmp_path / "kit_prints.py").write_text("print('noise')\nvalue = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert resolve("kit_prints:value") == 1
    assert capsys.readouterr().out == ""
    assert "kit_prints" in sys.modules


def test_resolve_names_the_attribute_that_is_absent():
    with pytest.raises(PluginError, match=r"'os\.path' has no attribute 'nothing'"):
        resolve("os.path:nothing")


def test_describe_is_one_short_line():
    assert describe(ValueError("a\n b")) == "ValueError: a b"
    assert describe(ValueError()) == "ValueError"
    assert len(describe(ValueError("x" * 999))) == 300


def test_a_signature_is_an_offer_like_any_other():
    """Failing means that two signatures of one name are both tried, or that one without a factory is."""
    lag = SignatureDescriptor(name="lag", summary="A lag.", factory="m:Lag", needs=["rank"])
    (checked,) = check_records(SIGNATURES, (lag,))
    assert checked.needs == ("rank",)
    with pytest.raises(PluginError, match="the signature 'lag' twice"):
        check_records(SIGNATURES, (lag, lag))
    with pytest.raises(PluginError, match="not 'module:attr'"):
        check_records(SIGNATURES, (SignatureDescriptor(name="x", summary="X.", factory=""),))
