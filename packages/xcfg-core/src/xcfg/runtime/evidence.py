"""What the applications of a side add up to: the strict reading of requested -> materialised -> actual."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from xcfg.plugin.readback import OPERATORS, is_operator, operator_path
from xcfg.schema._base import Value
from xcfg.schema.codec import evolve
from xcfg.schema.knobs import KnobDefinition
from xcfg.schema.names import Applied, EvidenceKind, Lifecycle, Status
from xcfg.schema.operators import OperatorBinding
from xcfg.schema.runtime import KnobApplication

PROOF = {EvidenceKind.EXECUTION, EvidenceKind.STATE, EvidenceKind.INHERENT}
ENDS_AS = {
    Applied.ERROR: Status.WORKER_FAILED,
    Applied.UNSUPPORTED: Status.UNSUPPORTED,
    Applied.FALLBACK: Status.FALLBACK,
    Applied.UNOBSERVABLE: Status.UNOBSERVABLE,
}
ORDER = (Applied.ERROR, Applied.UNSUPPORTED, Applied.FALLBACK, Applied.UNOBSERVABLE, Applied.APPLIED)


def latest(applications: Iterable[KnobApplication]) -> tuple[KnobApplication, ...]:
    """Return one application per (path, rank): what was read later (at the score) replaces what the build said."""
    found: dict[tuple[str, int], KnobApplication] = {}
    for item in applications:
        found[(item.path, item.rank)] = item
    return tuple(found[key] for key in sorted(found))


def requested_of(knobs: Mapping[str, Value], bindings: Mapping[str, OperatorBinding]) -> dict[str, Value]:
    """Return what a side owes evidence for: its knobs (logp.backend is one), and every other operator bound for it."""
    bound = {operator_path(name): binding.requested for name, binding in bindings.items()}
    return {**{path: asked for path, asked in bound.items() if path.startswith(OPERATORS)}, **knobs}


def judged(
    requested: Mapping[str, Value], applications: Sequence[KnobApplication], ranks: Sequence[int], side: str
) -> tuple[KnobApplication, ...]:
    """Return an application per requested knob and rank, corrected to what its evidence bears.

    A missing record is unobservable. `applied` without execution, state or inherent evidence is unobservable,
    and `applied` with an actual value other than the requested one is a fallback: an adapter is not believed,
    and what it says about side and requested value is replaced by what the caller knows. What runs as the operator
    of an operator is a backend id, and the supervisor has materialised the requested policy as the id that the
    binding means by it, so the actual value may be that. Settings that were
    reported and not requested follow as they are: an undeclared change must be seen.
    """
    by_key = {(item.path, item.rank): item for item in applications}
    result = []
    for path in sorted(requested):
        for rank in ranks:
            item = by_key.get((path, rank))
            if item is None:
                result.append(_absent(path, side, rank, requested[path]))
            else:
                result.append(_weigh(evolve(item, side=side, requested=requested[path])))
    beside = [evolve(item, side=side) for key, item in sorted(by_key.items()) if key[0] not in requested]
    return (*result, *beside)


def _absent(path: str, side: str, rank: int, value: Value) -> KnobApplication:
    return KnobApplication(
        path=path,
        side=side,
        rank=rank,
        requested=value,
        materialized=None,
        actual=None,
        status=Applied.UNOBSERVABLE,
        lifecycle=Lifecycle.REQUEST,
        reason=f"rank {rank} reported nothing about this knob",
    )


def _weigh(item: KnobApplication) -> KnobApplication:
    if item.status is not Applied.APPLIED:
        return item
    wanted = (item.requested, item.materialized) if is_operator(item.path) else (item.requested,)
    if not any(type(item.actual) is type(value) and item.actual == value for value in wanted):
        reason = f"asked for {item.requested!r}, the engine runs {item.actual!r}"
        return evolve(item, status=Applied.FALLBACK, reason=reason)
    if not any(piece.kind in PROOF for piece in item.evidence):
        reason = "the adapter says applied and shows neither execution nor state evidence"
        return evolve(item, status=Applied.UNOBSERVABLE, reason=reason)
    return item


def verdict_of(
    applications: Sequence[KnobApplication], definitions: Mapping[str, KnobDefinition]
) -> tuple[Status | None, str]:
    """Return the status in which critical applications end a case, and why; (None, "") when all are applied."""
    faults = [
        item
        for item in applications
        if item.status is not Applied.APPLIED and (item.path not in definitions or definitions[item.path].critical)
    ]
    if not faults:
        return None, ""
    faults.sort(key=lambda item: (ORDER.index(item.status), item.path, item.rank))
    worst = faults[0]
    names = sorted({item.path for item in faults if item.status is worst.status})
    reason = f"{', '.join(names)} on {worst.side}: {worst.reason or worst.status.value}"
    return ENDS_AS[worst.status], reason
