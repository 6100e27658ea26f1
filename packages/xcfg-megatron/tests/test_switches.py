"""The table of flags: what reaches TransformerConfig, and what a refusal is attributed to."""

from __future__ import annotations

from xcfg_megatron.capabilities import MEGATRON
from xcfg_megatron.knob_records import KNOBS
from xcfg_megatron.switches import SWITCHES, config_fields, unusual


def test_every_flag_is_set_also_where_no_knob_names_it():
    """If this fails, a default of Megatron-core decides what the baseline is."""
    fields = config_fields({})
    assert set(fields) == {item.field for item in SWITCHES}
    assert [name for name, value in fields.items() if value] == ["attention_softmax_in_fp32"]


def test_recompute_and_fp8_become_fields():
    """If this fails, a value that is no flag is dropped on its way to Megatron-core."""
    assert config_fields({"training.recompute": "selective"})["recompute_granularity"] == "selective"
    assert config_fields({"training.recompute": "full"})["recompute_num_layers"] == 1
    assert config_fields({"training.fp8": "hybrid"})["fp8"] == "hybrid"
    assert "fp8" not in config_fields({"training.fp8": "none"})


def test_a_refusal_names_the_unusual_knobs_and_the_rank_count_last():
    """If this fails, a person is told to look at a knob that has nothing to do with the refusal."""
    two = {"training.tensor_parallel_size": 2, "training.compute_dtype": "bfloat16"}
    assert unusual(two) == ["training.tensor_parallel_size=2"]
    assert unusual({**two, "training.sequence_parallel": True}) == ["training.sequence_parallel=True"]
    assert unusual({"training.softmax_in_fp32": True}) == []
    assert unusual({"training.softmax_in_fp32": False}) == ["training.softmax_in_fp32=False"]


def test_every_knob_of_the_package_is_one_that_the_runtime_has():
    """If this fails, a declared knob is refused by the only runtime that could have it."""
    assert {item.name for item in KNOBS} <= {item.path for item in MEGATRON.capabilities}
