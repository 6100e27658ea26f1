"""From an operator binding to something that can be called; all that a worker needs, without the catalogue.

A session in the supervisor resolves a choice to an `OperatorBinding`; the binding travels in the WorkerSpec, and
the adapter in the worker calls `instantiate(binding)`. The object that comes back counts its calls, which is the
execution evidence an adapter reports for an operator knob.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from xcfg.errors import MissingDependencyError, PluginError, WorkerError
from xcfg.plugin.readback import HEAD, SELECTED
from xcfg.plugin.stated import Statements, declared_chain, stated_of
from xcfg.plugin.untouched import Untouched
from xcfg.schema._base import Value
from xcfg.schema.operators import OperatorBinding

STATED = (SELECTED, HEAD)
"""Operations whose backends may state what their calls did: those that end in the log probability of an id."""


@dataclass
class BoundOperator:
    """A backend that was instantiated for one binding. Calling it calls the backend and counts.

    calls: finished and failed calls alike, so that an operator that raised still shows that it was reached.
    """

    binding: OperatorBinding
    function: Callable[..., Any] = field(repr=False)
    calls: int = 0
    _statements: Statements = field(default_factory=Statements, init=False, repr=False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the backend with the arguments of its semantic operator; `selected` is the last one of a logprob.

        Raises WorkerError where a backend of such an operator wrote into one of them.
        """
        self.calls += 1
        if self.binding.operation not in STATED:
            return self.function(*args, **kwargs)
        inputs = Untouched((*args, *kwargs.values()))
        found = self.function(*args, **kwargs)
        inputs.check(self.binding.backend_id)
        handed = kwargs.get("selected", args[-1] if args else None)
        if handed is not None:
            self._statements.take(self.function, handed)
        return found

    def restate(self) -> None:
        """Add the options that the backend states by now: what it did after the call itself, such as an entropy."""
        self._statements.take_options(stated_of(self.function).get("options"))

    def forget(self) -> None:
        """Forget what the calls stated, but not how many there were: a probe of few rows shows no option of many."""
        self._statements = Statements()

    def clear(self) -> None:
        """Forget the calls, and what they stated."""
        self.calls = 0
        self.forget()

    @property
    def statements(self) -> Statements:
        """What its calls since `clear` stated; where none was made, the transforms alone that it declares."""
        if self.binding.operation in STATED and not self.calls:
            return Statements(chains=[declared_chain(self.function)])
        return self._statements


def check_values(values: Any, selected: Any, backend: str) -> None:
    """Raise WorkerError unless `values` are a float32 or float64 tensor, one for each of the ids `selected` [N]."""
    if not isinstance(values, type(selected)) or values.shape != selected.shape:
        found = tuple(values.shape) if isinstance(values, type(selected)) else type(values).__name__
        raise WorkerError(f"{backend!r} returned {found}, not {tuple(selected.shape)} values")
    if str(values.dtype).removeprefix("torch.") not in ("float32", "float64"):
        raise WorkerError(f"{backend!r} returned {values.dtype}, not float32 or float64")


def backend_meant(binding: OperatorBinding, requested: Value) -> Value:
    """Return the backend id that `requested` (a policy, an alias, an id) stands for in `binding`.

    This is the one place where the name that was asked for and the backend that was bound meet. A name that the
    binding was not resolved from stands for nothing but itself, so it equals no other backend that ran.
    """
    return binding.backend_id if requested == binding.requested else requested


def split_factory(factory: str) -> tuple[str, str]:
    """Return (`module`, `attr`) of a factory string `module:attr`; PluginError when it has another form."""
    module, colon, attribute = factory.partition(":")
    names = [*module.split("."), *attribute.split(".")]
    if not colon or not all(name.isidentifier() for name in names):
        raise PluginError(f"{factory!r} is not a factory", hint="A factory is `package.module:attribute`.")
    return module, attribute


def load_factory(factory: str) -> Callable[..., Any]:
    """Import and return what a factory string names.

    Raises MissingDependencyError when the module says that it needs what is not installed, PluginError when it cannot
    be imported for any other reason, or lacks a callable of that name.
    """
    module_name, attribute = split_factory(factory)
    try:
        target: Any = importlib.import_module(module_name)
    except MissingDependencyError as error:
        raise MissingDependencyError(f"the factory {factory!r} cannot be used: {error}", hint=error.hint) from error
    except Exception as error:  # the module is foreign code: whatever it raises must name its factory
        raise PluginError(
            f"the factory {factory!r} cannot be imported: {type(error).__name__}: {error}",
            hint="Install what its package requires in the environment of the worker.",
        ) from error
    for name in attribute.split("."):
        if not hasattr(target, name):
            raise PluginError(
                f"the module {module_name!r} has no {attribute!r}",
                hint="The installed package is older or newer than the descriptor that names it.",
            )
        target = getattr(target, name)
    if not callable(target):
        raise PluginError(f"the factory {factory!r} is a {type(target).__name__}, which cannot be called")
    return target  # type: ignore[no-any-return]


def instantiate(binding: OperatorBinding) -> BoundOperator:
    """Return a new instance of the backend that `binding` names, built with the options of the binding.

    Nothing is cached here: two calls give two instances. Raises PluginError when the factory fails or returns
    something that cannot be called.
    """
    factory = load_factory(binding.factory)
    try:
        function = factory(**binding.options)
    except Exception as error:  # foreign code again
        raise PluginError(
            f"the backend {binding.backend_id!r} of {binding.operation} could not be built with the options "
            f"{binding.options!r}: {type(error).__name__}: {error}",
            hint=f"`xcfg ops show {binding.backend_id}` lists its options.",
        ) from error
    if not callable(function):
        raise PluginError(
            f"the factory {binding.factory!r} returned a {type(function).__name__}, which cannot be called",
            hint="A factory takes the options as keywords and returns the operator.",
        )
    return BoundOperator(binding, function)
