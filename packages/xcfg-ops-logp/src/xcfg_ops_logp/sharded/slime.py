"""The formula of slime's vocab-parallel log probability, with the library's own sums and all-reduce.

Source of the formula: slime/utils/ppo_utils.py of THUDM/slime, commit 06787cf5. Its compute_log_probs calls
Megatron-core's fused cross-entropy: (x[s] - m) - log(sum of exp(x - m)), the shifted selected logit and the sum in one
all-reduce. Its entropy is m + log(sum) - sum of softmax(x) x. This is that arithmetic in eager torch; slime's own runs
through torch.compile, which may round otherwise.
"""

from __future__ import annotations

import torch

from xcfg_ops_logp.sharded.base import VocabParallel


class Slime(VocabParallel):
    """The backend `xcfg.slime_vocab_parallel_logp`; chunk_rows is what slime calls its chunk size."""

    def _chunk(
        self, local: torch.Tensor, selected: torch.Tensor, *, entropy: bool
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return logprob, top, log_total and mean gap of a few rows, each [n]."""
        top = self.top(local)
        shifted = local - top[:, None]
        inside, mine = self.owned(shifted, selected)
        terms = shifted.exp_()
        both = torch.cat((torch.where(inside, mine, torch.zeros_like(mine)), terms.sum(dim=-1)))
        picked, total = self.ranks.add(both).chunk(2)
        gap = torch.zeros_like(top)
        if entropy:
            softmax = terms.div_(total[:, None])
            gap = top - self.ranks.add(local.mul_(softmax).masked_fill_(softmax == 0, 0).sum(dim=-1))
        return picked - total.log(), top, total.log(), gap
