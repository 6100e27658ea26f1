"""A backend as a matrix calls it: what `xcfg run` refuses of an operator is refused in the replay too."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any

import torch
from xcfg.errors import IdentityError, PluginError, XcfgError
from xcfg.plugin.operators import check_values
from xcfg.plugin.stated import declared_chain, scored_ids
from xcfg.plugin.untouched import Untouched


class Guarded:
    """Calls `operator`, and looks at what it did and returned; its stdout is no part of a report."""

    def __init__(self, operator: Callable[..., Any], backend: str) -> None:
        """Raise IdentityError for a backend that declares transforms: its value is of other logits."""
        self.operator, self.backend = operator, backend
        chain = declared_chain(operator)
        if chain:
            raise IdentityError(
                f"{backend!r} transforms logits ({', '.join(chain)}), so its values are of another distribution",
                hint="A matrix replays the logits as they were; vary the transforms in `xcfg run`.",
            )

    def __call__(self, logits: torch.Tensor, selected: torch.Tensor) -> torch.Tensor:
        """Return float32 or float64 [N].

        Raises WorkerError for anything else and where the backend wrote into its inputs, PluginError for whatever it
        raises, IdentityError where it scored other ids than it was handed.
        """
        inputs = Untouched((logits, selected))
        try:
            with redirect_stdout(sys.stderr):
                found: torch.Tensor = self.operator(logits, selected)
        except XcfgError:
            raise
        except Exception as error:  # foreign code: whatever it raises must name its backend
            raise PluginError(f"{self.backend!r} failed in the replay: {type(error).__name__}: {error}") from error
        inputs.check(self.backend)
        check_values(found, selected, self.backend)
        scored = scored_ids(self.operator, selected)
        if scored is not selected and not torch.equal(scored, selected):
            raise IdentityError(f"{self.backend!r} scored other ids than those that were frozen")
        return found
