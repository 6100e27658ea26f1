"""A stand-in for slime.utils.ppo_utils: the signature of slime 624b824 (August 2026), none of its code."""

import torch


def calculate_log_probs_and_entropy(
    logits, tokens, tp_group, with_entropy=False, chunk_size=-1, log_prob_keep_mask=None, with_entropy_grad=True
):
    """float32 [T, V] and int64 [T] to (float32 [T, 1] in nats, None); no group, no mask and no entropy here."""
    assert tp_group is None and log_prob_keep_mask is None and not with_entropy
    return -torch.nn.functional.cross_entropy(logits.float(), tokens, reduction="none").unsqueeze(-1), None
