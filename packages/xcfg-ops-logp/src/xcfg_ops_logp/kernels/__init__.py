"""Triton kernels of selected log probability; import a module of this room only where Triton is installed.

online      the arithmetic that all kernels share: fold a tile into (top, total, weighted), merge two of them
selected    logits [N, V] read once: log probability, log-sum-exp, entropy; gradient of the logits
linear      head product and log probability over chunks of the vocabulary, forward and backward
linear_tile the same in one kernel that never writes a logit
"""
