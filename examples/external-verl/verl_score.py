"""verl's log probabilities as an engine of `xcfg run`: its own function on the logits of a Hugging Face forward.

`verl.utils.torch_functional.logprobs_from_logits(logits, labels, inplace_backward=True)` is what verl's FSDP engine
calls. With flash-attn it runs that package's Triton kernel, which computes in float32; without it, in bfloat16, a
log_softmax whose result is bfloat16 too. Loading, batching and evidence are those of examples/external-trainer.
"""

import os
from pathlib import Path

import xcfg
from score import MyTrainer
from verl.utils import torch_functional


class VerlTrainer(MyTrainer):
    def logprob(self, logits, ids, temperature):
        """As verl's FSDP engine does it: divide by the temperature in the dtype of the logits, then the function."""
        chain = ()
        if temperature != 1.0:
            logits = logits / logits.new_tensor(temperature)  # in bfloat16 0.7 is 0.69921875
            chain = (f"temperature:{temperature!r}",)
        # verl trains on these logits and lets the kernel reuse their memory; nothing here runs backward.
        return torch_functional.logprobs_from_logits(logits=logits, labels=ids, inplace_backward=False), chain


if __name__ == "__main__":
    raise SystemExit(xcfg.serve(VerlTrainer(), Path(os.environ["XCFG_EXCHANGE"])))
