"""Resolution: exact ids, ordered decisions, every refusal with its trace, nothing that leaks between sessions."""

from __future__ import annotations

import pytest
from xcfg.errors import PluginError, UnknownNameError, UsageError
from xcfg.operators import OperatorResolutionError
from xcfg.operators.checks import CHECKS
from xcfg.schema.codec import decode_json, pretty_json
from xcfg.schema.knobs import Choice, FloatRange, IntRange, Text
from xcfg.schema.operators import OperatorBinding, OperatorChoice, OptionDefinition

OP = "selected_logprob"
ORDER = (
    "registered",
    "target",
    "runtime",
    "smoke permission",
    "device",
    "dtype",
    "topology",
    "properties",
    "observability",
    "fallback policy",
    "options",
    "diagnostic-only",
)


def refused(session, choice, context, side="rollout"):
    """The names of the refused checks, and the error."""
    with pytest.raises(OperatorResolutionError) as caught:
        session.resolve(OP, side, choice, context)
    error = caught.value
    return [decision.check for decision in error.trace if not decision.ok], error


def test_a_binding_says_everything(session, descriptor, context):
    """If this fails, provenance of an operator is incomplete."""
    made = session(descriptor(aliases=("short",), version="7", build_fingerprint="sm90-abc"))
    binding = made.resolve(OP, "rollout", OperatorChoice(backend="short"), context())
    assert (binding.requested, binding.backend_id, binding.side) == ("short", "acme.logp", "rollout")
    assert (binding.distribution, binding.distribution_version) == ("dist-a", "1.2")
    assert (binding.version, binding.build_fingerprint) == ("7", "sm90-abc")
    assert len(binding.source_digest) == 64
    assert tuple(decision.check for decision in binding.trace) == ORDER
    assert all(decision.ok and decision.detail for decision in binding.trace)
    assert made.bindings == (binding,)


def test_the_checks_are_in_their_documented_order():
    """If this fails, traces of two versions cannot be read side by side."""
    assert tuple(name for name, _ in CHECKS) == ORDER


def test_a_binding_survives_the_worker_protocol(session, descriptor, context):
    """If this fails, what the supervisor resolved is not what the worker instantiates."""
    binding = session(descriptor()).resolve(OP, "rollout", OperatorChoice(backend="acme.logp"), context())
    assert decode_json(pretty_json(binding), OperatorBinding) == binding


@pytest.mark.parametrize(
    ("check", "declared", "where"),
    [
        ("target", {"targets": ("training",)}, {}),
        ("runtime", {"runtimes": ("vllm",)}, {}),
        ("device", {"devices": ("cuda",)}, {}),
        ("device", {"architectures": ("sm_90",)}, {}),
        ("device", {"architectures": ("sm_90",), "devices": ("cuda",)}, {"device": "cuda:0", "architecture": "sm_80"}),
        ("dtype", {"dtypes": ("float32",)}, {}),
        ("topology", {"topologies": {"rollout": {"tensor_parallel_size": 2}}}, {}),
        ("topology", {"topologies": {"rollout": {"context_parallel_size": 1}}}, {}),
        ("topology", {"required_metadata": ("vocab_shard_map",)}, {}),
        ("properties", {}, {"required_properties": ("batch-invariant",)}),
        ("observability", {"observable": False}, {}),
        ("fallback policy", {"fallback": "declared"}, {}),
        ("fallback policy", {"fallback": "runtime_managed"}, {}),
    ],
)
def test_each_refusal(session, descriptor, context, check, declared, where):
    """If this fails, a backend runs where it never said that it can."""
    made = session(descriptor(**declared))
    names, error = refused(made, OperatorChoice(backend="acme.logp"), context(**where))
    assert names == [check]
    assert len(error.trace) == len(ORDER)
    assert f"{check} (" in error.message
    assert (error.kind, error.exit_code) == ("operator", 2)
    assert made.bindings == ()


@pytest.mark.parametrize(
    ("declared", "where"),
    [
        ({"devices": ("cuda",), "architectures": ("sm_90",)}, {"device": "cuda:3", "architecture": "sm_90"}),
        ({"topologies": {"training": {"tensor_parallel_size": 8}}}, {}),
        ({"topologies": {"rollout": {"tensor_parallel_size": 1}}}, {}),
        ({"required_metadata": ("vocab_shard_map",)}, {"metadata": ("vocab_shard_map",)}),
        ({"runtimes": ("vllm", "torch")}, {}),
        ({"observable": False}, {"strict": False}),
        ({"fallback": "declared"}, {"strict": False}),
        ({"properties": ("run-to-run", "batch-invariant")}, {"required_properties": ("batch-invariant",)}),
    ],
)
def test_each_permission(session, descriptor, context, declared, where):
    """If this fails, a refusal is too wide: the pair of the test above must be able to pass."""
    binding = session(descriptor(**declared)).resolve(
        OP, "rollout", OperatorChoice(backend="acme.logp"), context(**where)
    )
    assert all(decision.ok for decision in binding.trace)


