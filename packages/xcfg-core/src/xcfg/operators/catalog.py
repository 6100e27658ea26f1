"""The immutable catalogue of operator backends, by (operation, id or alias)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from xcfg.errors import PluginError, UnknownNameError, did_you_mean
from xcfg.schema.operators import OperatorBackendDescriptor


class ProvidedDescriptor(Protocol):
    """A descriptor and where it came from; the plugin manager's records have this form."""

    @property
    def record(self) -> OperatorBackendDescriptor:
        """What the plugin declared."""
        ...

    @property
    def distribution(self) -> str:
        """The distribution that ships the plugin."""
        ...

    @property
    def version(self) -> str:
        """The version of that distribution."""
        ...


@dataclass(frozen=True)
class CatalogEntry:
    """One backend and its origin."""

    descriptor: OperatorBackendDescriptor
    distribution: str = ""
    version: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The id and every alias under which the backend is found."""
        return tuple(dict.fromkeys((self.descriptor.backend_id, *self.descriptor.aliases)))


@dataclass(frozen=True)
class SemanticOperatorCatalog:
    """Backends by operation, then by id or alias. Nothing in it changes after it was built.

    withheld: smoke backends that no named runtime brings; they cannot be found, only explained.
    """

    by_name: Mapping[str, Mapping[str, CatalogEntry]]
    withheld: tuple[OperatorBackendDescriptor, ...] = ()

    @classmethod
    def from_provided(
        cls, items: Iterable[ProvidedDescriptor], *, runtimes: Collection[str] = ()
    ) -> SemanticOperatorCatalog:
        """Return the catalogue of `items`; `runtimes` are those that the command or the experiment names.

        A smoke backend is kept only when one of its runtimes is named. Raises PluginError when two backends of
        one operation share an id or alias, naming both distributions.
        """
        table: dict[str, dict[str, CatalogEntry]] = {}
        withheld: list[OperatorBackendDescriptor] = []
        for item in items:
            descriptor = item.record
            if descriptor.smoke_only and not set(descriptor.runtimes) & set(runtimes):
                withheld.append(descriptor)
                continue
            entry = CatalogEntry(descriptor, item.distribution, item.version)
            names = table.setdefault(descriptor.operation, {})
            for name in entry.names:
                if name in names:
                    raise _conflict(descriptor.operation, name, names[name], entry)
                names[name] = entry
        frozen = {operation: MappingProxyType(names) for operation, names in table.items()}
        return cls(MappingProxyType(frozen), tuple(withheld))

    @property
    def operations(self) -> tuple[str, ...]:
        """The operations that have at least one backend, sorted."""
        return tuple(sorted(self.by_name))

    def entries(self, operation: str | None = None) -> tuple[CatalogEntry, ...]:
        """Return each backend once, sorted by operation and id; those of one operation when it is given."""
        wanted = self.operations if operation is None else (operation,)
        found = [
            entry
            for name in wanted
            for alias, entry in self.by_name.get(name, {}).items()
            if alias == entry.descriptor.backend_id
        ]
        return tuple(sorted(found, key=lambda entry: (entry.descriptor.operation, entry.descriptor.backend_id)))

    def find(self, operation: str, name: str) -> CatalogEntry | None:
        """Return the backend of `operation` whose id or alias is exactly `name`, or None."""
        return self.by_name.get(operation, {}).get(name)

    def get(self, operation: str, name: str) -> CatalogEntry:
        """As `find`, but raise UnknownNameError with the nearest names when there is none."""
        entry = self.find(operation, name)
        if entry is None:
            raise self._unknown(operation, name)
        return entry

    def _unknown(self, operation: str, name: str) -> UnknownNameError:
        for descriptor in self.withheld:
            if descriptor.operation == operation and name in (descriptor.backend_id, *descriptor.aliases):
                return UnknownNameError(
                    f"{name!r} is a smoke backend of {operation!r} and is not provided here",
                    hint=f"It exists only with the runtime {' or '.join(map(repr, descriptor.runtimes)) or 'of a test'}"
                    " and the flag --allow-smoke-operators.",
                )
        if operation not in self.by_name:
            return UnknownNameError(
                f"no active plugin provides a backend of the operation {operation!r}",
                hint=f"{did_you_mean(operation, self.operations)} `xcfg plugins list` shows what is active.".strip(),
            )
        return UnknownNameError(
            f"no active plugin provides the backend {name!r} of {operation!r}",
            hint=f"{did_you_mean(name, self.by_name[operation])} `xcfg ops list` shows them all.",
        )


def _conflict(operation: str, name: str, first: CatalogEntry, second: CatalogEntry) -> PluginError:
    return PluginError(
        f"two backends of {operation!r} answer to {name!r}: {first.descriptor.backend_id!r} of "
        f"{first.distribution or 'an unnamed distribution'} and {second.descriptor.backend_id!r} of "
        f"{second.distribution or 'an unnamed distribution'}",
        hint="Uninstall one of them, or block one with --no-plugin.",
    )
