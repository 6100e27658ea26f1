"""The faults."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from xcfg.schema.codec import evolve
from xcfg_megatron import adapter as adapter_module
from xcfg_megatron import logprob
from xcfg_megatron.adapter import MegatronAdapter


class _Flipped(MegatronAdapter):
    """Rank 1 holds a weight whose last element has its lowest bit flipped."""

    name = ""

    def build(self, spec: Any, context: Any) -> Any:
        plain = adapter_module.build_engine

        def build_engine(*arguments: Any) -> Any:
            engine = plain(*arguments)
            if context.rank == 1:
                weight = dict(engine.model.named_parameters())[self.name].detach()
                weight.view(-1).view(torch.int32)[-1] ^= 1
            return engine

        adapter_module.build_engine = build_engine
        return super().build(spec, context)


class FlippedShard(_Flipped):
    """A weight that is split: the gathered tensor is wrong."""

    name = "decoder.layers.2.mlp.linear_fc1.weight"


class FlippedNorm(_Flipped):
    """A weight that every rank has whole: only the rank itself can know."""

    name = "decoder.layers.1.input_layernorm.weight"


class OtherRevision(MegatronAdapter):
    """Loads the checkpoint of a later step: every weight of one layer has moved by a hundredth."""

    def build(self, spec: Any, context: Any) -> Any:
        folder = Path(context.scratch) / "later-step"
        shutil.copytree(spec.checkpoint, folder)
        for file in folder.glob("*.safetensors"):
            tensors = load_file(file)
            moved = {name: tensor * 1.01 if ".layers.1." in name else tensor for name, tensor in tensors.items()}
            save_file(moved, file, metadata={"format": "pt"})
        return super().build(evolve(spec, checkpoint=str(folder)), context)


class SilentRank(MegatronAdapter):
    """Rank 1 takes part in the score and leaves without a word."""

    def score(self, request: Any, rollout: Any) -> Any:
        result = super().score(request, rollout)
        if self.engine.ranks.rank == 1:
            os._exit(0)
        return result


class PaddingForgotten(MegatronAdapter):
    """The operator is never told that the vocabulary is padded."""

    def build(self, spec: Any, context: Any) -> Any:
        plain = logprob.Sharded.prepared

        def prepared(self: Any, logits: Any, selected: Any) -> Any:
            self.vocab = None
            return plain(self, logits, selected)

        logprob.Sharded.prepared = prepared
        return super().build(spec, context)


class MaskBroken(MegatronAdapter):
    """The operator believes that it hid the padded columns, and did not."""

    def build(self, spec: Any, context: Any) -> Any:
        plain = logprob.Sharded.prepared

        def prepared(self: Any, logits: Any, selected: Any) -> Any:
            plain(self, logits, selected)
            return logits.float().clone()

        logprob.Sharded.prepared = prepared
        return super().build(spec, context)
