"""What this machine has, read without importing torch: processor, memory, accelerators, variables."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from xcfg.runtime.environment import ALLOWED_PREFIXES, SECRET_SUFFIXES, accelerator, processor, torch_build
from xcfg.schema.doctor import Machine

FEATURES = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_tile")
"""Processor features by which CPU kernels are chosen."""
CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
TORCH_TIMEOUT = 120.0
_PROBE = (
    "import torch; print(int(torch.cuda.is_available())); "
    "[print(torch.cuda.get_device_name(index)) for index in range(torch.cuda.device_count())]"
)


def read_machine(*, ask_torch: bool) -> Machine:
    """Return the facts of this machine.

    ask_torch: where an accelerator and torch are there, ask torch in a process of its own whether it can use it.
    """
    seen = tuple(line.strip() for line in accelerator().get("model_and_driver", "").split(";") if line.strip())
    build = _torch_version(torch_build())
    cuda, names, note = _cuda() if ask_torch and seen and build else (None, (), "")
    if not note and seen and not build:
        note = "torch is not installed"
    found = processor()
    return Machine(
        platform=f"{sys.platform}-{platform.machine()}",
        python=platform.python_version(),
        processor=found.partition(" [")[0],
        features={name: name in re.findall(r"\w+", found.partition(" [")[2]) for name in FEATURES},
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_gib=memory_gib(),
        accelerators=seen,
        torch=build,
        cuda=cuda,
        cuda_devices=names,
        cuda_note=note,
    )


def device_kinds(machine: Machine) -> tuple[str, ...]:
    """Return the device kinds that are here: cpu, and cuda where an accelerator is not known to be unusable."""
    return ("cpu", "cuda") if machine.accelerators and machine.cuda is not False else ("cpu",)


def memory_gib() -> float | None:
    """Return the memory that processes here may use, in GiB; None where the system does not say."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None
    for name in CGROUP_LIMITS:
        try:
            text = Path(name).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            total = min(total, int(text))
    return round(total / 2**30, 1)


def variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables that are set and choose kernels, orders or precisions.

    A name that may hold a host, a path or a secret is left out, as in the scoring environment.
    """
    found = os.environ if environ is None else environ
    return {
        name: _printable(value)
        for name, value in sorted(found.items())
        if name.startswith(ALLOWED_PREFIXES) and not name.endswith(SECRET_SUFFIXES)
    }


def _printable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _torch_version(build: str) -> str:
    match = re.search(r"__version__ = '([^']+)'", build)
    return match[1] if match else ""


def _cuda() -> tuple[bool | None, tuple[str, ...], str]:
    """Return whether torch can use an accelerator, the names of those, and why nobody can say."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=TORCH_TIMEOUT, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        return None, (), f"torch could not be asked: {type(error).__name__}"
    lines = done.stdout.splitlines()
    if done.returncode or not lines or lines[0] not in ("0", "1"):
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return False, (), f"torch does not start: {last}"
    return lines[0] == "1", tuple(lines[1:]), "" if lines[0] == "1" else "torch sees no usable accelerator"
