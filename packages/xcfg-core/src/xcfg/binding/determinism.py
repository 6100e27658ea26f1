"""Settings of libraries that decide whether equal requests give equal bits, as the process that scores has them.

The probe reads live state: the environment of the process and torch's own switches. It imports nothing, so a worker
without torch has none of torch's values. A variable that is not set reads `unset`, which is a value; None means that
nobody read it.

Sources of the names: NCCL's and cuBLAS's manuals (NCCL_ALGO, NCCL_PROTO; CUBLAS_WORKSPACE_CONFIG, "Results
reproducibility"), Transformer Engine's attention documentation (NVTE_ALLOW_NONDETERMINISTIC_ALGO), torch's notes on
reproducibility and on numerical accuracy.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from xcfg.binding.marks import Where
from xcfg.binding.spellings import NCCL_ALGO, NCCL_PROTO, SWITCH, UNSET
from xcfg.schema._base import Record
from xcfg.schema.names import Tier

CLAIMS = ("deterministic_algorithms", "deterministic_mode", "batch_invariant")
"""Switches by which a side claims that equal requests give equal bits: last words of knobs and of runtime options."""
KEY = "determinism"
"""Where a score report holds the probe: mechanism["determinism"]."""
NCCL, CUBLAS, NVTE, TORCH = "nccl", "cublas", "transformer_engine", "torch"
LIBRARIES = (NCCL, CUBLAS, NVTE, TORCH)
VARIABLES = ("NCCL_ALGO", "NCCL_PROTO", "CUBLAS_WORKSPACE_CONFIG", "NVTE_ALLOW_NONDETERMINISTIC_ALGO")


class DeterminismSpec(Record, frozen=True):
    """The flags of one process. What binds does so where its library runs and the case claims determinism.

    NCCL_ALGO, NCCL_PROTO, CUBLAS_WORKSPACE_CONFIG, NVTE_ALLOW_NONDETERMINISTIC_ALGO: environment variables.
    deterministic_algorithms: torch.use_deterministic_algorithms. tf32, bf16_reduced_precision_reduction,
    fp16_reduced_precision_reduction: torch's switches for matrix products on CUDA. The rest is recorded.
    """

    NCCL_ALGO: Annotated[str | None, Tier.SEMANTIC, NCCL_ALGO, Where(NCCL)] = None
    NCCL_PROTO: Annotated[str | None, Tier.SEMANTIC, NCCL_PROTO, Where(NCCL)] = None
    CUBLAS_WORKSPACE_CONFIG: Annotated[str | None, Tier.SEMANTIC, Where(CUBLAS)] = None
    NVTE_ALLOW_NONDETERMINISTIC_ALGO: Annotated[str | None, Tier.SEMANTIC, SWITCH, Where(NVTE)] = None
    deterministic_algorithms: Annotated[bool | None, Tier.SEMANTIC, Where(TORCH)] = None
    tf32: Annotated[bool | None, Tier.SEMANTIC, Where(CUBLAS)] = None
    bf16_reduced_precision_reduction: Annotated[bool | None, Tier.SEMANTIC, Where(CUBLAS)] = None
    fp16_reduced_precision_reduction: Annotated[bool | None, Tier.SEMANTIC, Where(CUBLAS)] = None
    deterministic_warn_only: Annotated[bool | None, Tier.RECORDED] = None
    float32_matmul_precision: Annotated[str | None, Tier.RECORDED] = None
    cudnn_deterministic: Annotated[bool | None, Tier.RECORDED] = None
    cudnn_benchmark: Annotated[bool | None, Tier.RECORDED] = None


def read_determinism(environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return `{"flags": {name: value}, "libraries": [name]}` of this process, plain values for a score report.

    libraries: of LIBRARIES, those that run here: torch once it is imported, cuBLAS once CUDA is initialised, NCCL
    once a process group of several ranks uses it, Transformer Engine once it is imported where CUDA runs.
    """
    told = os.environ if environ is None else environ
    flags: dict[str, Any] = {name: told.get(name, UNSET) for name in VARIABLES}
    torch = sys.modules.get("torch")
    if torch is None:
        return {"flags": flags, "libraries": []}
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    flags |= {
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "deterministic_warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "float32_matmul_precision": _read(torch.get_float32_matmul_precision),
        "tf32": _tf32(torch),
        "bf16_reduced_precision_reduction": bool(matmul.allow_bf16_reduced_precision_reduction),
        "fp16_reduced_precision_reduction": bool(matmul.allow_fp16_reduced_precision_reduction),
        "cudnn_deterministic": bool(cudnn.deterministic),
        "cudnn_benchmark": bool(cudnn.benchmark),
    }
    on_cuda = bool(torch.cuda.is_initialized())
    running = {
        TORCH: True,
        CUBLAS: on_cuda,
        NCCL: _nccl(sys.modules.get("torch.distributed")),
        NVTE: on_cuda and "transformer_engine" in sys.modules,
    }
    return {"flags": flags, "libraries": [name for name in LIBRARIES if running[name]]}


def _tf32(torch: Any) -> bool | None:
    """Whether matrix products on CUDA may use TF32: by the newer switch where torch has it.

    Once a program has used the newer one, torch refuses to be asked by the older.
    """
    matmul = torch.backends.cuda.matmul
    own = _read(lambda: matmul.fp32_precision)
    if own is None:
        old: bool | None = _read(lambda: bool(matmul.allow_tf32))
        return old
    above = _read(lambda: torch.backends.fp32_precision) if own == "none" else own
    return bool(above == "tf32")


def _read(ask: Callable[[], Any]) -> Any:
    """Return what torch answers, None where it has no such switch or refuses to say: then it is not known."""
    try:
        return ask()
    except (AttributeError, RuntimeError):
        return None


def _nccl(distributed: Any) -> bool:
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return False
    return distributed.get_world_size() > 1 and "nccl" in str(distributed.get_backend())
