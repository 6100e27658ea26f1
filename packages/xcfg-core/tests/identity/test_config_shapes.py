"""config.json is held against the tensors before anything is scored.

Failing means that a model with fewer layers than its weights samples tokens, or that a wrong head count ends in a
traceback of somebody else's library.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import save_file
from xcfg.errors import IdentityError
from xcfg.identity.config_shapes import FAMILIES, check_config

CONFIG = {
    "model_type": "qwen3",
    "num_hidden_layers": 3,
    "hidden_size": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "intermediate_size": 10,
    "vocab_size": 20,
    "tie_word_embeddings": False,
}
LAYER = {
    "self_attn.q_proj.weight": (24, 8),
    "self_attn.k_proj.weight": (12, 8),
    "self_attn.v_proj.weight": (12, 8),
    "self_attn.o_proj.weight": (8, 24),
    "mlp.gate_proj.weight": (10, 8),
    "mlp.up_proj.weight": (10, 8),
    "mlp.down_proj.weight": (8, 10),
}
"""Written out by hand: 4 query heads and 2 key-value heads of 6 in a model that is 8 wide."""


@pytest.fixture
def model(tmp_path):
    """model(config changes, tensors to leave out or to reshape): a checkpoint folder of three layers."""

    def write(config=None, tensors=None, layers=3):
        shapes = {f"model.layers.{number}.{name}": shape for number in range(layers) for name, shape in LAYER.items()}
        shapes |= {"model.embed_tokens.weight": (20, 8), "lm_head.weight": (20, 8)}
        shapes |= tensors or {}
        arrays = {name: np.zeros(shape, dtype=np.float16) for name, shape in shapes.items() if shape is not None}
        save_file(arrays, tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_text(json.dumps(CONFIG | (config or {})))
        return tmp_path

    return write


def refusal(folder) -> str:
    with pytest.raises(IdentityError) as error:
        check_config(folder)
    assert "restore the config.json" in error.value.hint
    return error.value.message


def test_a_config_of_the_same_model_is_accepted(model):
    check_config(model())
    check_config(model({"tie_word_embeddings": True}, {"lm_head.weight": None}))
    check_config(model({"num_key_value_heads": 4}, {f"model.layers.{n}.self_attn.{p}.weight": (24, 8)
                                                    for n in range(3) for p in ("k_proj", "v_proj")}))  # fmt: skip


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"num_hidden_layers": 2}, "num_hidden_layers is 2, and the weights have 3 layers, up to layer 2"),
        ({"num_hidden_layers": 5}, "num_hidden_layers is 5, and the weights have no layer 3 (3 layers)"),
        (
            {"num_attention_heads": 2},
            "q_proj.weight is 24 x 8, and num_attention_heads 2 x head_dim 6 and hidden_size 8 make it 12 x 8",
        ),
        ({"num_key_value_heads": 4}, "k_proj.weight is 12 x 8, and num_key_value_heads 4 x head_dim 6"),
        ({"head_dim": 3}, "q_proj.weight is 24 x 8, and num_attention_heads 4 x head_dim 3"),
        ({"hidden_size": 16}, "hidden_size 16"),
        ({"intermediate_size": 11}, "mlp.gate_proj.weight is 10 x 8, and intermediate_size 11 and hidden_size 8"),
        ({"vocab_size": 21}, "model.embed_tokens.weight is 20 x 8, and vocab_size 21"),
    ],
)
def test_a_config_of_another_model_is_named_with_field_and_tensor(model, config, said):
    assert said in refusal(model(config))


def test_a_tensor_that_is_missing_would_be_random(model):
    assert "the weights have no lm_head.weight" in refusal(model(tensors={"lm_head.weight": None}))
    lost = "model.layers.1.self_attn.v_proj.weight"
    assert f"the weights have no {lost}" in refusal(model(tensors={lost: None}))


def test_many_faults_are_counted_and_three_are_shown(model):
    message = refusal(model({"num_attention_heads": 2}))
    assert message.endswith("(and 3 more)")  # q_proj and o_proj of three layers


def test_layers_for_multi_token_prediction_lie_behind_the_last(model):
    check_config(model({"model_type": "deepseek_v3", "num_nextn_predict_layers": 1}, layers=4))
    assert "4 layers" in refusal(model({"model_type": "deepseek_v3"}, layers=4))


def test_layers_of_a_text_model_within_are_counted(model):
    config = {"model_type": "qwen3_vl", "num_hidden_layers": 9, "text_config": CONFIG}
    check_config(model(config))
    assert "num_hidden_layers is 2" in refusal(model(config | {"text_config": CONFIG | {"num_hidden_layers": 2}}))


@pytest.mark.parametrize(
    "config", [{"model_type": "phi3"}, {"model_type": "deepseek_v3"}, {"quantization_config": {"bits": 4}}]
)
def test_what_has_other_shapes_is_left_alone(model, config):
    """Failing means that a sound checkpoint of a family with fused, latent or packed weights is refused."""
    assert config.get("model_type") not in FAMILIES
    check_config(model(config | {"num_attention_heads": 2}))


def test_without_a_config_or_readable_weights_there_is_nothing_to_say(model):
    folder = model({"num_hidden_layers": 2})
    (folder / "model.safetensors").write_bytes(b"no")
    check_config(folder)
    (folder / "config.json").unlink()
    check_config(folder)
