"""Three lines in a training loop that keep what both sides computed: a frozen rollout with both log probabilities.

    from xcfg_dumps.capture import Capture

    capture = Capture("captures/step-17", checkpoint="models/actor", weight_version=17)
    capture.verl(batch).write()                # or .trl(inputs), .nemo_rl(train_data), .slime(rollout_data)

Field names were read in verl at 1dda039b (ray_trainer.py, agent_loop.py) and 0.9.1, TRL at f2cd5771 and 1.13.0
(grpo_trainer.py), NeMo-RL at 7ea279ab (grpo.py) and slime at 624b824a (actor.py, ray/rollout.py). Nothing of them is
imported: tensors are anything that numpy takes, or that has detach() and cpu(). Shapes below: B samples of a batch, P
tokens of a padded prompt, R of a padded response, S of both, n of one sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xcfg.dumps import collect_rows, frozen_rollout
from xcfg.errors import UsageError
from xcfg.identity.rollout import Rollout, write_rollout
from xcfg.schema.codec import convert
from xcfg.schema.identity import CheckpointRef, SamplingRecord

from xcfg_dumps.fields import field, integers, mask, refuse_same, refuse_zeros, rows, scores, versions, whole
from xcfg_dumps.nemo_rl import SKIPPED
from xcfg_dumps.samples import Sample, after, batches

SAME = "Capture what the engine returned and what the trainer computed; one of them was used for both."
ZERO = {
    "rollout": "Have the engine return log probabilities of the sampled tokens, and pass those.",
    "training": "Score the tokens with the trainer before the update, and pass that.",
}
VERL_SAME = "verl's bypass mode copies it; without the trainer's own values there is nothing to compare."
VERL_VERSION = "Select rows of one version before the capture: batch[versions == N]; verl's step s holds version s - 1."
TRL_MISSING = (
    "TRL computes old_per_token_logps with use_vllm and vllm_importance_sampling_correction, or where "
    "gradient_accumulation_steps is no multiple of steps_per_generation * num_iterations; sampling_per_token_logps "
    "comes from vLLM or a rollout_func."
)
SLIME_MISSING = (
    "slime computes log_probs only where it cannot reuse those of the training forward (with a KL coefficient, say, or "
    "several steps per rollout); the file of --save-debug-train-data always has them."
)
SLIME_SLICED = (
    "slime leaves each context-parallel rank its slice of both. Capture with context parallel size 1, or compare the "
    "file of --save-debug-train-data, for which slime gathers them."
)


class Capture:
    """Collects samples and writes them once, to `folder`, which must not exist. A batch is added whole or not at all.

    checkpoint: folder or name of the weights that both sides hold. weight_version: their version, an integer from 0;
    left out, it is the one that the batch names, or 0. sampling: how the tokens were sampled, by the names of
    SamplingRecord (temperature, top_k, top_p, logprobs_mode, …); left out, the manifest says it is not known. Every
    method raises UsageError, which names the field: one that is missing, that is no array of numbers of its shape,
    that is the very tensor of the other side, or that holds 0 on all of 32 active tokens or more.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        checkpoint: str,
        weight_version: int | None = None,
        sampling: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder = Path(folder)
        self.checkpoint = checkpoint
        self.weight_version = None if weight_version is None else whole(weight_version, "weight_version")
        self._declared = weight_version is not None
        self._named: bool | None = None
        self.sampling = _sampling(sampling)
        self._samples: list[Sample] = []

    def add(
        self, sample_id: str, token_ids: Any, active: Any, rollout: Any, training: Any, *, response: int | None = None
    ) -> Capture:
        """Add one sequence of n tokens, prompt included; return self.

        token_ids: integers [n]. active: booleans [m], the tokens to compare. rollout, training: log probabilities in
        nats, floating [m], of which only those under `active` count. m is n, or `response`, the length of the tail
        that they describe. Raises UsageError.
        """
        sides = {f"{sample_id}: rollout": rollout, f"{sample_id}: training": training}
        refuse_same(sides, SAME)
        ids = integers(token_ids, f"{sample_id}: token_ids")
        length = len(ids) if response is None else whole(response, f"{sample_id}: response")
        values = _by_side({name: scores(column, name) for name, column in sides.items()})
        sample = _sample(sample_id, ids, mask(active, f"{sample_id}: active"), values, length)
        return self._keep([sample], sides, ZERO)

    def verl(self, batch: Any) -> Capture:
        """Add a DataProto of verl (or its tensors) after old_log_probs was recomputed; return self.

        prompts: integers [B, P], padded left. responses [B, R], padded right. attention_mask [B, P + R].
        response_mask [B, R]: what the model sampled. rollout_log_probs, old_log_probs: nats [B, R]. min_global_steps
        and max_global_steps, where the batch has them: versions of the weights that sampled. Raises UsageError, also
        where these name several versions or another one than `weight_version`.
        """
        data = getattr(batch, "batch", batch)
        sides = {name: field(data, name) for name in ("rollout_log_probs", "old_log_probs")}
        refuse_same(sides, VERL_SAME)
        prompts, responses = (integers(field(data, name), name, 2) for name in ("prompts", "responses"))
        real = mask(field(data, "attention_mask"), "attention_mask", 2)
        active = mask(field(data, "response_mask"), "response_mask", 2)
        other = getattr(batch, "non_tensor_batch", {})
        named = {name: other[name] for name in ("min_global_steps", "max_global_steps") if other.get(name) is not None}
        version = self._attested(named, VERL_VERSION)
        self._refuse_mixed(bool(versions(named)))
        self._padded({"prompts": prompts, "responses": responses}, real, active, sides)
        self.weight_version, self._named = version, bool(versions(named))
        return self

    def trl(self, inputs: Mapping[str, Any]) -> Capture:
        """Add what GRPOTrainer._generate_and_score_completions returns, where both sides are in it; return self.

        prompt_ids: integers [B, P], padded left. completion_ids [B, R], padded right. prompt_mask, completion_mask:
        what is no padding. tool_mask [B, R], where there is one: what the model sampled. sampling_per_token_logps,
        old_per_token_logps: nats [B, R]. A completion that mask_truncated_completions masks has no active token.
        Raises UsageError.
        """
        names = ("sampling_per_token_logps", "old_per_token_logps")
        sides = {name: field(inputs, name, TRL_MISSING) for name in names}
        refuse_same(sides, SAME)
        ids = {name: integers(field(inputs, name), name, 2) for name in ("prompt_ids", "completion_ids")}
        masks = [mask(field(inputs, name), name, 2) for name in ("prompt_mask", "completion_mask")]
        active = masks[1]
        if inputs.get("tool_mask") is not None:
            active = _both(active, mask(inputs["tool_mask"], "tool_mask", 2), "completion_mask and tool_mask")
        if len(masks[0]) != len(masks[1]):
            raise UsageError(f"prompt_mask has {len(masks[0])} rows and completion_mask has {len(masks[1])}")
        return self._padded(ids, np.concatenate(masks, axis=1), active, sides)

    def nemo_rl(self, train_data: Mapping[str, Any]) -> Capture:
        """Add NeMo-RL's train_data after prev_logprobs was computed; return self.

        input_ids: integers [B, S], padded right. input_lengths: integers [B]. token_mask [B, S], sample_mask [B].
        generation_logprobs, prev_logprobs: nats [B, S], aligned to input_ids; index 0 is a dummy. Raises UsageError.
        """
        sides = {name: field(train_data, name) for name in ("generation_logprobs", "prev_logprobs")}
        refuse_same(sides, SAME)
        values = {name: scores(column, name, 2) for name, column in sides.items()}
        ids = integers(field(train_data, "input_ids"), "input_ids", 2)
        active = mask(field(train_data, "token_mask"), "token_mask", 2).copy()
        active[:, :1] = False
        lengths = integers(field(train_data, "input_lengths"), "input_lengths")
        weights = scores(field(train_data, "sample_mask"), "sample_mask")
        shapes = {"input_ids": ids.shape, "token_mask": active.shape, **{k: v.shape for k, v in values.items()}}
        _shapes(shapes, dict.fromkeys(shapes, ids.shape))
        rows({"input_ids": ids, "input_lengths": lengths, "sample_mask": weights})
        samples = []
        for row, length in enumerate(lengths.tolist()):
            if not 0 < length <= ids.shape[1]:
                raise UsageError(f"input_lengths of row {row} is {length}, and input_ids has {ids.shape[1]} columns")
            kept = {side: column[row, :length] for side, column in _by_side(values).items()}
            chosen = active[row, :length] & bool(weights[row])
            samples.append(_sample(self._name(row), ids[row, :length], chosen, kept, length))
        return self._keep(samples, sides, {**ZERO, "training": SKIPPED})

    def slime(self, rollout_data: Mapping[str, Any]) -> Capture:
        """Add rollout_data of slime's Megatron actor, on a rank that holds whole responses; return self.

        All are lists with one entry per sample. tokens: integers [n]. response_lengths: integers m. loss_masks [m].
        rollout_log_probs, log_probs: nats [m]. sample_indices, where there: integers, the names of the samples.
        Raises UsageError, also for the slices that context parallel leaves on a rank.
        """
        names = ("tokens", "response_lengths", "loss_masks", "rollout_log_probs", "log_probs")
        columns = {name: field(rollout_data, name, SLIME_MISSING) for name in names}
        sides = {name: columns[name] for name in names[3:]}
        indices = rollout_data.get("sample_indices")
        count = rows(columns if indices is None else {**columns, "sample_indices": indices})
        if indices is None or any(index is None for index in indices):
            ids = [self._name(row) for row in range(count)]
        else:
            ids = [str(whole(index, "sample_indices")) for index in indices]
        samples = [_slime_sample(columns, row, ids[row]) for row in range(count)]
        return self._keep(samples, sides, ZERO)

    def write(self) -> Rollout:
        """Write the frozen rollout and return it.

        Raises UsageError: no sample, a folder that exists, a side of zeros. Raises ArtifactError: no active token, a
        score that is missing or not finite where it counts, a sample that was added twice.
        """
        if not self._samples:
            raise UsageError("nothing was captured", hint="Call add, verl, trl, nemo_rl or slime first.")
        for side, hint in ZERO.items():
            refuse_zeros((sample.logp[side][sample.active] for sample in self._samples), f"the {side} side", hint)
        kept = collect_rows(batches(self._samples, "the capture"), source="the capture")
        checkpoint = CheckpointRef(uri=self.checkpoint, weight_version=self.weight_version or 0)
        rollout = frozen_rollout(kept, checkpoint=checkpoint, sampling=self.sampling)
        if self.folder.exists():
            raise UsageError(f"{str(self.folder)!r} exists", hint="A frozen rollout is never overwritten.")
        write_rollout(rollout, self.folder)
        return rollout

    def _name(self, row: int = 0) -> str:
        return f"sample-{len(self._samples) + row}"

    def _keep(self, samples: list[Sample], names: Iterable[str], hints: Mapping[str, str]) -> Capture:
        """Keep a batch; names: what its loop calls the rollout's side and the trainer's."""
        for (side, hint), name in zip(hints.items(), names, strict=True):
            refuse_zeros((sample.logp[side][sample.active] for sample in samples), name, hint)
        self._samples += samples
        return self

    def _attested(self, columns: Mapping[str, Any], hint: str) -> int | None:
        """Return the version that the batch names, or the one that is known where it names none."""
        found = versions(columns)
        wanted = set(found) | (set() if self.weight_version is None else {self.weight_version})
        if len(wanted) > 1 and found:
            shown = ", ".join(map(str, found[:8]))
            known = "" if self.weight_version is None else f"; the capture is of version {self.weight_version}"
            raise UsageError(f"{' and '.join(columns)} say that weight version {shown} sampled{known}", hint=hint)
        return found[0] if found else self.weight_version

    def _refuse_mixed(self, named: bool) -> None:
        """Raise UsageError where one batch names a version and another does not: the one would be taken for both."""
        if self._named is not None and named != self._named and not self._declared:
            raise UsageError(
                "one batch names the weight version that sampled it and another does not",
                hint="Give Capture the version (weight_version=...), or capture the two batches apart.",
            )

    def _padded(
        self,
        ids: Mapping[str, NDArray[np.int64]],
        real: NDArray[np.bool_],
        active: NDArray[np.bool_],
        sides: Mapping[str, Any],
    ) -> Capture:
        """Add rows of ids, prompts [B, P] and responses [B, R]; real [B, P + R] says what is no padding."""
        values = {name: scores(column, name, 2) for name, column in sides.items()}
        prompts, responses = ids.values()
        width = prompts.shape[1]
        shapes = {name: column.shape for name, column in (*ids.items(), *values.items())}
        shapes |= {"the mask of the response": active.shape, "the mask of both": real.shape}
        expected = dict.fromkeys(shapes, responses.shape)
        expected |= {
            next(iter(ids)): (len(responses), width),
            "the mask of both": (len(responses), width + responses.shape[1]),
        }
        _shapes(shapes, expected)
        samples = []
        for row in range(len(prompts)):
            head, tail = real[row, :width], real[row, width:]
            tokens = np.concatenate([prompts[row][head], responses[row][tail]])
            kept = {side: column[row][tail] for side, column in _by_side(values).items()}
            samples.append(_sample(self._name(row), tokens, active[row][tail], kept, int(tail.sum())))
        return self._keep(samples, sides, ZERO)


