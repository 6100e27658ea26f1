"""A trainer of your own as an engine of `xcfg run`: it loads, batches and computes log probabilities itself.

What proves that a setting was honoured is read in evidence.py, from the live model and from what it was given.
Another function for log probabilities is a subclass: examples/external-verl and examples/external-slime.
"""

import os
from pathlib import Path

import numpy as np
import torch
import xcfg
from evidence import Evidence, dtype_name, rank_record, state_of, weights
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM
from xcfg.identity.attest import attest_sequence
from xcfg.schema.worker import BuildReport, ScoreReport

INPUTS = ("token_ids", "position_ids", "attention_mask")


class MyTrainer:
    def logprob(self, logits, ids, temperature):
        """What the trainer's loss calls, and what it did to the logits first: ([N] nats of `ids`, chain of transforms).

        logits: [N, V] in the dtype of the model. ids: int64 [N]. temperature: of the processed log probabilities that
        the rollout recorded, else 1. This trainer knows no temperature; `verl` and `slime` divide by it.
        """
        return -torch.nn.functional.cross_entropy(logits.float(), ids, reduction="none"), ()

    def build(self, spec, context):
        self.knobs, self.rank, self.device = spec.knobs, context.rank, context.device
        dtype, attention = self.knobs["training.compute_dtype"], self.knobs["training.attention_backend"]
        load = AutoModelForCausalLM.from_pretrained
        self.model = load(spec.checkpoint, dtype=getattr(torch, dtype), attn_implementation=attention)
        self.model.to(self.device).eval().requires_grad_(False)
        self.evidence = Evidence(self.model, self.rank)
        built = dtype_name(self.model)
        return BuildReport(rank=self.rank, world_size=1, compute_dtype=built, weights=weights(self.model))

    def score(self, request, rollout):
        knobs, before = {**self.knobs, **request.knobs}, state_of(self.model)
        size, side = knobs["batch.size"], knobs["batch.padding_side"]
        self.evidence.clear()
        logprob, attested, chains = torch.full((len(rollout.token_ids),), torch.nan), [], set()
        sampling = rollout.manifest.sampling
        temperature = sampling.temperature if sampling.logprobs_mode == "processed_logprobs" else 1.0
        order = np.arange(rollout.sequence_count)
        if request.shuffle_seed is not None:  # the control `shuffled`: the same sequences in other batches
            order = np.random.default_rng(request.shuffle_seed).permutation(order)
        for batch in np.split(order, range(size, len(order), size)):
            spans = [rollout.span(index) for index in batch]
            flat = ([torch.from_numpy(rollout.tensors[name][span]).long() for span in spans] for name in INPUTS)
            ids, positions, mask = (pad_sequence(rows, True, padding_side=side).to(self.device) for rows in flat)
            with torch.no_grad(), self.evidence.watching(mask):
                logits = self.model(ids, position_ids=positions, attention_mask=mask, use_cache=False).logits
            for row, (index, span) in enumerate(zip(batch, spans, strict=True)):
                length = span.stop - span.start
                first = ids.shape[1] - length if side == "left" else 0
                active = np.flatnonzero(rollout.active[span])
                chosen = torch.from_numpy(rollout.tensors["selected_token_ids"][span][active]).to(self.device)
                values, chain = self.logprob(logits[row, first + active - 1], chosen, temperature)
                logprob[span.start + active] = values.float().cpu()
                chains.add(chain)
                given = ids[row, first : first + length], positions[row, first : first + length], chosen
                attested.append(attest_sequence(int(index), *(tensor.cpu().numpy() for tensor in given)))
        after = state_of(self.model)
        report = ScoreReport(
            request_id=request.id,
            rank=self.rank,
            record=rank_record(self.rank, rollout, self.evidence),
            compute_dtype=self.evidence.compute_dtype,
            applications=self.evidence.applications(knobs),
            attestations=tuple(attested),
            transforms=chains.pop() if len(chains) == 1 else None,  # () are raw log probabilities
            fold_before=before.fold,
            fold_after=after.fold,
            state_unchanged=before == after,
        )
        return report, {"selected_logprob": logprob}


if __name__ == "__main__":
    raise SystemExit(xcfg.serve(MyTrainer(), Path(os.environ["XCFG_EXCHANGE"])))
