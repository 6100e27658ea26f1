"""Effective weights by Hugging Face names, gathered over the tensor-parallel ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist
from xcfg.identity.attest import fold, weight_digest
from xcfg.schema.worker import WeightReport

from xcfg_megatron.convert import Piece, from_megatron
from xcfg_megatron.engine import Engine


def weight_report(engine: Engine) -> WeightReport:
    """Return the digest of every full tensor as the live model holds it; collective.

    What every rank has whole (norms) is this rank's own copy, so that a rank that differs says so itself.
    """
    own = dict(engine.model.named_parameters())
    tensors = {}
    for piece in engine.pieces:
        for name, whole in from_megatron(_shares(engine, own[piece.name], piece), piece).items():
            tensors[name] = weight_digest(whole)
    aliases = {"lm_head.weight": "model.embed_tokens.weight"} if engine.shape.tied else {}
    held = sum(parameter.numel() for parameter in own.values())
    return WeightReport(
        method="digest",
        dtype=engine.dtype,
        tensors=tensors,
        aliases=aliases,
        fold=local_fold(engine),
        local_parameters=held,
        total_parameters=held if engine.ranks.tensor == 1 else 0,
    )


def _shares(engine: Engine, parameter: torch.Tensor, piece: Piece) -> list[torch.Tensor]:
    value = parameter.detach().contiguous()
    if engine.ranks.tensor == 1 or piece.axis is None:
        return [value]
    shares = [torch.empty_like(value) for _ in range(engine.ranks.tensor)]
    dist.all_gather(shares, value, group=engine.ranks.tensor_group)
    return shares


def local_fold(engine: Engine) -> str:
    """Return a cheap digest of this rank's parameters and buffers."""
    return fold([*engine.model.named_parameters(), *engine.model.named_buffers()])
