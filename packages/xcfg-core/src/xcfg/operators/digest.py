"""The digest of the sources behind a backend, made without importing them."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path

from xcfg.errors import PluginError


def package_source_digest(module: str) -> str:
    """Return the SHA-256 (64 hex digits) over the Python sources of the top-level package that holds `module`.

    For every .py file, in the order of its path relative to the package: the path (UTF-8), a zero byte, the
    length in bytes as eight little-endian bytes, the bytes. A single-module distribution has one such file; an
    extension module counts as its own source. The package is located, not imported. Raises PluginError when
    there is nothing to read, so that an empty digest never stands for a package.
    """
    top = module.partition(".")[0]
    state = hashlib.sha256()
    count = 0
    for name, file in sorted(_sources(top)):
        data = file.read_bytes()
        state.update(name.encode() + b"\0" + len(data).to_bytes(8, "little") + data)
        count += 1
    if not count:
        raise PluginError(
            f"no Python source of the package {top!r} can be found",
            hint="Install the package that provides it where this command runs.",
        )
    return state.hexdigest()


def _sources(top: str) -> Iterator[tuple[str, Path]]:
    """Yield (path relative to the package, file)."""
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):  # ValueError: the name is empty, or a module without __spec__ is loaded
        spec = None
    if spec is None:
        return
    if spec.submodule_search_locations is not None:
        for location in spec.submodule_search_locations:
            root = Path(location)
            for file in root.rglob("*.py"):
                yield file.relative_to(root).as_posix(), file
    elif spec.origin is not None and Path(spec.origin).is_file():
        yield Path(spec.origin).name, Path(spec.origin)