def test_every_refusal_is_listed(session, descriptor, context):
    """If this fails, a person repairs one reason only to meet the next."""
    made = session(descriptor(targets=("training",), devices=("cuda",), dtypes=("float32",)))
    names, _ = refused(made, OperatorChoice(backend="acme.logp", options={"x": 1}), context())
    assert names == ["target", "device", "dtype", "options"]


def test_smoke_needs_the_flag_and_the_runtime(session, descriptor, context):
    """If this fails, one of the two authorisations is enough."""
    smoke = descriptor("smoke", smoke_only=True, runtimes=("cpu-smoke",))
    made = session(smoke, runtimes=("cpu-smoke",))
    choice = OperatorChoice(backend="smoke")
    assert refused(made, choice, context(runtime="cpu-smoke"))[0] == ["smoke permission"]
    assert refused(made, choice, context(runtime="torch", allow_smoke=True))[0] == ["runtime", "smoke permission"]
    binding = made.resolve(OP, "rollout", choice, context(runtime="cpu-smoke", allow_smoke=True))
    assert binding.smoke_only


def test_policies_resolve_through_the_table_only(session, descriptor, context):
    """If this fails, a policy is guessed instead of declared."""
    table = {OP: {"production": "prod", "deterministic": "det", "reference": "ref"}}
    made = session(*(descriptor(name) for name in ("prod", "det", "ref")), policies=table)
    for asked, backend in (("native", "prod"), ("production", "prod"), ("deterministic", "det"), ("reference", "ref")):
        binding = made.resolve(OP, "rollout", OperatorChoice(backend=asked), context())
        assert (binding.requested, binding.backend_id) == (asked, backend)
        assert binding.trace[0].check == "policy"
        assert backend in binding.trace[0].detail


def test_a_policy_that_the_runtime_lacks_is_refused(session, descriptor, context):
    """If this fails, `deterministic` silently means some other backend."""
    made = session(descriptor("prod"), policies={OP: {"production": "prod"}})
    names, error = refused(made, OperatorChoice(backend="deterministic"), context())
    assert names == ["policy"]
    assert "production" in error.hint


def test_reference_is_an_alias_where_no_table_names_it(session, descriptor, context):
    """If this fails, `reference` needs an entry in every runtime."""
    made = session(descriptor("xcfg.ref", aliases=("reference",)))
    assert made.resolve(OP, "rollout", OperatorChoice(backend="reference"), context()).backend_id == "xcfg.ref"


def test_the_table_of_the_side_comes_first(session, descriptor, context):
    """If this fails, two different runtimes in one case share one meaning of production."""
    made = session(descriptor("a"), descriptor("b"), policies={OP: {"production": "a"}})
    other = context(policies={OP: {"production": "b"}})
    assert made.resolve(OP, "training", OperatorChoice(backend="native"), other).backend_id == "b"
    assert made.resolve(OP, "rollout", OperatorChoice(backend="native"), context()).backend_id == "a"


def test_deterministic_must_declare_run_to_run(session, descriptor, context):
    """If this fails, the policy promises what its backend never claimed."""
    made = session(descriptor("det", properties=()), policies={OP: {"deterministic": "det"}})
    assert refused(made, OperatorChoice(backend="deterministic"), context())[0] == ["properties"]
    assert made.resolve(OP, "rollout", OperatorChoice(backend="det"), context()).backend_id == "det"


@pytest.mark.parametrize("asked", ["production", "native"])
def test_diagnostic_only_is_never_production(session, descriptor, context, asked):
    """If this fails, a wrong-on-purpose backend can become the baseline."""
    made = session(descriptor("diag", diagnostic_only=True), policies={OP: {"production": "diag"}})
    assert refused(made, OperatorChoice(backend=asked), context())[0] == ["diagnostic-only"]
    assert made.resolve(OP, "rollout", OperatorChoice(backend="diag"), context()).backend_id == "diag"


def test_a_policy_that_names_an_absent_backend_says_so(session, descriptor, context):
    """If this fails, the message names an id that the person never typed."""
    made = session(descriptor(), policies={OP: {"production": "acme.lgp"}})
    with pytest.raises(UnknownNameError, match="'torch' means it by 'production'"):
        made.resolve(OP, "rollout", OperatorChoice(backend="native"), context())


