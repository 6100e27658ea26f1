"""Knob values given outside an experiment (`xcfg freeze --set`), completed and made canonical."""

from __future__ import annotations

from collections.abc import Mapping

from xcfg.planning.normalise import Catalogue, normalise_value
from xcfg.plugin.builtin.knobs import V1_PATHS
from xcfg.schema._base import Value
from xcfg.schema.experiment import V2
from xcfg.schema.knobs import KnobDefinition


def complete_settings(
    settings: Mapping[str, Value], knobs: Mapping[str, KnobDefinition], providers: Mapping[str, str]
) -> dict[str, Value]:
    """Return the ten shared knobs at their defaults, with `settings` over them.

    Raises UnknownNameError for a path that nobody declares, ConfigError for a value outside its domain.
    """
    catalogue = Catalogue(knobs, providers, V2, "--set")
    values = {path: knobs[path].default for path in V1_PATHS if path in knobs}
    for path, value in settings.items():
        values[path] = normalise_value(catalogue.knob(path, path), value, source="--set", where=path)
    return values