def _sample(
    sample_id: str, ids: NDArray[np.int64], active: NDArray[np.bool_], sides: Mapping[str, NDArray[Any]], length: int
) -> Sample:
    """Return one sequence; active and both sides describe its last `length` tokens. Raises UsageError."""
    parts = {"active": active, **sides}
    wrong = {name: array.shape for name, array in parts.items() if array.shape != (length,)}
    if wrong or not len(ids) or length > len(ids):
        raise UsageError(
            f"sample {sample_id!r} has {len(ids)} tokens, of which {length} are scored"
            + "".join(f", and {name} {shape}" for name, shape in wrong.items()),
            hint="Give one value per token, or per token of the response.",
        )
    chosen = np.concatenate([np.zeros(len(ids) - length, dtype=np.bool_), active])
    logp = {side: after(values, len(ids), sample_id) for side, values in sides.items()}
    for values in logp.values():
        values[~chosen] = np.nan
    return Sample(sample_id, ids, chosen, logp)


def _slime_sample(columns: Mapping[str, Any], row: int, sample_id: str) -> Sample:
    """Return sample `row` of slime's columns. Raises UsageError naming the column and the row."""
    cell = {name: column[row] for name, column in columns.items()}
    where = {name: f"{name} of sample {row}" for name in columns}
    sides = {name: cell[name] for name in ("rollout_log_probs", "log_probs")}
    refuse_same({where[name]: values for name, values in sides.items()}, SAME)
    length = whole(cell["response_lengths"], where["response_lengths"])
    values = {name: scores(column, where[name]) for name, column in sides.items()}
    if any(len(column) < length for column in values.values()):
        shown = " and ".join(f"{name} {len(column)}" for name, column in values.items())
        raise UsageError(
            f"sample {row} has a response of {length} tokens, but {shown} values, as under context parallel",
            hint=SLIME_SLICED,
        )
    active = mask(cell["loss_masks"], where["loss_masks"])
    return _sample(sample_id, integers(cell["tokens"], where["tokens"]), active, _by_side(values), length)


def _by_side(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return two columns, the rollout's first, by side."""
    return dict(zip(("rollout", "training"), columns.values(), strict=True))


def _both(first: NDArray[np.bool_], second: NDArray[np.bool_], names: str) -> NDArray[np.bool_]:
    if first.shape != second.shape:
        raise UsageError(f"{names} have shapes {first.shape} and {second.shape}")
    return first & second


def _shapes(shapes: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]]) -> None:
    wrong = {name: shape for name, shape in shapes.items() if shape != expected[name]}
    if wrong:
        shown = ", ".join(f"{name} {shape}, not {expected[name]}" for name, shape in wrong.items())
        raise UsageError(f"the batch has shapes that do not fit: {shown}")


def _sampling(given: Mapping[str, Any] | None) -> SamplingRecord:
    if given is None:
        return SamplingRecord(extra={"unattested": "the loop did not say how its tokens were sampled"})
    known = SamplingRecord.__struct_fields__
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise UsageError(
            f"sampling has no {', '.join(map(repr, unknown))}", hint=f"Known: {', '.join(known)}; else use extra."
        )
    return convert(dict(given), SamplingRecord, source="sampling")
