"""The plugin `dumps`: readers of the dumps that reinforcement learning stacks write."""

from __future__ import annotations

from xcfg.plugin import DumpReaderDescriptor, hookimpl

READERS = (
    ("frozen", "xcfg", "frozen:FrozenReader", (), "Frozen rollouts with recorded log probabilities."),
    ("nemo-rl", "NeMo-RL", "nemo_rl:NemoRlReader", (".jsonl",), "train_data_step*.jsonl of GRPO and PPO, both sides."),
    ("npz", "numpy", "npz:NpzReader", (".npz",), "Canonical columns, one array per column."),
    (
        "openai",
        "vLLM",
        "vllm_json:OpenAiReader",
        (".json", ".jsonl"),
        "Answers of an OpenAI server with token ids: completions, chat, batch files, streams; the rollout side.",
    ),
    ("parquet", "Arrow", "parquet:ParquetReader", (".parquet",), "Canonical columns; needs xcfg-dumps[parquet]."),
    ("prime-rl", "prime-rl", "prime_rl:PrimeRlReader", (".jsonl",), "token_exports/step_*/rank_*.jsonl, both sides."),
    ("slime-rollout", "slime, miles, vime", "slime:RolloutReader", (".pt",), "Rollout dumps, the rollout side."),
    ("slime-train", "slime, miles, vime", "slime:TrainReader", (".pt",), "Training dumps, one file or one per rank."),
    (
        "vllm",
        "vLLM",
        "vllm_json:RequestOutputReader",
        (".json", ".jsonl"),
        "RequestOutput objects as JSON; the rollout side.",
    ),
    ("refused-logprob-entries", "miles", "refused_layouts:LogprobEntries", (".json",), "run_megatron's rank_*.json."),
    ("refused-pickle", "verl", "refused:Pickle", (".dp", ".pkl"), "Recognises bare pickles and refuses them."),
    ("refused-straw", "vime, slime", "refused_layouts:StrawIndex", (".json",), "Indices of straw archives."),
    ("refused-text", "verl, TRL", "refused:TextOnly", (".jsonl",), "Recognises text without ids and refuses it."),
    ("refused-torch", "torch", "refused:OtherTorch", (".pt",), "Recognises other torch archives and says what is in."),
)
"""Name, framework, factory within this package, suffixes, what it reads."""


@hookimpl
def xcfg_dump_readers() -> tuple[DumpReaderDescriptor, ...]:
    """Return the readers of this package; those named `refused-…` recognise a file to say why it cannot be read."""
    return tuple(
        DumpReaderDescriptor(
            name=name, summary=summary, factory=f"xcfg_dumps.{factory}", suffixes=suffixes, framework=framework
        )
        for name, framework, factory, suffixes, summary in READERS
    )
