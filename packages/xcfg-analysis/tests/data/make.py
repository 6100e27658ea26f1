"""Score real tokens with one model under two attention kernels, and keep what faults are planted with.

    python make.py --checkpoint FOLDER --rollout examples/quickstart/rollout --output natural.safetensors

Two sets of sequences: `short` is the frozen rollout, `long` is sampled here from prompts of its own (seeded, so that
the same machine writes the same file). Both are scored in bfloat16 with eager and with sdpa attention, one sequence
at a time; their difference is the natural drift under every planted fault. All figures of a token come from its full
row of logits in float64, so that a planted fault is the exact transformation and no approximation of one:

    logp, logit, lse, entropy, rank      of the untouched row; nats; rank 1 is the most likely
    logp_t80, _t90, _t95                 under the temperatures 0.8, 0.9 and 0.95
    mass_p90, kept_p90, mass_k50, kept_k50   probability that top-p 0.9 and top-k 50 keep, and whether the token is in
    lse_zeros, lse_rows                  with 128 more vocabulary entries: logits 0, and rows drawn like embeddings
    logp_bf16                            log_softmax of the bfloat16 logits, returned in bfloat16
    logp_bf16_lse                        bfloat16 logit - bfloat16 logsumexp
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from xcfg.identity.rollout import read_rollout

SIDES = {"training": "eager", "rollout": "sdpa"}
TEMPERATURES = {"t80": 0.8, "t90": 0.9, "t95": 0.95}
PROMPTS = (
    "The old lighthouse keeper wrote in his diary that",
    "def merge_sorted(left, right):\n    ",
    "To bake sourdough bread, you first need to",
    "In 1869 Mendeleev arranged the elements so that",
    "Question: why does ice float on water?\nAnswer:",
    "Dear colleagues, thank you for the report. We",
    "SELECT name, COUNT(*) FROM visits",
    "The theorem follows by induction. Suppose that",
    "Once the rain had stopped, the children",
    "A good night's sleep depends on",
    "import numpy as np\n\ndef softmax(x):",
    "The market opened lower on Monday because",
)
PROMPTED = 6
LENGTH = 262
PADDING = 128


def load(checkpoint: Path, attention: str) -> torch.nn.Module:
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16, attn_implementation=attention)
    return model.eval()


def sample(checkpoint: Path) -> list[tuple[list[int], int]]:
    """Return (token ids, length of the prompt) per prompt, sampled at temperature 1 from the whole vocabulary.

    All prompts are cut to one length, so that one unpadded batch samples them all.
    """
    model, tokenizer = load(checkpoint, "sdpa"), AutoTokenizer.from_pretrained(checkpoint)
    generator = torch.Generator().manual_seed(11)
    ids = torch.tensor([tokenizer(prompt)["input_ids"][:PROMPTED] for prompt in PROMPTS])
    past, step = None, ids
    while ids.shape[1] < LENGTH:
        out = model(step, past_key_values=past, use_cache=True)
        past = out.past_key_values
        step = torch.multinomial(torch.softmax(out.logits[:, -1].double(), -1), 1, generator=generator)
        ids = torch.cat([ids, step], 1)
    return [(row, PROMPTED) for row in ids.tolist()]


def figures(
    logits: torch.Tensor, hidden: torch.Tensor, picked: torch.Tensor, pad: torch.Tensor
) -> dict[str, np.ndarray]:
    """Return the columns of N tokens. logits bfloat16 [N, V], hidden bfloat16 [N, H], picked int64 [N], pad [P, H]."""
    z = logits.double()
    lse = torch.logsumexp(z, -1)
    logp = z - lse[:, None]
    p = logp.exp()

    def at(values: torch.Tensor) -> torch.Tensor:
        return values.gather(1, picked[:, None])[:, 0]

    columns = {"logp": at(logp), "logit": at(z), "lse": lse, "entropy": -(p * logp).sum(-1)}
    columns["rank"] = (z > at(z)[:, None]).sum(-1) + 1
    for name, temperature in TEMPERATURES.items():
        columns[f"logp_{name}"] = at(torch.log_softmax(z / temperature, -1))
    ordered = p.sort(dim=-1, descending=True).values
    columns["mass_p90"] = (ordered * (ordered.cumsum(-1) - ordered < 0.9)).sum(-1)
    columns["mass_k50"] = ordered[:, :50].sum(-1)
    above = z > at(z)[:, None]
    columns["kept_p90"] = (p * above).sum(-1) < 0.9
    columns["kept_k50"] = columns["rank"] <= 50
    rows = torch.cat([z, torch.zeros(len(z), PADDING, dtype=torch.float64)], 1)
    columns["lse_zeros"] = torch.logsumexp(rows, -1)
    columns["lse_rows"] = torch.logsumexp(torch.cat([z, hidden.double() @ pad.double().T], 1), -1)
    columns["logp_bf16"] = at(torch.log_softmax(logits, -1))
    columns["logp_bf16_lse"] = at(logits) - torch.logsumexp(logits, -1)
    return {name: values.to(torch.float64).numpy() for name, values in columns.items()}


def score(model: torch.nn.Module, ids: list[int], first: int) -> dict[str, np.ndarray]:
    """Return the columns of the tokens from position `first` on."""
    out = model.model(torch.tensor([ids]), use_cache=False)
    hidden = out.last_hidden_state[0, first - 1 : -1]
    weight = model.lm_head.weight
    spread = float(weight.float().std())
    pad = torch.randn(PADDING, weight.shape[1], generator=torch.Generator().manual_seed(3)) * spread
    return figures(model.lm_head(hidden), hidden, torch.tensor(ids[first:]), pad.to(torch.bfloat16))


def scored(checkpoint: Path, of: str, sequences: list[tuple[list[int], int]]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the tensors of one set: (token ids, first scored position) per sequence."""
    lengths = [len(ids) - first for ids, first in sequences]
    yield f"{of}.sequence", np.repeat(np.arange(len(sequences), dtype=np.int16), lengths)
    yield f"{of}.position", np.concatenate([np.arange(at, len(ids), dtype=np.int16) for ids, at in sequences])
    yield f"{of}.token_id", np.concatenate([np.array(ids[at:], dtype=np.int32) for ids, at in sequences])
    for side, attention in SIDES.items():
        model = load(checkpoint, attention)
        parts = [score(model, ids, first) for ids, first in sequences]
        for column in parts[0]:
            dtype = bool if column.startswith("kept") else np.int32 if column == "rank" else np.float32
            yield f"{of}.{side}.{column}", np.concatenate([part[column] for part in parts]).astype(dtype)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("checkpoint", "rollout", "output"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    rollout = read_rollout(given.rollout)
    short = [rollout.span(index) for index in range(rollout.sequence_count)]
    sets = {
        "short": [(rollout.token_ids[span].tolist(), int(np.argmax(rollout.active[span]))) for span in short],
        "long": sample(given.checkpoint),
    }
    tensors = {
        name: values for of, sequences in sets.items() for name, values in scored(given.checkpoint, of, sequences)
    }
    provenance = {
        "model": rollout.manifest.checkpoint.uri,
        "checkpoint_digest": rollout.manifest.checkpoint.digest,
        "rollout_sha256": rollout.sha256,
        "sides": json.dumps(SIDES),
        "dtype": "bfloat16",
        "padding": str(PADDING),
        "torch": torch.__version__.partition("+")[0],
        "made_by": "packages/xcfg-analysis/tests/data/make.py",
    }
    save_file(tensors, given.output, metadata=provenance)


if __name__ == "__main__":
    main()
