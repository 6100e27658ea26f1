"""slime's log probabilities as an engine of `xcfg run`: its own function on the logits of a Hugging Face forward.

`slime.utils.ppo_utils.calculate_log_probs_and_entropy(logits, tokens, tp_group, with_entropy=False, chunk_size=-1)` is
what slime's Megatron loss calls on float32 logits [T, V / tp]; without a process group the vocabulary is whole. It
returns ([T, 1], entropy or None). Loading, batching and evidence are those of examples/external-trainer.
"""

import os
from pathlib import Path

import xcfg
from score import MyTrainer
from slime.utils.ppo_utils import calculate_log_probs_and_entropy


class SlimeTrainer(MyTrainer):
    def logprob(self, logits, ids, temperature):
        """As slime's get_log_probs_and_entropy does it: float32 logits, divided unless the temperature is 1."""
        logits, chain = logits.float(), ()
        if temperature != 1.0:
            logits = logits / temperature
            chain = (f"temperature:{temperature!r}",)
        values, _ = calculate_log_probs_and_entropy(logits, ids, None, with_entropy=False, chunk_size=-1)
        return values.squeeze(-1), chain


if __name__ == "__main__":
    raise SystemExit(xcfg.serve(SlimeTrainer(), Path(os.environ["XCFG_EXCHANGE"])))
