"""From a checkpoint name to a local folder: `builtin:NAME` through a plugin, a path as it is."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xcfg.errors import IdentityError, LaunchError
from xcfg.identity.checkpoint import checkpoint_digest, expected_weights
from xcfg.identity.config_shapes import check_config
from xcfg.identity.rollout import staging_folder
from xcfg.plugin._resolve import resolve
from xcfg.plugin.manager import PluginManager

BUILTIN = "builtin:"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint at hand. folder is None for one that lives inside a runtime (`cpu-smoke:synthetic`)."""

    uri: str
    folder: Path | None
    digest: str
    _expected: dict[str, dict[str, str]] = field(default_factory=dict, compare=False, repr=False)

    def weights(self, dtype: str) -> dict[str, str]:
        """Return the expected digest per tensor in `dtype`, read once; empty when there is no folder."""
        if self.folder is None:
            return {}
        if dtype not in self._expected:
            try:
                self._expected[dtype] = expected_weights(self.folder, dtype)
            except IdentityError:  # a dtype that only the engine knows: nothing is expected, so nothing matches
                self._expected[dtype] = {}
        return self._expected[dtype]


def cache_root() -> Path:
    """Return where built-in checkpoints are kept: XCFG_CACHE, else the user's cache folder."""
    named = os.environ.get("XCFG_CACHE")
    return Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "xcfg"


def find_checkpoint(
    uri: str, manager: PluginManager, *, synthetic: Collection[str] = (), base_dir: str = ".", digest: str = ""
) -> Checkpoint:
    """Return the checkpoint `uri`; built on first use. IdentityError where its config.json is not that of its weights.

    synthetic: models without parameters that a runtime of this run declares; they are no folder.
    digest: what the frozen rollout says it was sampled from; another digest is an IdentityError.
    """
    if uri in synthetic and not digest:
        return Checkpoint(uri, None, f"synthetic:{uri}")
    folder = _builtin(uri, manager) if uri.startswith(BUILTIN) else _local(uri, base_dir, manager)
    check_config(folder)
    actual = checkpoint_digest(folder)
    if digest and actual != digest:
        raise IdentityError(
            f"the checkpoint {uri!r} has digest {actual[:16]}…, the frozen rollout was made from {digest[:16]}…",
            hint="Score with the checkpoint that sampled the tokens, or freeze a new rollout.",
        )
    return Checkpoint(uri, folder, actual)


def _local(uri: str, base_dir: str, manager: PluginManager) -> Path:
    for candidate in (Path(base_dir) / uri, Path(uri)):
        if candidate.is_dir():
            return candidate.resolve()
    inside = next((item.record.name for item in manager.runtimes() if item.record.synthetic == uri), "")
    raise IdentityError(
        f"the checkpoint {uri!r} is no folder here",
        hint=f"It is a model inside a runtime: run with --runtime {inside}."
        if inside
        else "Give a folder with config.json and *.safetensors, or `builtin:NAME` (see `xcfg plugins show torch`).",
    )


def _builtin(uri: str, manager: PluginManager) -> Path:
    name = uri.removeprefix(BUILTIN)
    versions = {item.record.name: item.record.version for item in manager.checkpoints()}
    folder = cache_root() / "checkpoints" / f"{name}-{versions.get(name, '')}"
    if name in versions and folder.is_dir():
        return folder
    record = manager.checkpoint(name).record
    factory: Any = resolve(record.factory, install_hint=record.install_hint)
    try:
        with staging_folder(folder) as staging:
            factory(staging)
            staging.rename(folder)
    except OSError as error:
        if not folder.is_dir():  # another process may have finished first, which is as good
            raise LaunchError(f"the checkpoint {uri!r} could not be built: {error}") from error
    return folder
