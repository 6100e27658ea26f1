"""The probe of determinism flags, against the live process."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from xcfg.binding import DeterminismSpec, fields_of, read_determinism
from xcfg.schema.codec import convert

LIGHT = """
import sys
from xcfg.binding import read_determinism
print(read_determinism({"NCCL_ALGO": "Ring", "HOME": "x"}), "torch" in sys.modules)
"""


def test_a_variable_that_is_not_set_is_unset():
    """If this fails, an absent variable is not known, and every claim is refuted."""
    found = read_determinism({"NCCL_PROTO": "Simple"})["flags"]
    assert (found["NCCL_ALGO"], found["NCCL_PROTO"]) == ("unset", "Simple")


def test_every_flag_of_the_contract_is_read_and_no_other():
    """If this fails, a flag binds that nobody reads, or one is read that the contract drops."""
    found = read_determinism({})
    assert set(found["flags"]) == {item.path for item in fields_of(DeterminismSpec)}
    assert None not in found["flags"].values()
    assert convert(found["flags"], DeterminismSpec).NCCL_ALGO == "unset"
    assert found["libraries"] == ["torch"]


def test_switches_are_those_of_the_moment():
    """If this fails, the probe tells what was asked for, not what is in force when a score runs."""
    before = torch.are_deterministic_algorithms_enabled()
    matmul = torch.backends.cuda.matmul
    reduced = matmul.allow_bf16_reduced_precision_reduction
    try:
        for value in (True, False):
            torch.use_deterministic_algorithms(value)
            matmul.allow_bf16_reduced_precision_reduction = value
            found = read_determinism({})["flags"]
            assert found["deterministic_algorithms"] is found["bf16_reduced_precision_reduction"] is value
    finally:
        torch.use_deterministic_algorithms(before)
        matmul.allow_bf16_reduced_precision_reduction = reduced


TF32 = """
import torch
from xcfg.binding import read_determinism
matmul = torch.backends.cuda.matmul
def tf32():
    return read_determinism({})["flags"]["tf32"]
found = [tf32()]
torch.set_float32_matmul_precision("high"); found.append(tf32())
torch.set_float32_matmul_precision("highest"); found.append(tf32())
if hasattr(matmul, "fp32_precision"):
    matmul.fp32_precision = "tf32"; found.append(tf32())
    matmul.fp32_precision = "ieee"; found.append(tf32())
print(found)
"""


def test_tf32_is_read_whichever_of_torchs_two_switches_set_it():
    """If this fails, a program that uses the newer switch ends its score: torch refuses to be asked by the older."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", TF32], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-1500:]
    expected = [False, True, False, *([True, False] if hasattr(torch.backends.cuda.matmul, "fp32_precision") else [])]
    assert done.stdout.strip() == str(expected)


@pytest.mark.parametrize(
    ("backend", "ranks", "cuda", "runs"),
    [
        ("nccl", 2, True, ["nccl", "cublas", "transformer_engine", "torch"]),
        ("cpu:gloo,cuda:nccl", 2, True, ["nccl", "cublas", "transformer_engine", "torch"]),
        ("nccl", 1, True, ["cublas", "transformer_engine", "torch"]),
        ("gloo", 4, False, ["torch"]),
        (None, 1, False, ["torch"]),
    ],
)
def test_a_library_counts_where_it_runs(monkeypatch, backend, ranks, cuda, runs):
    """If this fails, a setting of a library that is only installed costs a verdict, or one that runs does not."""
    distributed = torch.distributed
    monkeypatch.setattr(distributed, "is_initialized", lambda: backend is not None)
    monkeypatch.setattr(distributed, "get_world_size", lambda: ranks)
    monkeypatch.setattr(distributed, "get_backend", lambda: backend)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: cuda)
    monkeypatch.setitem(sys.modules, "transformer_engine", sys)
    assert read_determinism({})["libraries"] == runs


def test_the_probe_imports_nothing():
    """If this fails, a worker of another engine pays for torch, or xcfg plan does."""
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("'libraries': []} False")
    assert "'NCCL_ALGO': 'Ring'" in done.stdout and "HOME" not in done.stdout
