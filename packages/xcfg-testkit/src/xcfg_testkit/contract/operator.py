"""What every operator backend must fulfil, whatever its operation: its descriptor, its factory, its options."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from xcfg.plugin.operators import load_factory, split_factory
from xcfg.schema.knobs import Choice, FloatRange, IntRange
from xcfg.schema.operators import OperatorBackendDescriptor

from xcfg_testkit.contract.guard import Contract
from xcfg_testkit.domains import admits

SIDES = ("rollout", "training", "reference")
DTYPES = ("bfloat16", "float16", "float32", "float64")
FALLBACKS = ("error", "declared", "runtime_managed")
PROPERTIES = re.compile(r"run-to-run|batch-invariant|tp-invariant|bitwise-equal-to:\S+")


class OperatorContract(Contract):
    """Give `descriptor`; `options` are those that the backend is built with (default: its defaults)."""

    needs = ("descriptor",)
    descriptor: ClassVar[OperatorBackendDescriptor]
    options: ClassVar[dict[str, Any]] = {}

    def build(self) -> Callable[..., Any]:
        """Return a new instance, as a session would build it."""
        built = load_factory(self.descriptor.factory)(**self.keywords())
        if not callable(built):
            pytest.fail(f"the factory {self.descriptor.factory!r} returned {type(built).__name__}, no callable")
        return built  # type: ignore[no-any-return]

    def keywords(self) -> dict[str, Any]:
        """Return what the factory is called with: the options of the class over the defaults of the descriptor."""
        defaults = {item.name: item.default for item in self.descriptor.options if item.default is not None}
        return {**defaults, **self.options}

    def test_descriptor_speaks_the_vocabulary(self) -> None:
        """Failing means a word in the descriptor that xcfg will never match, so the backend can never be selected.

        Fix the named field: sides, dtypes, devices, properties and fallback have closed vocabularies.
        """
        item = self.descriptor
        assert all(text.strip() for text in (item.backend_id, item.summary, item.version)), "an empty text"
        assert set() < set(item.targets) <= set(SIDES), f"targets {item.targets}"
        assert set() < set(item.dtypes) <= set(DTYPES), f"dtypes {item.dtypes}"
        assert item.devices, "no devices"
        assert not [device for device in item.devices if ":" in device], f"devices {item.devices}"
        assert set(item.topologies) <= set(SIDES), f"topologies {item.topologies}"
        assert item.fallback in FALLBACKS, f"fallback {item.fallback!r}"
        unknown = [name for name in item.properties if not PROPERTIES.fullmatch(name)]
        assert not unknown, f"unknown properties {unknown}"

    def test_names_are_its_own(self) -> None:
        """Failing means an alias that repeats the id or hides a policy. Remove it: policies belong to runtimes."""
        names = (self.descriptor.backend_id, *self.descriptor.aliases)
        assert len(set(names)) == len(names), f"a name stands twice in {names}"
        assert not {"production", "native", "deterministic"} & set(names), f"a policy is no backend id: {names}"

    def test_smoke_backends_name_their_runtime(self) -> None:
        """Failing means a test backend that no runtime can bring. Set `runtimes` beside `smoke_only`."""
        assert not self.descriptor.smoke_only or self.descriptor.runtimes

    def test_factory_builds_a_callable(self) -> None:
        """Failing means that the worker cannot instantiate the backend. Check the `module:attr` string."""
        split_factory(self.descriptor.factory)
        assert callable(self.build())

    def test_two_instances_are_independent(self) -> None:
        """Failing means one instance serves two cases, and state leaks between them. Build a new one per call."""
        assert self.build() is not self.build()

    def test_option_defaults_lie_in_their_domains(self) -> None:
        """Failing means a default that a person could not type. Fix the default or the domain."""
        for option in self.descriptor.options:
            assert option.default is None or admits(option.domain, option.default), option.name

    def test_every_option_value_is_accepted(self) -> None:
        """Failing means a value inside the declared domain that the factory refuses. Narrow the domain."""
        for option in self.descriptor.options:
            for value in _samples(option.domain):
                keywords = {**self.options, option.name: value}
                assert callable(load_factory(self.descriptor.factory)(**keywords)), (option.name, value)

    def test_unknown_options_are_refused(self) -> None:
        """Failing means that a misspelt option is ignored. Do not take **kwargs in the factory."""
        with pytest.raises(Exception):  # noqa: B017 - any refusal will do
            load_factory(self.descriptor.factory)(**self.options, option_that_does_not_exist=1)


def _samples(domain: Any) -> tuple[Any, ...]:
    if isinstance(domain, Choice):
        return domain.values
    if isinstance(domain, IntRange):
        return (domain.minimum,) if domain.maximum is None else (domain.minimum, domain.maximum)
    if isinstance(domain, FloatRange):
        bounds = [bound for bound in (domain.minimum, domain.maximum) if bound is not None]
        return (*bounds, *(value for value in (0.0, 0.125, 1) if domain.admits(value)))
    return ()
