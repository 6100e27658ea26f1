"""The session of one case: from what an experiment asks for to one exact backend, with every decision on record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xcfg.errors import UnknownNameError, UsageError, did_you_mean
from xcfg.operators.catalog import CatalogEntry, SemanticOperatorCatalog
from xcfg.operators.checks import POLICIES, Request, ResolutionContext, decide
from xcfg.operators.digest import package_source_digest
from xcfg.operators.options import complete
from xcfg.plugin.operators import BoundOperator, instantiate, split_factory
from xcfg.schema.operators import OperatorBinding, OperatorChoice, ResolutionDecision

POLICY_SPELLINGS = {"native": "production"}


class OperatorResolutionError(UsageError):
    """A known backend that cannot serve here. `trace` holds every decision, the refused ones among them."""

    kind = "operator"

    def __init__(self, message: str, *, trace: tuple[ResolutionDecision, ...] = (), hint: str = "") -> None:
        """Keep the trace beside message and hint."""
        super().__init__(message, hint=hint)
        self.trace = trace


class OperatorSession:
    """Resolution, instantiation, cache and provenance of one case; make a new one for the next case.

    policies: operation -> policy -> backend id, as the runtime declares it (RuntimeDescriptor.policies). Where
    the two sides have different runtimes, ResolutionContext.policies names the table of that side.
    """

    def __init__(self, catalog: SemanticOperatorCatalog, policies: Mapping[str, Mapping[str, str]]) -> None:
        """Start without bindings and without instances."""
        self._catalog = catalog
        self._policies = policies
        self._bindings: list[OperatorBinding] = []
        self._instances: dict[int, BoundOperator] = {}
        self._digests: dict[str, str] = {}

    @property
    def bindings(self) -> tuple[OperatorBinding, ...]:
        """What this session resolved, in order: the provenance of the case."""
        return tuple(self._bindings)

    def resolve(self, operation: str, side: str, choice: OperatorChoice, context: ResolutionContext) -> OperatorBinding:
        """Return the binding of `choice` on `side`; exact id only, nothing is ranked and nothing replaces it.

        Raises UnknownNameError when nobody provides the name, OperatorResolutionError, with the whole trace, when
        the backend does not declare that it can serve here.
        """
        policy, name, decisions = self._policy(operation, choice.backend, context)
        entry = self._entry(operation, name, policy, context)
        origin = f"{entry.distribution} {entry.version}".strip()
        trace = decisions + decide(entry.descriptor, Request(side, choice, context, policy, origin))
        refused = [decision for decision in trace if not decision.ok]
        if refused:
            raise OperatorResolutionError(
                f"the backend {entry.descriptor.backend_id!r} cannot serve {operation} on {side}: "
                + "; ".join(f"{decision.check} ({decision.detail})" for decision in refused),
                trace=trace,
                hint=f"Ask for another backend, or change the case; `xcfg ops show {entry.descriptor.backend_id}`"
                " lists what it declares.",
            )
        binding = self._bind(entry, side, choice, trace)
        if binding not in self._bindings:
            self._bindings.append(binding)
        return binding

    def instantiate(self, binding: OperatorBinding) -> BoundOperator:
        """Return the instance of a binding of this session, built once; a build that fails leaves nothing behind.

        Raises UsageError for a binding of another session, PluginError when the factory fails.
        """
        if binding not in self._bindings:
            raise UsageError(
                f"the binding of {binding.operation} on {binding.side} to {binding.backend_id!r} was not resolved"
                " in this session",
                hint="A session belongs to one case: resolve the choice here first.",
            )
        key = self._bindings.index(binding)
        if key not in self._instances:
            self._instances[key] = instantiate(binding)
        return self._instances[key]

    def _policy(
        self, operation: str, asked: str, context: ResolutionContext
    ) -> tuple[str, str, tuple[ResolutionDecision, ...]]:
        """Return (policy or empty, name to look up, decisions so far)."""
        policy = POLICY_SPELLINGS.get(asked, asked)
        if policy not in POLICIES:
            return "", asked, ()
        table = (self._policies if context.policies is None else context.policies).get(operation, {})
        if policy in table:
            detail = f"{asked} means {table[policy]} in the runtime {context.runtime}"
            return policy, table[policy], (ResolutionDecision(check="policy", ok=True, detail=detail),)
        if self._catalog.find(operation, asked) is not None:  # `reference` is also an alias of the reference
            return policy, asked, ()
        detail = f"the runtime {context.runtime} declares no policy {policy} for {operation}"
        raise OperatorResolutionError(
            f"{asked!r} cannot be resolved: {detail}",
            trace=(ResolutionDecision(check="policy", ok=False, detail=detail),),
            hint=f"{did_you_mean(policy, table) or 'It declares none.'} Or name an exact backend id.",
        )

    def _entry(self, operation: str, name: str, policy: str, context: ResolutionContext) -> CatalogEntry:
        try:
            return self._catalog.get(operation, name)
        except UnknownNameError as error:
            if not policy:
                raise
            reason = f"{error.message}; the runtime {context.runtime!r} means it by {policy!r}"
            raise UnknownNameError(reason, hint=error.hint) from None

    def _bind(
        self, entry: CatalogEntry, side: str, choice: OperatorChoice, trace: tuple[ResolutionDecision, ...]
    ) -> OperatorBinding:
        descriptor = entry.descriptor
        options: dict[str, Any] = complete(descriptor.options, choice.options)
        module, _ = split_factory(descriptor.factory)
        return OperatorBinding(
            operation=descriptor.operation,
            side=side,
            requested=choice.backend,
            backend_id=descriptor.backend_id,
            factory=descriptor.factory,
            options=options,
            distribution=entry.distribution,
            distribution_version=entry.version,
            version=descriptor.version,
            build_fingerprint=descriptor.build_fingerprint,
            source_digest=self._digest(module),
            smoke_only=descriptor.smoke_only,
            trace=trace,
        )

    def _digest(self, module: str) -> str:
        top = module.partition(".")[0]
        if top not in self._digests:
            self._digests[top] = package_source_digest(top)
        return self._digests[top]
