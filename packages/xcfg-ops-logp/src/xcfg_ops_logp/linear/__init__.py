"""Backends of `linear_selected_logprob`: head product and log probability in one, without the logits in memory.

Every backend is called (hidden [N, K], weight [V, K], selected int64 [N]) and returns float32 or float64 [N], nats. The
product is hidden @ weight^T, over the whole vocabulary and without a bias. Its drift is not that of `selected_logprob`
and is reported apart from it.
"""
