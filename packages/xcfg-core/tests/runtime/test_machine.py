"""Facts of the machine: what is stored about it, and what torch is asked."""

from __future__ import annotations

import os

import pytest
from xcfg.runtime import machine


def test_variables_are_those_that_choose_kernels_and_hold_no_secret():
    """Failing means that a report that people paste elsewhere holds a key, a host or a path."""
    given = {
        "VLLM_USE_V2_MODEL_RUNNER": "1",
        "VLLM_API_KEY": "secret",
        "VLLM_HOST_IP": "10.0.0.1",
        "NVTE_FLASH_ATTN": "0",
        "NCCL_ALGO": "Ring",
        "NCCL_SOCKET_IFNAME": "eth0",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "OMP_NUM_THREADS": "2",
        "HOME": "/home/somebody",
        "TORCH_HOME": "/home/somebody",
        "OMP_BAD": "\udcff",
    }
    assert machine.variables(given) == {
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "NCCL_ALGO": "Ring",
        "NVTE_FLASH_ATTN": "0",
        "OMP_BAD": "?",
        "OMP_NUM_THREADS": "2",
        "VLLM_USE_V2_MODEL_RUNNER": "1",
    }


def test_features_are_whole_words(monkeypatch):
    """Failing means that avx512f is seen where only avx512f16 is, or amx_bf16 taken for avx512_bf16."""
    monkeypatch.setattr(machine, "processor", lambda: "AMD [odd] CPU [avx2 avx512_bf16]")
    monkeypatch.setattr(machine, "accelerator", dict)
    found = machine.read_machine(ask_torch=True)
    assert {name for name, there in found.features.items() if there} == {"avx2", "avx512_bf16"}
    assert (found.cuda, found.cuda_devices, found.accelerators) == (None, (), ())
    assert found.cores == len(os.sched_getaffinity(0))


def test_memory_is_no_more_than_the_control_group_allows(monkeypatch, tmp_path):
    limit = tmp_path / "memory.max"
    limit.write_text(f"{3 * 2**29}\n")
    monkeypatch.setattr(machine, "CGROUP_LIMITS", (str(tmp_path / "absent"), str(limit)))
    assert machine.memory_gib() == 1.5
    limit.write_text("max\n")
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    assert machine.memory_gib() == round(whole, 1)


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("print(1); print('H200'); print('H200')", (True, ("H200", "H200"), "")),
        ("print(0)", (False, (), "torch sees no usable accelerator")),
        ("import sys; sys.exit('driver too old')", (False, (), "torch does not start: driver too old")),
        ("print('hello')", (False, (), "torch does not start: it said nothing")),
    ],
)
def test_an_accelerator_counts_when_torch_can_use_it(monkeypatch, program, expected):
    """Failing means that a GPU which torch cannot use is called usable."""
    monkeypatch.setattr(machine, "_PROBE", program)
    monkeypatch.setattr(machine, "torch_build", lambda: "__version__ = '2.13.0'; cuda = '13.0'")
    monkeypatch.setattr(machine, "accelerator", lambda: {"model_and_driver": "H200, 570; H200, 570"})
    found = machine.read_machine(ask_torch=True)
    assert (found.cuda, found.cuda_devices, found.cuda_note) == expected
    assert ("cuda" in machine.device_kinds(found)) is (found.cuda is not False)
    assert machine.read_machine(ask_torch=False).cuda is None
