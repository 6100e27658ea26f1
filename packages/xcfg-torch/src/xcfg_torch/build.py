"""Build the engine of one rank: options, device, model, hooks, sharding, operator, probe."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from xcfg.errors import LaunchError
from xcfg.plugin.operators import instantiate
from xcfg.plugin.protocols import RankContext
from xcfg.schema.worker import WorkerSpec

from xcfg_torch.batching import Batch
from xcfg_torch.engine import Engine
from xcfg_torch.fsdp import FullySharded, Sharding, join, parameter_count
from xcfg_torch.head import bound_head, refuse_beside
from xcfg_torch.load import DTYPES, Anatomy, anatomy, load_model, prepare_process
from xcfg_torch.mixed_precision import MixedPrecision, asked_precision
from xcfg_torch.observe import Observer
from xcfg_torch.options import TorchOptions, parse_options
from xcfg_torch.scoring import call_operator
from xcfg_torch.weights import tied_names

PROBE_TOKENS = 4


def build_engine(spec: WorkerSpec, context: RankContext) -> tuple[Engine, dict[str, str]]:
    """Return the engine of this rank and the tied parameter names (alias -> owner).

    A probe forward of four tokens has run, so that dtype, attention and gathers are known before anything is
    scored. Raises ConfigError, LaunchError, PluginError, UnsupportedRequestError.
    """
    options = parse_options(spec.options)
    dtype, attention = asked(spec)
    sharded = spec.knobs.get("training.sharding") == "fsdp"
    if context.world_size > 1 and not sharded:
        raise LaunchError(f"{context.world_size} ranks were started for a model that is not sharded")
    if "selected_logprob" not in spec.operators:
        raise LaunchError(
            "the worker was given no binding of 'selected_logprob'",
            hint="Bind it; `xcfg ops resolve` shows how.",
        )
    refuse_beside(spec, sharded=sharded)
    prepare_process(options, context.device, spec.seed)
    if sharded:
        join(context)
    precision = asked_precision(spec.knobs, options, dtype)
    model = load_model(Path(spec.checkpoint), DTYPES[precision.stored], attention, context.device)
    parts = anatomy(model)
    aliases = tied_names(model)
    sharding = _sharding(parts, options, precision, context, sharded)
    observer = Observer(parts)
    observer.float64 = dtype == "float64"
    engine = Engine(
        parts=parts,
        observer=observer,
        operator=instantiate(spec.operators["selected_logprob"]),
        options=options,
        sharding=sharding,
        side=spec.side,
        rank=context.rank,
        device=context.device,
        dtype=dtype,
        attention=attention,
        pad_id=pad_id(model, options),
        head=bound_head(spec, model),
    )
    probe(engine)
    return engine, aliases


def asked(spec: WorkerSpec) -> tuple[str, str]:
    """Return (dtype, attention) that the knobs of this side ask for; LaunchError for a dtype that is none."""
    side = "rollout" if spec.side == "rollout" else "training"
    name = "rollout.dtype" if side == "rollout" else "training.compute_dtype"
    dtype = str(spec.knobs.get(name, "bfloat16"))
    if dtype not in DTYPES:
        raise LaunchError(f"{name} is {dtype!r}", hint=f"The runtime 'torch' builds {', '.join(DTYPES)}.")
    return dtype, str(spec.knobs.get(f"{side}.attention_backend", "model_default"))


def _sharding(
    parts: Anatomy, options: TorchOptions, precision: MixedPrecision, context: RankContext, sharded: bool
) -> Sharding:
    if sharded:
        reshard = options.fsdp_reshard_after_forward
        return FullySharded(parts, precision, reshard=reshard, world_size=context.world_size, device=context.device)
    return Sharding(parameter_count(parts.model))


def pad_id(model: object, options: TorchOptions) -> int:
    """Return the id for padding cells: the option's, the checkpoint's, else 0; inside the vocabulary."""
    config = getattr(model, "config", None)
    wanted = options.pad_token_id if options.pad_token_id is not None else getattr(config, "pad_token_id", None)
    size = int(getattr(config, "vocab_size", 1))
    if options.pad_token_id is not None and options.pad_token_id >= size:
        raise LaunchError(f"pad_token_id {options.pad_token_id} is outside the vocabulary of {size}")
    return int(wanted) if isinstance(wanted, int) and 0 <= wanted < size else 0


def probe(engine: Engine) -> None:
    """Run four tokens through the model, and through an operator in the place of its head; counters hold what ran."""
    size = min(PROBE_TOKENS, int(engine.model.config.vocab_size))
    ids = np.arange(size, dtype=np.int64)[None]
    engine.observer.clear()
    engine.sharding.clear()
    output, _ = engine.forward(Batch(ids, ids.copy(), np.ones((1, size), dtype=np.bool_), ()), cache=False)
    if engine.injected_head is not None:
        with torch.no_grad():
            call_operator(engine.scorer, output.logits[0], engine.injected_head.weight, engine.tensor(ids[0]))
        engine.scorer.forget()  # an option of many rows cannot show itself in so few
