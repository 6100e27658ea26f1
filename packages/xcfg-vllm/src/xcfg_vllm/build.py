"""From a worker's specification to a live vLLM engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xcfg.errors import ConfigError, LaunchError, did_you_mean
from xcfg.identity.rollout import read_rollout
from xcfg.schema.worker import WorkerSpec

from xcfg_vllm.memory import Memory, model_config, plan_memory
from xcfg_vllm.options import SOURCE, VllmOptions, parse_options

VERSIONS = (25, 33)
"""Minor versions of vLLM 0.x that this adapter knows: from, and first one not."""
EXTENSION = "xcfg_vllm.extension.WorkerExtension"
READ_ELSEWHERE = ("VLLM_PLUGINS",)
"""Variables that are read wherever vLLM keeps its list."""
PROBED = 2
"""Blocks of the cache that a probe of it fills: a freeze has an engine for the model's longest prompt."""
GENERATED = 1
"""Positions beyond the longest sequence: a prefill request must generate one token."""
DIRECT = {
    "rollout.dtype": "dtype",
    "rollout.tensor_parallel_size": "tensor_parallel_size",
    "rollout.enable_prefix_caching": "enable_prefix_caching",
    "rollout.enforce_eager": "enforce_eager",
    "rollout.max_num_batched_tokens": "max_num_batched_tokens",
    "rollout.max_num_seqs": "max_num_seqs",
    "rollout.block_size": "block_size",
    "rollout.kv_cache_dtype": "kv_cache_dtype",
    "rollout.engine_attention": "attention_backend",
    "rollout.enable_chunked_prefill": "enable_chunked_prefill",
    "rollout.logprobs_mode": "logprobs_mode",
}
"""Knob -> argument of vllm.LLM, passed as it stands."""
RAW = "raw_logprobs"
DEFAULTS = {"dtype": "bfloat16", "enable_prefix_caching": False, "enforce_eager": True}


@dataclass
class Engine:
    """The live engine of all ranks, and what it was built with."""

    llm: Any
    arguments: dict[str, Any]
    options: VllmOptions
    version: str
    world_size: int
    mechanism: str = ""
    memory: Memory | None = None

    def scheduler(self) -> dict[str, Any]:
        """Return what the live scheduler says; empty where it lies in another process, out of sight."""
        core = getattr(self.llm.llm_engine.engine_core, "engine_core", None)
        found = getattr(core, "scheduler", None)
        if found is None:
            return {}
        return {
            "prefix_caching": bool(found.kv_cache_manager.enable_caching),
            "max_num_batched_tokens": int(found.max_num_scheduled_tokens),
            "max_num_seqs": int(found.max_num_running_reqs),
            "chunked_prefill": bool(found.scheduler_config.enable_chunked_prefill),
        }

    def probe_cache(self) -> int:
        """Return how many tokens of a prompt of PROBED blocks a cache brings when it is prefilled a second time.

        0 where no cache is on, and also where no sequence is long enough to fill a block, so that none can act.
        """
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt

        block = int(self.llm.llm_engine.vllm_config.cache_config.block_size)
        length = min(int(self.arguments["max_model_len"]) - GENERATED, PROBED * block + 1)
        prompt = TokensPrompt(prompt_token_ids=[0] * length)
        params = SamplingParams(max_tokens=1, temperature=0.0, detokenize=False, ignore_eos=True)
        outputs = [self.llm.generate([prompt], params, use_tqdm=False)[0] for _ in range(2)]
        return sum(int(output.num_cached_tokens or 0) for output in outputs)

    def forget_prefixes(self) -> None:
        """Empty the prefix cache, so that what a score finds in it was filled in that score."""
        self.llm.reset_prefix_cache()

    def reload(self, checkpoint: str) -> None:
        """Put the checkpoint's weights in place of those that the engine has."""
        self.llm.collective_rpc("reload_weights", kwargs={"weights_path": checkpoint})
        self.forget_prefixes()

    def every_rank(self, method: str, *args: Any) -> list[Any]:
        """Call a method of WorkerExtension on every rank; return their answers by rank."""
        return list(self.llm.collective_rpc(method, args=args))


def build_engine(spec: WorkerSpec) -> Engine:
    """Return the engine. Raises ConfigError for runtime options, LaunchError for the rest."""
    options = parse_options(spec.options)
    version = check_version()
    _check_variables(options)
    if options.max_model_len is not None and spec.rollout and options.max_model_len < _longest(spec) + GENERATED:
        raise ConfigError(
            f"{options.max_model_len} positions do not hold the longest sequence ({_longest(spec)}) and one more",
            source=SOURCE,
            path="$.max_model_len",
            hint="Leave it out, or raise it.",
        )
    check_shape(Path(spec.checkpoint), spec.world_size)
    arguments = engine_arguments(spec, options)
    memory = plan_memory(spec, _lengths(spec), arguments, options) if spec.rollout else None
    if memory is not None and memory.gpu_memory_utilization is not None:
        arguments["gpu_memory_utilization"] = memory.gpu_memory_utilization
    try:
        from vllm import LLM

        llm = LLM(**arguments)
    except Exception as error:
        raise LaunchError(f"vLLM {version} did not build: {_short(error)}") from error
    return Engine(llm, arguments, options, version, spec.world_size, memory=memory)