OPTIONS = (
    OptionDefinition(name="mode", domain=Choice(values=("a", "b", 1, 0.5)), default="a"),
    OptionDefinition(name="rows", domain=IntRange(minimum=1, maximum=8)),
    OptionDefinition(name="label", domain=Text(pattern=r"[a-z]+")),
    OptionDefinition(name="shift", domain=FloatRange(maximum=1.0)),
)


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "c"},
        {"mode": True},
        {"mode": 1.0},
        {"rows": 0},
        {"rows": 9},
        {"rows": True},
        {"rows": 2.0},
        {"label": "A"},
        {"label": "ab\n"},
        {"label": None},
        {"shift": 1.5},
        {"shift": 2},
        {"shift": True},
        {"shift": "0.5"},
        {"shift": float("nan")},
        {"shift": float("-inf")},
        {"row": 2},
    ],
)
def test_options_outside_their_domain(session, descriptor, context, options):
    """If this fails, a value that the backend never declared reaches it."""
    made = session(descriptor(options=OPTIONS))
    names, error = refused(made, OperatorChoice(backend="acme.logp", options=options), context())
    assert names == ["options"]
    assert repr(next(iter(options))) in error.message


def test_options_are_completed_and_passed(session, descriptor, context):
    """If this fails, the binding does not say which values the factory gets."""
    made = session(descriptor(options=OPTIONS))
    choice = OperatorChoice(backend="acme.logp", options={"rows": 8, "label": "abc"})
    binding = made.resolve(OP, "rollout", choice, context())
    assert binding.options == {"label": "abc", "mode": "a", "rows": 8}
    assert made.instantiate(binding)(1, 2) == ((1, 2), binding.options)


@pytest.mark.parametrize("value", [-3, 1, 0.5, -1e-9])
def test_a_number_for_a_float_option_is_bound_as_a_float(session, descriptor, context, value):
    """If this fails, 1 and 1.0 are two bindings of one backend, or a factory gets an int for a float."""
    made = session(descriptor(options=OPTIONS))
    choice = OperatorChoice(backend="acme.logp", options={"shift": value})
    found = made.resolve(OP, "rollout", choice, context()).options["shift"]
    assert type(found) is float
    assert found == value


def test_one_instance_per_binding_and_session(session, descriptor, context):
    """If this fails, state of a backend is rebuilt in the middle of a case, or outlives it."""
    first, second = session(descriptor()), session(descriptor())
    choice = OperatorChoice(backend="acme.logp")
    one = first.resolve(OP, "rollout", choice, context())
    again = first.resolve(OP, "rollout", choice, context())
    assert first.instantiate(one) is first.instantiate(again)
    assert first.bindings == (one,)
    training = first.resolve(OP, "training", choice, context())
    assert first.instantiate(training) is not first.instantiate(one)
    other = second.resolve(OP, "rollout", choice, context())
    assert second.instantiate(other) is not first.instantiate(one)
    assert second.instantiate(other).calls == 0


def test_a_binding_of_another_session_is_refused(session, descriptor, context):
    """If this fails, provenance of one case can come from another."""
    binding = session(descriptor()).resolve(OP, "rollout", OperatorChoice(backend="acme.logp"), context())
    with pytest.raises(UsageError, match="not resolved in this session"):
        session(descriptor()).instantiate(binding)


def test_a_failed_build_leaves_nothing(session, descriptor, context, kernels):
    """If this fails, a case inherits the failure of the one before it."""
    made = session(descriptor(factory="throwaway_kernels.ops:broken"), descriptor("good"))
    bad = made.resolve(OP, "rollout", OperatorChoice(backend="acme.logp"), context())
    with pytest.raises(PluginError, match="no such kernel"):
        made.instantiate(bad)
    import throwaway_kernels.ops as ops

    ops.broken = ops.build
    assert made.instantiate(bad)() == ((), {})
    good = made.resolve(OP, "rollout", OperatorChoice(backend="good"), context())
    assert made.instantiate(good)() == ((), {})


def test_a_refusal_changes_nothing(session, descriptor, context):
    """If this fails, a refused choice alters what comes after it."""
    made = session(descriptor(devices=("cuda",)), descriptor("good"))
    first = refused(made, OperatorChoice(backend="acme.logp"), context())[1]
    second = refused(made, OperatorChoice(backend="acme.logp"), context())[1]
    assert first.trace == second.trace
    made.resolve(OP, "rollout", OperatorChoice(backend="good"), context())
    assert [binding.backend_id for binding in made.bindings] == ["good"]
