from __future__ import annotations

import copy

import pytest
from xcfg.config import parse_experiment
from xcfg.planning import plan_experiment
from xcfg.plugin.builtin.knobs import SHARED_KNOBS
from xcfg.schema.experiment import ContractRef
from xcfg.schema.identity import IdentityDigests
from xcfg.schema.knobs import AlignSpec, Choice, Constraint, FloatRange, IntRange, KnobDefinition
from xcfg.schema.names import Lifecycle, SourceClass, Target

BASE = {
    "experiment_id": "exp-1",
    "scenario_id": "tiny",
    "identity": {
        "checkpoint_id": "builtin:tiny",
        "model_version": "1",
        "tokenizer_policy": "token-ids-only",
        "token_ids": [[5, 6]],
        "selected_token_ids": [[5, 6]],
        "active_mask": [[False, True]],
        "attention_mask": [[True, True]],
        "pre_update_state": "pre-update",
    },
    "baseline": {
        "batch": {"size": 8},
        "rollout": {
            "tensor_parallel_size": 1,
            "context_parallel_size": 1,
            "dtype": "bfloat16",
            "enable_prefix_caching": False,
            "enforce_eager": True,
        },
        "training": {"attention_backend": "sdpa", "compute_dtype": "bfloat16", "sharding": "unsharded"},
        "logp": {"backend": "native"},
    },
}


def plugin_knob(name, target, domain, **rest):
    return KnobDefinition(
        name=name,
        summary=f"Test knob {name}.",
        source_class=SourceClass.EXECUTION,
        lifecycle=Lifecycle.ENGINE_CONSTRUCTION,
        targets=target,
        domain=domain,
        **rest,
    )


PLUGIN_KNOBS = (
    plugin_knob("training.tensor_parallel_size", Target.TRAINING, IntRange(), default=1,
                align=AlignSpec(group="tensor_parallel_size", reference=1)),
    plugin_knob("gemm.kernel", Target.KERNEL, Choice(values=("native", "tree")), default="native"),
    plugin_knob("rollout.block", Target.ROLLOUT, IntRange(minimum=16, maximum=64)),
    plugin_knob("rollout.scale", Target.ROLLOUT, FloatRange(minimum=0.0, maximum=2.0)),
    plugin_knob("rollout.kv_cache_dtype", Target.ROLLOUT, Choice(values=("auto", "fp8")), default="auto",
                constraints=(Constraint(code="FP8_NEEDS_BF16", when={"rollout.kv_cache_dtype": ("fp8",)},
                                        require={"rollout.dtype": ("bfloat16",)}),)),
    plugin_knob("training.derived_thing", Target.TRAINING, IntRange(), default=1, derived=True),
)  # fmt: skip

KNOBS = {knob.name: knob for knob in (*SHARED_KNOBS, *PLUGIN_KNOBS)}
DIGESTS = IdentityDigests(rollout="r" * 64, checkpoint="c" * 64, tokenizer="t" * 64, sampling="s" * 64)


def document(version="v2", **change):
    return {
        "schema_version": f"cross_config.experiment_config.{version}",
        **copy.deepcopy(BASE),
        **copy.deepcopy(change),
    }


@pytest.fixture(scope="session")
def make_document():
    return document


@pytest.fixture(scope="session")
def knobs():
    return KNOBS


@pytest.fixture(scope="session")
def digests():
    return DIGESTS


@pytest.fixture(scope="session")
def load():
    def loaded(version="v2", **change):
        import msgspec

        experiment = parse_experiment(document(version, **change), source="e.json", base_dir=".")
        contract = ContractRef(source="ws1", version="ws1-test", digest="d" * 64)
        return msgspec.structs.replace(experiment, contract=contract)

    return loaded


@pytest.fixture(scope="session")
def make_plan(load):
    def planned(version="v2", **change):
        return plan_experiment(load(version, **change), KNOBS, DIGESTS, providers={"gemm.": "xcfg-ops-gemm"})

    return planned


@pytest.fixture(scope="session")
def vary():
    """Interventions from keywords: `vary(("batch.size", [1]), ("batch.size", [2], "rollout"))`."""

    def varied(*items):
        return [{"path": item[0], "values": item[1], **({"side": item[2]} if len(item) > 2 else {})} for item in items]

    return varied
