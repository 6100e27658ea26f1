"""plugin.operators: what a worker calls with nothing but a binding."""

from __future__ import annotations

import subprocess
import sys

import pytest
from xcfg.errors import PluginError
from xcfg.plugin.operators import backend_meant, instantiate, load_factory, split_factory
from xcfg.schema.codec import evolve
from xcfg.schema.operators import OperatorBinding


def binding(factory: str, **options: object) -> OperatorBinding:
    """A binding with nothing but what instantiation reads."""
    return OperatorBinding(
        operation="selected_logprob", side="rollout", requested="x", backend_id="x", factory=factory, options=options
    )


def test_calls_are_counted(kernels):
    """If this fails, there is no evidence that an injected operator ran."""
    operator = instantiate(binding("throwaway_kernels.ops:build", rows=3))
    assert operator.calls == 0
    assert operator(1) == ((1,), {"rows": 3})
    assert operator(2) == ((2,), {"rows": 3})
    assert operator.calls == 2


def test_a_name_stands_for_the_backend_only_in_the_binding_that_was_resolved_from_it():
    """If this fails, a policy counts as applied although another backend was bound for it."""
    bound = evolve(binding("a:b"), requested="native", backend_id="kit.plain")
    assert backend_meant(bound, "native") == backend_meant(bound, "kit.plain") == "kit.plain"
    assert backend_meant(bound, "production") == "production"


def test_a_failed_call_counts_too(kernels):
    """If this fails, an operator that was reached and raised looks unreached."""
    operator = instantiate(binding("throwaway_kernels.ops:build"))
    operator.function = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        operator()
    assert operator.calls == 1


def test_two_calls_give_two_instances(kernels):
    """If this fails, a worker shares state between bindings."""
    one, two = (instantiate(binding("throwaway_kernels.ops:build")) for _ in range(2))
    assert one is not two
    assert one.function is not two.function


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("throwaway_kernels.ops:broken", "no such kernel"),
        ("throwaway_kernels.ops:no_callable", "returned a int"),
        ("throwaway_kernels.ops:CONSTANT", "is a int"),
        ("throwaway_kernels.ops:absent", "has no 'absent'"),
        ("throwaway_kernels.absent:build", "cannot be imported"),
        ("there_is_no_such_package:build", "cannot be imported"),
        ("throwaway_kernels.ops", "is not a factory"),
        ("throwaway_kernels.ops:", "is not a factory"),
        (":build", "is not a factory"),
        ("a b:c", "is not a factory"),
        ("a:b:c", "is not a factory"),
    ],
)
def test_what_cannot_be_instantiated(kernels, factory, message):
    """If this fails, a broken package ends a worker without its name."""
    with pytest.raises(PluginError, match=message):
        instantiate(binding(factory))


def test_unknown_options_name_the_backend(kernels):
    """If this fails, a TypeError of foreign code is all that a person sees."""
    (kernels / "narrow.py").write_text("def build(*, rows):\n    return print\n")
    with pytest.raises(PluginError, match=r"backend 'x'.*columns"):
        instantiate(binding("throwaway_kernels.narrow:build", columns=1))


def test_nested_attributes():
    """If this fails, a factory cannot be a class method."""
    assert split_factory("a.b:C.d") == ("a.b", "C.d")
    assert load_factory("pathlib:Path.cwd")() is not None


def test_nothing_heavy_is_imported():
    """If this fails, planning imports torch."""
    code = "import xcfg.operators, xcfg.plugin.operators, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
