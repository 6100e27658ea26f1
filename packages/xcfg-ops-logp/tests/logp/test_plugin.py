"""The plugin module: light, and valid for the hook specifications."""

from __future__ import annotations

import subprocess
import sys

import pluggy
from xcfg.plugin import PROJECT, spec
from xcfg.schema.names import Target
from xcfg_ops_logp import plugin


def test_hooks_are_known():
    """If this fails, a misspelt hook is never called."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(spec)
    manager.register(plugin)
    manager.check_pending()
    found = [item for records in manager.hook.xcfg_operator_backends() for item in records]
    assert {item.backend_id for item in found} >= {
        "xcfg.reference_logp",
        "xcfg.reference_logp_float32",
        "xcfg.tp_tree_logp",
        "xcfg.allgather_logits_logp",
        "xcfg.allgather_partials_logp",
        "xcfg.allreduce_partials_logp",
        "xcfg.fixed_point_logp",
        "xcfg.slime_vocab_parallel_logp",
        "xcfg.triton_logp",
    }
    assert {item.backend_id for item in found if item.operation == "linear_selected_logprob"} == {
        "xcfg.ablation_linear_logp",
        "xcfg.reference_linear_logp",
        "xcfg.torch_linear_logp",
        "xcfg.triton_blocks_linear_logp",
        "xcfg.triton_tiles_linear_logp",
        "xcfg.liger_linear_logp",
    }
    names = [(item.operation, name) for item in found for name in (item.backend_id, *item.aliases)]
    assert len(set(names)) == len(names)


def test_why_an_axis_cannot_be_aligned_is_true_of_two_equal_backends():
    """If this fails, a page says that one side lacks an option that both sides have, as with one backend on both."""
    stated = {item.name: (item.targets, item.not_alignable) for item in plugin.xcfg_knobs()}
    assert stated["logprob.merge_order"] == (
        Target.BOTH,
        "It acts on the backend of the side that it names; without a side it is asked of both.",
    )
    assert stated["logprob.backward_impl"] == (Target.TRAINING, "A rollout runs no backward.")
    assert not [name for name, (_, why) in stated.items() if "alone" in why]


def test_torch_is_not_imported():
    """If this fails, `xcfg plan` waits for torch."""
    code = "import xcfg_ops_logp.plugin, xcfg_ops_logp.contract, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
