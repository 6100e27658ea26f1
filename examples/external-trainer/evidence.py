"""What score.py reports beside its numbers, read from the live model and from what it was given; never the request."""

from collections import Counter, namedtuple
from contextlib import contextmanager

import torch
from torch.overrides import TorchFunctionMode
from xcfg.identity.attest import fold, weight_digest
from xcfg.plugin.readback import Reading, application, execution, state
from xcfg.schema.names import Lifecycle
from xcfg.schema.worker import RankRecord, WeightReport

State = namedtuple("State", "fold modes random")


def dtype_name(thing):
    return str(thing.dtype).removeprefix("torch.")


def weights(model):
    """One digest per tensor under its Hugging Face name, in the dtype in which the model holds it."""
    digests = {name: weight_digest(tensor) for name, tensor in model.named_parameters()}
    return WeightReport(method="digest", dtype=dtype_name(model), tensors=digests, fold=state_of(model).fold)


def state_of(model):
    """What a score must leave as it was: parameters and buffers, training flags, random numbers."""
    random = [item.tolist() for item in (torch.get_rng_state(), *torch.cuda.get_rng_state_all())]
    tensors = fold([*model.named_parameters(), *model.named_buffers()])
    return State(tensors, [module.training for module in model.modules()], random)


def rank_record(rank, rollout, evidence):
    return RankRecord(
        rank=rank,
        world_size=1,
        role="owner",
        coordinates={},
        ranges=((0, len(rollout.token_ids)),),
        parallelism="none",
        dtype=evidence.compute_dtype,
        padding_side="+".join(+evidence.padded) or "none",
        cache_mode="none",
        active_tokens=rollout.manifest.active_count,
    )


class Evidence(TorchFunctionMode):
    """Counters of one score: functions that the model called, inputs of its matmuls, rows and padding of its batches.

    The name of an attention in the configuration is no proof: a fallback keeps the name.
    """

    def __init__(self, model, rank):
        super().__init__()
        self.model, self.rank = model, rank
        for module in model.get_decoder().modules():
            if isinstance(module, torch.nn.Linear):
                module.register_forward_pre_hook(lambda _, given: self.matmuls.update([dtype_name(given[0])]))

    def clear(self):
        self.calls, self.matmuls, self.padded, self.rows = Counter(), Counter(), Counter(), []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.calls[func.__name__] += 1
        return func(*args, **(kwargs or {}))

    @contextmanager
    def watching(self, mask):
        self.rows.append(len(mask))
        self.padded.update(left=int((mask[:, 0] == 0).sum()), right=int((mask[:, -1] == 0).sum()))
        with self:
            yield

    @property
    def compute_dtype(self):
        return "+".join(sorted(self.matmuls))

    def applications(self, knobs):
        """One record per knob that was given and is known here; another one stays without a report: unobservable."""
        layers = self.model.config.num_hidden_layers * len(self.rows)
        attention = {"sdpa": self.calls["scaled_dot_product_attention"], "eager": self.calls["softmax"]}
        ran = "+".join(name for name, count in attention.items() if count == layers)
        whole = all(type(tensor) is torch.nn.Parameter for tensor in self.model.parameters())
        sides = "+".join(+self.padded) or knobs.get("batch.padding_side")  # without padding both sides are one layout
        rows = f"{len(self.rows)} batches of {self.rows} rows, a sequence each"
        asked = knobs.get("batch.size", 0)
        size = asked if len(self.rows) == 1 and self.rows[0] < asked else max(self.rows)  # all fitted into one batch
        found = {
            "batch.packing": (False, execution("rows that entered the model", rows)),
            "batch.padding_side": (sides, execution("masks that entered the model", dict(self.padded))),
            "batch.size": (size, execution("rows that entered the model", rows)),
            "training.attention_backend": (ran or None, execution("functions that the model called", attention)),
            "training.compute_dtype": (self.compute_dtype or None, execution("inputs of the matmuls", self.matmuls)),
            "training.sharding": ("unsharded" if whole else None, state("types of the parameters", f"plain: {whole}")),
        }
        return tuple(self.record(path, knobs[path], *found[path]) for path in found if path in knobs)

    def record(self, path, asked, actual, evidence):
        """Applied where `actual` is what was asked for, unobservable where it is None, fallback otherwise."""
        when = Lifecycle.REQUEST if path.startswith("batch.") else Lifecycle.ENGINE_CONSTRUCTION
        return application(path, asked, Reading(asked, actual, (evidence,), when), side="training", rank=self.rank)
