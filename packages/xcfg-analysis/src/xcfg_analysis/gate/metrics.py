"""The figures of a run as one flat dict, and the three trackers that take it, through their own libraries.

Each library is an extra of xcfg-analysis (`wandb`, `tensorboard`, `mlflow`) and is imported when it is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from xcfg.errors import ExecutionError, MissingDependencyError, UsageError, XcfgError
from xcfg.schema.gate import GateReport

PREFIX = "xcfg"


def metrics_of(report: GateReport) -> dict[str, float]:
    """Return `xcfg/<case>/<figure>` for every finite figure, tokens and seconds, and `xcfg/gate/...` for the gate."""
    found: dict[str, float] = {}
    for case in report.cases:
        values = {**case.figures, "active_tokens": float(case.active_tokens), "seconds": case.seconds}
        for name, value in values.items():
            found[_key(found, f"{PREFIX}/{case.label}/{name}")] = float(value)
    kinds = [item.kind for item in report.findings] + [item.kind for case in report.cases for item in case.findings]
    kinds += ["missing_case"] * len(report.missing)
    gate = {
        "exit_code": report.exit_code,
        "cases": len(report.cases),
        "closed": sum(bool(case.findings) for case in report.cases),
        "missing": len(report.missing),
        **{kind: kinds.count(kind) for kind in sorted(set(kinds)) if kind != "missing_case"},
    }
    return found | {f"{PREFIX}/gate/{name}": float(value) for name, value in gate.items()}


def _key(taken: Mapping[str, float], key: str) -> str:
    """Return `key`, numbered where two cases have one label: a value is never overwritten by another."""
    number = 1
    while (name := key if number == 1 else f"{key}.{number}") in taken:
        number += 1
    return name


def send(metrics: Mapping[str, float], target: str, *, step: int = 0) -> None:
    """Hand `metrics` to `NAME` or `NAME=PLACE`.

    Raises UsageError, MissingDependencyError that names the extra, or ExecutionError with what the tracker said.
    wandb=PROJECT (WANDB_MODE=offline keeps it on this machine), tensorboard=FOLDER, mlflow=TRACKING_URI.
    """
    name, _, place = target.partition("=")
    if name not in SENDERS:
        raise UsageError(f"{name!r} is no tracker", hint=f"Available: {', '.join(SENDERS)}.")
    try:
        SENDERS[name](metrics, place, step)
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"handing the metrics to {name!r} needs the package {error.name!r}, which is not installed",
            hint=f"Install the extra: pip install 'xcfg-analysis[{name}]'.",
        ) from error
    except XcfgError:
        raise
    except Exception as error:  # a tracker's own errors share no base
        raise ExecutionError(
            f"{name!r} did not take the metrics of {target!r}: {type(error).__name__}: {error}",
            hint="The gate's files are written; hand them over again once the tracker answers.",
        ) from error


def _wandb(metrics: Mapping[str, float], place: str, step: int) -> None:
    import wandb

    run: Any = wandb.init(project=place or PREFIX, job_type="gate")
    try:
        run.log(dict(metrics), step=step)
    finally:
        run.finish()


def _tensorboard(metrics: Mapping[str, float], place: str, step: int) -> None:
    import tensorboard  # noqa: F401 - torch's own message would not name the extra
    from torch.utils.tensorboard import SummaryWriter

    if not place:
        raise UsageError("TensorBoard needs a folder", hint="Give tensorboard=FOLDER.")
    writer: Any = SummaryWriter(log_dir=str(Path(place)))
    try:
        for name, value in metrics.items():
            writer.add_scalar(name, value, step)
    finally:
        writer.close()


def _mlflow(metrics: Mapping[str, float], place: str, step: int) -> None:
    import mlflow

    if place:
        mlflow.set_tracking_uri(place)
    mlflow.set_experiment(PREFIX)
    with mlflow.start_run():
        mlflow.log_metrics(mlflow_names(metrics), step=step)


def mlflow_names(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics under names that MLflow takes: letters, digits, `_`, `-`, `.`, space and `/`."""
    found: dict[str, float] = {}
    for name, value in metrics.items():
        found[_key(found, re.sub(r"[^\w\-. /]", "_", name, flags=re.ASCII))] = value
    return found


SENDERS: dict[str, Callable[[Mapping[str, float], str, int], None]] = {
    "wandb": _wandb,
    "tensorboard": _tensorboard,
    "mlflow": _mlflow,
}
