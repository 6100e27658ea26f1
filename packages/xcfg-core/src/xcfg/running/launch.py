"""What a score is asked with, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError

from xcfg.errors import ArtifactError
from xcfg.schema.codec import digest, plain
from xcfg.schema.runtime import Fingerprints, Placement
from xcfg.schema.worker import BuildReport, ScoreReport, WorkerSpec


@dataclass(frozen=True)
class LaunchSpec:
    """A worker that a score needs.

    fingerprints: by lifecycle, and of the operator bindings. fresh: score in a process that has scored
    nothing. last: score when everything else has been.
    """

    spec: WorkerSpec
    placement: Placement
    fingerprints: Fingerprints
    fresh: bool = False
    last: bool = False

    @property
    def key(self) -> str:
        """A worker serves exactly the launches with an equal key: fingerprints, place, and what it was given.

        Request-lifecycle knob values in `spec.knobs` do not count; they come with each request.
        """
        spec = self.spec
        return digest(
            {
                "fingerprints": plain(self.fingerprints),
                "placement": plain(self.placement),
                "runtime": [spec.runtime, spec.adapter, spec.side, spec.seed],
                "input": [spec.checkpoint, spec.rollout],
                "devices": list(spec.devices),
            }
        )

    @property
    def cuda(self) -> frozenset[str]:
        """The accelerator devices it occupies; a bare `cuda` stands for all of them."""
        return frozenset(device for device in self.placement.devices if not device.startswith("cpu"))

    def overlaps(self, other: LaunchSpec) -> bool:
        """Whether the two may not be alive together."""
        mine, theirs = self.cuda, other.cuda
        if not mine or not theirs:
            return False
        return bool(mine & theirs) or any(":" not in device for device in mine | theirs)


@dataclass(frozen=True)
class RawScore:
    """One side score as the ranks reported it; nothing is judged or joined here.

    builds, reports: one per rank, rank order. paths: rank -> safetensors file, for ranks with tokens.
    logs: name -> file. seconds: build (0 when reused) and score, wall time. reused: the worker was alive
    before. generated: rank -> what it sampled, for a generate request.
    """

    builds: tuple[BuildReport, ...]
    reports: tuple[ScoreReport, ...]
    paths: dict[int, Path]
    logs: dict[str, Path]
    seconds: dict[str, float]
    reused: bool
    generated: dict[int, list[dict[str, Any]]]

    def tensors(self, rank: int) -> dict[str, NDArray[np.generic]]:
        """Return the flat columns of one rank, read now; empty for a rank without tokens.

        Raises ArtifactError when the file is gone, no longer the reported one, or malformed.
        """
        if rank not in self.paths:
            return {}
        from hashlib import sha256

        from safetensors.numpy import load

        path = self.paths[rank]
        try:
            data = path.read_bytes()
        except OSError as error:
            raise ArtifactError(f"the scores of rank {rank} cannot be read: {error}") from None
        reported = {report.rank: report.tensors_sha256 for report in self.reports}[rank]
        if sha256(data).hexdigest() != reported:
            raise ArtifactError(f"{path.name!r} is not the file that rank {rank} reported")
        try:
            return dict(load(data))
        except (SafetensorError, KeyError, ValueError) as error:
            raise ArtifactError(f"{path.name!r} of rank {rank} is malformed: {error}") from None

    @property
    def columns(self) -> dict[int, dict[str, NDArray[np.generic]]]:
        """Rank -> flat columns, for every rank that has some."""
        return {rank: self.tensors(rank) for rank in sorted(self.paths)}
