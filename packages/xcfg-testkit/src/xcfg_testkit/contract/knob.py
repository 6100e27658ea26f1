"""What a declared knob must fulfil, so that planning, running and analysis can read it without its package."""

from __future__ import annotations

import json
import math
import re
from typing import Any, ClassVar

from xcfg.schema.knobs import Choice, FloatRange, IntRange, KnobDefinition

from xcfg_testkit.contract.guard import Contract
from xcfg_testkit.domains import admits

PATH = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+")
FORBIDDEN = ("threshold", "fixed_threshold", "tolerance", "atol", "rtol", "allow_smoke_operators", "plan_only")


class KnobContract(Contract):
    """Give `knobs`, the tuple that your hook returns."""

    needs = ("knobs",)
    knobs: ClassVar[tuple[KnobDefinition, ...]]

    def test_there_are_knobs(self) -> None:
        """Failing means an empty tuple, over which every other test would hold. Give the knobs of your hook."""
        assert self.knobs

    def test_names(self) -> None:
        """Failing means a name that no experiment file can use, or one that stands twice.

        A name is a dotted path in lower case. Nothing may be called a threshold or tolerance: one rule decides.
        """
        names = [knob.name for knob in self.knobs]
        assert len(set(names)) == len(names), f"a name stands twice in {names}"
        for name in names:
            assert PATH.fullmatch(name), name
            parts = name.split(".")
            assert not [part for part in parts if part in FORBIDDEN or part.startswith("expected_")], name
            assert not name.startswith("operators."), f"{name}: operator paths belong to core"

    def test_sentences(self) -> None:
        """Failing means that `xcfg knobs show` has nothing to say. Fill summary, apply and provenance.

        apply: how the value reaches the engine. provenance: how the actual value is read back. capability: how
        support is proved.
        """
        for knob in self.knobs:
            for name in ("summary", "capability", "apply", "provenance"):
                assert getattr(knob, name).strip(), f"{knob.name}: {name} is empty"

    def test_domains(self) -> None:
        """Failing means a domain without a value, a bound below another, or a pattern that does not compile."""
        for knob in self.knobs:
            domain = knob.domain
            if isinstance(domain, Choice):
                keys = [(type(value), value) for value in domain.values]
                assert keys, f"{knob.name}: no values"
                assert len(set(keys)) == len(keys), f"{knob.name}: {domain.values}"
            elif isinstance(domain, (IntRange, FloatRange)):
                bounds = [bound for bound in (domain.minimum, domain.maximum) if bound is not None]
                assert bounds == sorted(bounds), f"{knob.name}: {domain}"
                assert all(map(math.isfinite, bounds)), f"{knob.name}: {domain}"
            else:
                re.compile(domain.pattern)

    def test_default(self) -> None:
        """Failing means a default outside the domain (True is no 1). Fix the default or the domain."""
        for knob in self.knobs:
            assert knob.default is None or admits(knob.domain, knob.default), f"{knob.name}: {knob.default!r}"

    def test_aliases(self) -> None:
        """Failing means an alias that leads outside the domain, or that hides a value of it."""
        for knob in self.knobs:
            for alias, value in knob.aliases.items():
                assert admits(knob.domain, value), f"{knob.name}: {alias!r} -> {value!r}"
                shadowed = isinstance(knob.domain, Choice) and alias in knob.domain.values and value != alias
                assert not shadowed, f"{knob.name}: the alias {alias!r} hides a value"

    def test_constraints(self) -> None:
        """Failing means a constraint that can never match, or that filters without a code and a reason."""
        domains = {knob.name: knob.domain for knob in self.knobs}
        for knob in self.knobs:
            for rule in knob.constraints:
                assert all((rule.code.strip(), rule.reason.strip(), rule.when)), f"{knob.name}: {rule}"
                for path, values in (*rule.when.items(), *rule.require.items()):
                    assert values, f"{knob.name}: {path} has no values in {rule.code}"
                    known = path in domains
                    wrong = [value for value in values if known and not admits(domains[path], value)]
                    assert not wrong, f"{knob.name}: {path} never has {wrong}"

    def test_alignment(self) -> None:
        """Failing means a knob that `xcfg minimize` can neither align nor explain.

        Give `align` with a group, or `not_alignable` with the reason, never both. Every key of `canonical` is the
        JSON text of a value of the domain, and `reference` is a value of it.
        """
        for knob in self.knobs:
            assert (knob.align is None) == bool(knob.not_alignable.strip()), f"{knob.name}: align or not_alignable"
            if knob.align is None:
                continue
            assert knob.align.group.strip(), knob.name
            values = [_json(text) for text in knob.align.canonical]
            assert all(admits(knob.domain, value) for value in values), f"{knob.name}: {knob.align.canonical}"
            reference = knob.align.reference
            assert reference is None or admits(knob.domain, reference), f"{knob.name}: reference {reference!r}"
            assert min(knob.align.scope, knob.align.intrusion, knob.align.maintenance) >= 1, knob.name


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return None
