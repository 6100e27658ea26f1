"""Three lines in a training loop that keep what both sides computed: a frozen rollout with both log probabilities.

    from xcfg_dumps.capture import Capture

    capture = Capture("captures/step-17", checkpoint="models/actor", weight_version=17)
    capture.verl(batch).write()                # or .trl(inputs), .nemo_rl(train_data), .slime(rollout_data)

Field names were read in verl at 1dda039b (ray_trainer.py), TRL at f2cd5771 (grpo_trainer.py), NeMo-RL at 7ea279ab
(grpo.py) and slime at 624b824a (backends/megatron_utils/actor.py). Nothing of them is imported: tensors are
anything that numpy takes, or that has detach() and cpu().
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xcfg.dumps import collect_rows, frozen_rollout
from xcfg.errors import UsageError
from xcfg.identity.rollout import Rollout, write_rollout
from xcfg.schema.identity import CheckpointRef, SamplingRecord

from xcfg_dumps.nemo_rl import SKIPPED
from xcfg_dumps.samples import Sample, after, batches, refuse_filler


class Capture:
    """Collects samples and writes them once, to `folder`, which must not exist.

    checkpoint: folder or name of the weights that both sides hold. weight_version: their version. sampling: how
    the tokens were sampled (temperature, top_k, top_p, logprobs_mode); left out, the manifest says it is not known.
    """

    def __init__(
        self, folder: str | Path, *, checkpoint: str, weight_version: int = 0, sampling: Mapping[str, Any] | None = None
    ) -> None:
        self.folder = Path(folder)
        self.checkpoint = CheckpointRef(uri=checkpoint, weight_version=weight_version)
        unknown = {"extra": {"unattested": "the loop did not say how its tokens were sampled"}}
        self.sampling = SamplingRecord(**(unknown if sampling is None else dict(sampling)))
        self._samples: list[Sample] = []

    def add(
        self, sample_id: str, token_ids: Any, active: Any, rollout: Any, training: Any, *, response: int | None = None
    ) -> Capture:
        """Add one sequence of n tokens, prompt included; return self.

        token_ids: integers [n]. active: booleans [m], the tokens to compare. rollout, training: nats [m], of which
        only those under `active` count. m is n, or `response`, the length of the tail that they describe.
        """
        ids = _numpy(token_ids, f"{sample_id}: token_ids").astype(np.int64)
        length = len(ids) if response is None else response
        parts = {"active": active, "rollout": rollout, "training": training}
        arrays = {name: _numpy(values, f"{sample_id}: {name}") for name, values in parts.items()}
        wrong = {name: array.shape for name, array in arrays.items() if array.shape != (length,)}
        if wrong or not 0 < length <= len(ids):
            raise UsageError(
                f"sample {sample_id!r} has {len(ids)} tokens, of which {length} are scored, and "
                + ", ".join(f"{name} {shape}" for name, shape in wrong.items()),
                hint="Give one value per token, or per token of the response.",
            )
        chosen = np.concatenate([np.zeros(len(ids) - length, dtype=np.bool_), arrays["active"].astype(np.bool_)])
        scores = {side: after(_floating(arrays[side]), len(ids), sample_id) for side in ("rollout", "training")}
        for values in scores.values():
            values[~chosen] = np.nan
        self._samples.append(Sample(sample_id, ids, chosen, scores))
        return self

    def verl(self, batch: Any) -> Capture:
        """Add a DataProto of verl after old_log_probs was recomputed: prompts, responses and masks [B, …]."""
        data = getattr(batch, "batch", batch)
        both = [_field(data, name) for name in ("rollout_log_probs", "old_log_probs")]
        if _same(*both):
            raise UsageError(
                "old_log_probs is the very tensor rollout_log_probs",
                hint="verl's bypass mode copies it; without the trainer's own values there is nothing to compare.",
            )
        prompts, responses = (_numpy(_field(data, name), name) for name in ("prompts", "responses"))
        real = _numpy(_field(data, "attention_mask"), "attention_mask").astype(np.bool_)
        active = _numpy(_field(data, "response_mask"), "response_mask").astype(np.bool_)
        return self._padded(prompts, responses, real, active, *both)

    def trl(self, inputs: Mapping[str, Any]) -> Capture:
        """Add what GRPOTrainer._generate_and_score_completions returns, with use_vllm (else one side is missing)."""
        prompts, responses = (_numpy(_field(inputs, name), name) for name in ("prompt_ids", "completion_ids"))
        masks = [_numpy(_field(inputs, name), name) for name in ("prompt_mask", "completion_mask")]
        real = np.concatenate(masks, axis=1).astype(np.bool_)
        active = masks[1].astype(np.bool_)
        if inputs.get("tool_mask") is not None:
            active = active & _numpy(inputs["tool_mask"], "tool_mask").astype(np.bool_)
        both = [_field(inputs, name) for name in ("sampling_per_token_logps", "old_per_token_logps")]
        return self._padded(prompts, responses, real, active, *both)

    def nemo_rl(self, train_data: Mapping[str, Any]) -> Capture:
        """Add NeMo-RL's train_data after prev_logprobs: input_ids, masks and scores [B, S]; index 0 is a dummy."""
        names = ("input_ids", "token_mask", "generation_logprobs", "prev_logprobs")
        ids, mask, rollout, training = (_numpy(_field(train_data, name), name) for name in names)
        lengths = _numpy(_field(train_data, "input_lengths"), "input_lengths").tolist()
        weights = _numpy(_field(train_data, "sample_mask"), "sample_mask").astype(np.bool_)
        for row, length in enumerate(int(item) for item in lengths):
            active = mask[row, :length].astype(np.bool_) & weights[row]
            active[:1] = False
            refuse_filler(training[row, :length], active, f"prev_logprobs of row {row}", SKIPPED)
            self.add(self._name(), ids[row, :length], active, rollout[row, :length], training[row, :length])
        return self

    def slime(self, rollout_data: Mapping[str, Any]) -> Capture:
        """Add rollout_data of slime's Megatron actor, on a rank that holds whole responses (context parallel 1)."""
        names = ("tokens", "response_lengths", "loss_masks", "rollout_log_probs", "log_probs")
        columns = [_field(rollout_data, name) for name in names]
        indices = rollout_data.get("sample_indices")
        for row, (ids, length, mask, rollout, training) in enumerate(zip(*columns, strict=True)):
            name = self._name() if indices is None else str(int(indices[row]))
            self.add(name, ids, mask, rollout, training, response=int(length))
        return self

    def write(self) -> Rollout:
        """Write the frozen rollout and return it. Raises XcfgError: no sample, no active token, a missing score."""
        if not self._samples:
            raise UsageError("nothing was captured", hint="Call add, verl, trl, nemo_rl or slime first.")
        rows = collect_rows(batches(self._samples, "the capture"), source="the capture")
        rollout = frozen_rollout(rows, checkpoint=self.checkpoint, sampling=self.sampling)
        if self.folder.exists():
            raise UsageError(f"{str(self.folder)!r} exists", hint="A frozen rollout is never overwritten.")
        write_rollout(rollout, self.folder)
        return rollout

    def _name(self) -> str:
        return f"sample-{len(self._samples)}"

    def _padded(
        self,
        prompts: NDArray[Any],
        responses: NDArray[Any],
        real: NDArray[np.bool_],
        active: NDArray[np.bool_],
        rollout: Any,
        training: Any,
    ) -> Capture:
        """Add rows of prompts [B, P] and responses [B, R]; real [B, P + R] says what is no padding."""
        scores = [_numpy(values, side) for values, side in ((rollout, "rollout"), (training, "training"))]
        width = prompts.shape[1]
        expected = {"real": (len(prompts), width + responses.shape[1])}
        expected |= dict.fromkeys(("active", "rollout", "training"), responses.shape)
        shapes = {"real": real.shape, "active": active.shape, "rollout": scores[0].shape, "training": scores[1].shape}
        if shapes != expected:
            raise UsageError(f"the batch has shapes {shapes}, not {expected}")
        for row in range(len(prompts)):
            head, tail = real[row, :width], real[row, width:]
            ids = np.concatenate([prompts[row][head], responses[row][tail]])
            parts = [values[row][tail] for values in (active, *scores)]
            self.add(self._name(), ids, *parts, response=int(tail.sum()))
        return self


def _field(data: Any, name: str) -> Any:
    try:
        return data[name]
    except KeyError:
        there = ", ".join(_names(data))
        raise UsageError(
            f"the batch has no {name!r}; there are {there}", hint="Capture after it was computed."
        ) from None


def _names(data: Any) -> Iterator[str]:
    yield from sorted(map(str, data.keys()))


def _same(first: Any, second: Any) -> bool:
    if first is second:
        return True
    where = [getattr(item, "data_ptr", None) for item in (first, second)]
    return all(where) and where[0]() == where[1]()  # type: ignore[misc]


def _numpy(values: Any, where: str) -> NDArray[Any]:
    """Return a tensor, array or list as numpy; bfloat16, which numpy lacks, as float32."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = (values.float() if values.is_floating_point() and values.element_size() < 4 else values).numpy()
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise UsageError(f"{where} is {array.dtype}, not numbers")
    return array


def _floating(values: NDArray[Any]) -> NDArray[Any]:
    return values.copy() if values.dtype in (np.float32, np.float64) else values.astype(np.float32)
