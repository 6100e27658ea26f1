"""The shard maps of this repository against the functions by which the engines split a vocabulary."""

from __future__ import annotations

import subprocess
import sys

import pytest
from xcfg_ops_logp.contract import megatron_shards, vllm_shards
from xcfg_ops_logp.contract.shards import even_shards, padded_size

pytestmark = pytest.mark.engine
SIZES = (1, 64, 500, 512, 49_152, 151_936)
RANKS = (1, 2, 4, 8)
VLLM = """
from vllm.model_executor.layers.vocab_parallel_embedding import (
    DEFAULT_VOCAB_PADDING_SIZE, pad_vocab_size, vocab_range_from_global_vocab_size)
print([[(padded := pad_vocab_size(size, DEFAULT_VOCAB_PADDING_SIZE)),
        [[*vocab_range_from_global_vocab_size(padded, rank, ranks)] for rank in range(ranks)]]
       for size in %r for ranks in %r])
"""


def test_megatron_splits_as_the_map_says():
    """If this fails, ids are looked for on ranks that do not own them."""
    utils = pytest.importorskip("megatron.core.tensor_parallel.utils").VocabUtility
    for size in SIZES:
        for ranks in RANKS:
            padded = padded_size(size, 128 * ranks)
            found = tuple(utils.vocab_range_from_global_vocab_size(padded, rank, ranks) for rank in range(ranks))
            assert tuple(map(tuple, found)) == megatron_shards(size, ranks) == even_shards(padded, ranks)


def test_vllm_pads_and_splits_as_the_map_says():
    """If this fails, vLLM pads to another multiple, and the boundaries of its ranks are not these."""
    code = VLLM % (SIZES, RANKS)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    told = iter(eval(done.stdout.strip().splitlines()[-1], {"__builtins__": {}}))
    for size in SIZES:
        for ranks in RANKS:
            padded, shards = next(told)
            assert padded == padded_size(size, 64)
            assert tuple(map(tuple, shards)) == vllm_shards(size, ranks)
