"""One CPU process per side, one thread: the synthetic model has nothing to spread."""

from __future__ import annotations

from xcfg.errors import ConfigError
from xcfg.schema.runtime import Placement, PlacementRequest


def placement(request: PlacementRequest) -> Placement:
    """Return the only placement there is; ConfigError for any runtime option, since there is none."""
    if request.options:
        name = sorted(request.options)[0]
        raise ConfigError(
            f"there is no option {name!r}",
            source="runtime_options of the runtime 'cpu-smoke'",
            path=f"$.{name}",
            hint="cpu-smoke has no options; remove them.",
        )
    return Placement(env={"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"})
