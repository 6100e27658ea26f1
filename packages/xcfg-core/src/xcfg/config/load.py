"""Load an experiment file. The order: what may not stand at all, the version, the shape, then each part."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from xcfg.config.flatten import flatten
from xcfg.config.identity import parse_identity
from xcfg.config.operators import V1_OPERATION, parse_operators
from xcfg.config.options import parse_runtime_options
from xcfg.config.parts import (
    parse_align,
    parse_axes,
    parse_constraints,
    parse_controls,
    parse_limits,
    parse_slices,
)
from xcfg.config.scan import check_document
from xcfg.config.typed import convert_at
from xcfg.errors import ConfigError, did_you_mean
from xcfg.schema.codec import read_strict
from xcfg.schema.experiment import V1, V2, ContractRef, Experiment, ExperimentV1, ExperimentV2

_EXPERIMENT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_MAX_TEXT = 256


class _V1(ExperimentV1):
    """ExperimentV1 with its identity left undecoded, so that errors name the cell."""

    identity: dict[str, Any]  # type: ignore[assignment]


class _V2(ExperimentV2):
    """ExperimentV2 with the two fields that have more than one shape left undecoded."""

    identity: dict[str, Any]
    runtime_options: dict[str, Any] = {}


def load_experiment(path: Path) -> Experiment:
    """Return the experiment in the file `path`; ConfigError (exit 2) with JSON path and cure otherwise."""
    return parse_experiment(read_strict(path), source=str(path), base_dir=str(path.parent))


def parse_experiment(document: Any, *, source: str, base_dir: str) -> Experiment:
    """Return plain JSON values as an Experiment. Aliases stay as written; the contract's digest stays empty.

    source: how errors name the file. base_dir: against which relative paths are resolved.
    Raises ConfigError with the JSON path of the fault.
    """
    fields = check_document(document, source=source)
    version = fields.get("schema_version")
    if version not in (V1, V2):
        raise ConfigError(
            "there is no schema_version" if "schema_version" not in fields else f"unknown schema_version {version!r}",
            source=source,
            path="$.schema_version",
            hint=f"Known: {V1!r} and {V2!r}.",
        )
    _refuse_unknown(fields, version, source)
    if version == V1:
        first: _V1 = convert_at(fields, _V1, source=source, path="$")
        _check_names(first, source)
        return _v1(first, source, base_dir)
    second: _V2 = convert_at(fields, _V2, source=source, path="$")
    _check_names(second, source)
    return _v2(second, source, base_dir)


def _refuse_unknown(fields: dict[str, Any], version: str, source: str) -> None:
    known = (_V1 if version == V1 else _V2).__struct_fields__
    for key in fields:
        if key in known:
            continue
        only_v2 = version == V1 and key in ExperimentV2.__struct_fields__
        hint = f"This field needs schema_version {V2!r}." if only_v2 else did_you_mean(key, known)
        raise ConfigError(f"unknown field {key!r}", source=source, path=f"$.{key}", hint=hint)


def _check_names(typed: _V1 | _V2, source: str) -> None:
    if not _EXPERIMENT_ID.fullmatch(typed.experiment_id):
        raise ConfigError(
            f"{typed.experiment_id!r} is not one safe path component",
            source=source,
            path="$.experiment_id",
            hint="Letters, digits, `.`, `_` and `-`, at most 128, the first no dot and no hyphen.",
        )
    for name in ("scenario_id", "contract_source", "contract_version"):
        value = getattr(typed, name)
        if not value.strip() or len(value) > _MAX_TEXT:
            raise ConfigError(
                f"{name} has {len(value)} characters or only spaces",
                source=source,
                path=f"$.{name}",
                hint=f"Give 1 to {_MAX_TEXT} characters.",
            )


def _common(typed: _V1 | _V2, source: str, base_dir: str) -> dict[str, Any]:
    frozen = isinstance(typed, _V2)
    return {
        "schema_version": typed.schema_version,
        "experiment_id": typed.experiment_id,
        "scenario_id": typed.scenario_id,
        "contract": ContractRef(source=typed.contract_source, version=typed.contract_version, digest=""),
        "strategy": typed.strategy,
        "strict_fallback": typed.strict_fallback,
        "identity": parse_identity(typed.identity, source=source, frozen_allowed=frozen),
        "base_dir": base_dir,
        "source": source,
        "pairwise_paths": tuple(typed.pairwise_paths),
        "scenario": typed.scenario,
    }


def _v1(typed: _V1, source: str, base_dir: str) -> Experiment:
    return Experiment(
        **_common(typed, source, base_dir),
        baseline=flatten(typed.baseline, source=source, path="$.baseline"),
        interventions=parse_axes(typed.interventions, source=source),
        operators=parse_operators(typed.operators, source=source, only=(V1_OPERATION,)),
    )


def _v2(typed: _V2, source: str, base_dir: str) -> Experiment:
    return Experiment(
        **_common(typed, source, base_dir),
        baseline=flatten(typed.baseline, source=source, path="$.baseline", sides=True),
        interventions=parse_axes(typed.interventions, source=source),
        operators=parse_operators(typed.operators, source=source),
        align=parse_align(typed.align, source=source),
        fixed=flatten(typed.fixed, source=source, path="$.fixed", operators=True, sides=True),
        constraints=parse_constraints(typed.constraints, source=source),
        slices=parse_slices(typed.slices, source=source),
        controls=parse_controls(typed.controls, source=source),
        max_cases=parse_limits(typed.limits, source=source),
        runtime_options=parse_runtime_options(typed.runtime_options, source=source, base_dir=base_dir),
        requires=tuple(typed.requires),
    )
