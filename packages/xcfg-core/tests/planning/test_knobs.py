from __future__ import annotations

import json

import pytest
from xcfg.planning.normalise import normalise_value
from xcfg.plugin.builtin.knobs import SHARED_KNOBS, V1_PATHS
from xcfg.schema.codec import digest
from xcfg.schema.knobs import Choice
from xcfg.schema.names import Lifecycle, Target

BY_NAME = {knob.name: knob for knob in SHARED_KNOBS}
CONTRACT = {
    "batch.size": ("request", "both"),
    "rollout.tensor_parallel_size": ("process-start", "rollout"),
    "rollout.context_parallel_size": ("process-start", "rollout"),
    "rollout.dtype": ("engine-construction", "rollout"),
    "rollout.enable_prefix_caching": ("engine-construction", "rollout"),
    "rollout.enforce_eager": ("engine-construction", "rollout"),
    "training.attention_backend": ("engine-construction", "training"),
    "training.compute_dtype": ("engine-construction", "training"),
    "logp.backend": ("engine-construction", "both"),
    "training.sharding": ("process-start", "training"),
}


def test_the_ten_of_the_contract():
    assert set(V1_PATHS) == set(CONTRACT)
    found = {name: (BY_NAME[name].lifecycle.value, BY_NAME[name].targets.value) for name in V1_PATHS}
    assert found == CONTRACT


def test_names_are_unique():
    assert len(BY_NAME) == len(SHARED_KNOBS)


@pytest.mark.parametrize("knob", SHARED_KNOBS, ids=lambda knob: knob.name)
def test_a_knob_is_complete_and_consistent(knob):
    assert all((knob.summary, knob.capability, knob.apply, knob.provenance))
    assert normalise_value(knob, knob.default) == knob.default
    for value in knob.aliases.values():
        assert normalise_value(knob, value) == value
    # Every knob says how it is aligned or why it is not.
    assert (knob.align is None) == bool(knob.not_alignable)
    if knob.align is not None and knob.align.reference is not None:
        normalise_value(knob, knob.align.reference)
        assert all(normalise_value(knob, json.loads(text)) is not None for text in knob.align.canonical)
    prefix = knob.name.partition(".")[0]
    sides = {"rollout": Target.ROLLOUT, "training": Target.TRAINING}
    assert knob.targets is sides.get(prefix, Target.BOTH)
    assert knob.distributed == (knob.lifecycle is Lifecycle.PROCESS_START)
    assert len(digest(knob)) == 64


def test_the_two_sides_of_a_group_speak_of_one_thing():
    for first, second in [
        ("rollout.dtype", "training.compute_dtype"),
        ("rollout.attention_backend", "training.attention_backend"),
    ]:
        one, two = BY_NAME[first], BY_NAME[second]
        assert isinstance(one.domain, Choice)
        assert one.domain == two.domain
        assert one.align.group == two.align.group
        assert one.align.canonical == two.align.canonical
