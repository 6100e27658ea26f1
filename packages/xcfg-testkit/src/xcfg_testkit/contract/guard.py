"""The base of every contract: no standard test can be lost without a reason that stands in the report."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar

KIT = "xcfg_testkit.contract."


class WeakenedContractError(TypeError):
    """A subclass removed or replaced a standard test, or did not give what the contract needs."""


class Contract:
    """Subclass a contract, not this. `needs` names the attributes that a concrete subclass must set."""

    needs: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Check a subclass when it is defined, so that pytest cannot collect it half."""
        super().__init_subclass__(**keywords)
        if cls.__module__.startswith(KIT):
            return
        lost = [name for name in standard_tests(cls) if _is_lost(cls, name)]
        if lost:
            raise WeakenedContractError(
                f"{cls.__name__} removes or replaces {', '.join(lost)}. Keep the standard test; if it cannot hold "
                "yet, override it, mark the override with pytest.mark.xfail(reason=...) or skip(reason=...), and call "
                "super()."
            )
        missing = [name for name in cls.needs if not hasattr(cls, name)]
        if missing and cls.__name__.startswith("Test"):
            raise WeakenedContractError(f"{cls.__name__} must set {', '.join(missing)}; see the contract's docstring.")


def standard_tests(cls: type) -> tuple[str, ...]:
    """Return the names of the tests that the kit's own classes in the bases of `cls` define."""
    owners = [base for base in cls.__mro__ if base.__module__.startswith(KIT)]
    return tuple(sorted({name for base in owners for name in vars(base) if name.startswith("test_")}))


def _is_lost(cls: type, name: str) -> bool:
    found = inspect.getattr_static(cls, name)
    if getattr(found, "__module__", "").startswith(KIT):
        return False
    marks = getattr(found, "pytestmark", [])
    return not any(mark.name in ("xfail", "skip") and mark.kwargs.get("reason") for mark in marks)
