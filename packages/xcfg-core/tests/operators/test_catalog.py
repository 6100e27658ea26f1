"""The catalogue: immutable, by exact id or alias, conflicts and unknown names explained."""

from __future__ import annotations

import pytest
from xcfg.errors import PluginError, UnknownNameError
from xcfg.operators import SemanticOperatorCatalog


def test_found_by_id_and_alias(descriptor, provided):
    """If this fails, an alias that an experiment uses does not reach its backend."""
    catalog = SemanticOperatorCatalog.from_provided([provided(descriptor(aliases=("pytorch", "reference")))])
    for name in ("acme.logp", "pytorch", "reference"):
        assert catalog.get("selected_logprob", name).descriptor.backend_id == "acme.logp"
    assert catalog.get("selected_logprob", "pytorch").distribution == "dist-a"
    assert catalog.operations == ("selected_logprob",)


def test_each_backend_is_listed_once_and_sorted(descriptor, provided):
    """If this fails, `xcfg ops list` shows a backend per alias."""
    items = [provided(descriptor(name, aliases=(f"{name}-alias",))) for name in ("b", "a")]
    catalog = SemanticOperatorCatalog.from_provided(items)
    assert [entry.descriptor.backend_id for entry in catalog.entries()] == ["a", "b"]
    assert catalog.entries("gemm") == ()


def test_nothing_can_be_added_afterwards(descriptor, provided):
    """If this fails, one case can change what the next one resolves."""
    catalog = SemanticOperatorCatalog.from_provided([provided(descriptor())])
    with pytest.raises(TypeError):
        catalog.by_name["selected_logprob"]["other"] = catalog.by_name["selected_logprob"]["acme.logp"]
    with pytest.raises(TypeError):
        catalog.by_name["gemm"] = {}
    with pytest.raises(AttributeError):
        catalog.by_name = {}


def test_no_prefix_no_case_folding(descriptor, provided):
    """If this fails, resolution is by likeness and not by exact id."""
    catalog = SemanticOperatorCatalog.from_provided([provided(descriptor())])
    for name in ("acme", "ACME.LOGP", "acme.logp ", ""):
        assert catalog.find("selected_logprob", name) is None


def test_unknown_names_say_what_is_near(descriptor, provided):
    """If this fails, a typing error costs a search through the documentation."""
    catalog = SemanticOperatorCatalog.from_provided([provided(descriptor())])
    with pytest.raises(UnknownNameError, match=r"'acme.lgp' of 'selected_logprob'") as caught:
        catalog.get("selected_logprob", "acme.lgp")
    assert "Did you mean 'acme.logp'?" in caught.value.hint
    with pytest.raises(UnknownNameError, match="operation 'selected_logprobs'") as caught:
        catalog.get("selected_logprobs", "acme.logp")
    assert "Did you mean 'selected_logprob'?" in caught.value.hint
    with pytest.raises(UnknownNameError):
        SemanticOperatorCatalog.from_provided([]).get("selected_logprob", "acme.logp")


def test_one_name_twice_is_a_conflict_that_names_both(descriptor, provided):
    """If this fails, whichever plugin loads last wins silently."""
    items = [
        provided(descriptor("one", aliases=("shared",)), "dist-a"),
        provided(descriptor("shared"), "dist-b"),
    ]
    with pytest.raises(PluginError, match=r"'shared'.*dist-a.*dist-b"):
        SemanticOperatorCatalog.from_provided(items)


def test_one_name_in_two_operations_is_no_conflict(descriptor, provided):
    """If this fails, two operators cannot both have a backend called after their library."""
    items = [provided(descriptor("one")), provided(descriptor("one", operation="gemm"))]
    assert SemanticOperatorCatalog.from_provided(items).operations == ("gemm", "selected_logprob")


def test_smoke_backends_need_their_runtime(descriptor, provided):
    """If this fails, a test backend can be selected on a production runtime."""
    items = [provided(descriptor("smoke", smoke_only=True, runtimes=("cpu-smoke",)))]
    for runtimes in ((), ("torch",)):
        catalog = SemanticOperatorCatalog.from_provided(items, runtimes=runtimes)
        with pytest.raises(UnknownNameError, match="smoke backend") as caught:
            catalog.get("selected_logprob", "smoke")
        assert "'cpu-smoke'" in caught.value.hint
    named = SemanticOperatorCatalog.from_provided(items, runtimes=("torch", "cpu-smoke"))
    assert named.get("selected_logprob", "smoke").descriptor.smoke_only


def test_a_smoke_backend_without_runtimes_is_never_included(descriptor, provided):
    """If this fails, an incomplete smoke descriptor counts as one for every runtime."""
    catalog = SemanticOperatorCatalog.from_provided(
        [provided(descriptor("smoke", smoke_only=True))], runtimes=("torch", "cpu-smoke")
    )
    assert catalog.entries() == ()
