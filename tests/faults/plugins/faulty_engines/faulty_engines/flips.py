"""One bit of one weight."""

from __future__ import annotations

from typing import Any

import torch
from xcfg_torch.fsdp import local

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def flip_one_bit(model: Any) -> None:
    """Flip the lowest bit of the last element of the first parameter that this rank holds."""
    for parameter in model.parameters():
        part = local(parameter.detach())
        if part.numel():
            flat = part.view(-1).view(INTEGERS[part.element_size()])
            flat[-1] ^= 1
            return
    raise RuntimeError("this rank holds no parameter")