def _check_variables(options: VllmOptions) -> None:
    """Raise ConfigError for a variable that this vLLM does not know: it would be set, and mean nothing."""
    from vllm import envs

    for name in options.environment:
        if name.startswith("VLLM_") and name not in envs.environment_variables and name not in READ_ELSEWHERE:
            raise ConfigError(
                f"this vLLM reads no variable {name!r}",
                source=SOURCE,
                path=f"$.environment.{name}",
                hint=did_you_mean(name, envs.environment_variables),
            )


def check_version() -> str:
    """Return vLLM's version; LaunchError when it is absent or none that this adapter knows."""
    try:
        import vllm
    except ImportError as error:
        raise LaunchError(
            f"vllm cannot be imported: {error}",
            hint="pip install 'xcfg-vllm[cpu]'.",
        ) from error
    version = str(vllm.__version__)
    major, minor, *_ = (version.split("+")[0] + ".0").split(".")
    if major != "0" or not minor.isdigit() or not VERSIONS[0] <= int(minor) < VERSIONS[1]:
        raise LaunchError(
            f"vLLM {version} is not known to xcfg-vllm",
            hint=f"It knows 0.{VERSIONS[0]} to 0.{VERSIONS[1] - 1}.",
        )
    return version


def check_shape(checkpoint: Path, ranks: int) -> None:
    """Raise LaunchError where a rank would hold a copy of another's key-value heads, which attestation cannot tell."""
    config = model_config(checkpoint)
    heads = config.get("num_key_value_heads") or config.get("num_attention_heads") or ranks
    if int(heads) % ranks:
        raise LaunchError(
            f"{heads} key-value heads do not divide over {ranks} tensor-parallel ranks",
            hint="Use a rollout.tensor_parallel_size that divides them.",
        )


def engine_arguments(spec: WorkerSpec, options: VllmOptions) -> dict[str, Any]:
    """Return the arguments of vllm.LLM for `spec`."""
    on_cuda = any(device.startswith("cuda") for device in spec.devices)
    arguments: dict[str, Any] = {
        "model": spec.checkpoint,
        "skip_tokenizer_init": True,
        "seed": spec.seed,
        "max_logprobs": 1,
        "disable_log_stats": True,
        "async_scheduling": options.async_scheduling,
        "worker_extension_cls": EXTENSION,
        **replay_arguments(spec.knobs, on_cuda),
        "max_model_len": options.max_model_len or _longest(spec) + GENERATED,
        **DEFAULTS,
    }
    if options.hf_overrides:
        arguments["hf_overrides"] = options.hf_overrides
    for path, name in DIRECT.items():
        if path in spec.knobs:
            arguments[name] = spec.knobs[path]
    if "rollout.all_reduce_backend" in spec.knobs:
        arguments["disable_custom_all_reduce"] = spec.knobs["rollout.all_reduce_backend"] == "library"
    if "rollout.custom_ops" in spec.knobs:
        arguments["compilation_config"] = {"custom_ops": [spec.knobs["rollout.custom_ops"]]}
    if not on_cuda:
        return arguments
    if options.kv_cache_gib is not None:
        # Then vLLM does not measure what is free, so that engines may start side by side.
        arguments["kv_cache_memory_bytes"] = options.kv_cache_gib << 30
    return {**arguments, "gpu_memory_utilization": options.gpu_memory_utilization}


def replay_arguments(knobs: Mapping[str, Any], on_cuda: bool) -> dict[str, Any]:
    """Return what an engine must be built with so that a replay can be forced.

    A logits processor keeps vLLM from its V2 runner, and leaves a processed log probability of 0; where either
    matters, vLLM's own replay does it, or the sampler is watched, for which nothing is asked of the engine.
    """
    if on_cuda or knobs.get("rollout.logprobs_mode", RAW) != RAW:
        from vllm.engine.arg_utils import EngineArgs

        native = on_cuda and knobs.get("rollout.model_runner") != "v1" and hasattr(EngineArgs, "enable_trace_replay")
        return {"enable_trace_replay": True} if native else {}
    from xcfg_vllm.processor import ForcedTokens

    return {"logits_processors": [ForcedTokens]}


def _longest(spec: WorkerSpec) -> int:
    if not spec.rollout:
        return model_limit(Path(spec.checkpoint)) - GENERATED
    return max(_lengths(spec))


def _lengths(spec: WorkerSpec) -> list[int]:
    offsets = read_rollout(Path(spec.rollout)).offsets
    return [int(item) for item in offsets[1:] - offsets[:-1]]


def model_limit(checkpoint: Path) -> int:
    """Return the positions for which the checkpoint was made (max_position_embeddings)."""
    config = model_config(checkpoint)
    return int(config.get("max_position_embeddings", 2048))


def _short(error: BaseException) -> str:
    """Return the kind and the beginning: of a refused configuration the first line only counts, the second says why."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
