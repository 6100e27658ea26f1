"""A stand-in for verl.utils.torch_functional: the signature of verl 0.9.1, none of its code.

verl's function returns what logprobs_from_logits_v2 does where flash-attn is missing: the dtype of the logits.
"""

import torch


def logprobs_from_logits(logits, labels, inplace_backward=True):
    """[..., V] and int64 [...] to [...], nats, in the dtype of `logits`."""
    flat = torch.nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none")
    return -flat.view(labels.shape)
