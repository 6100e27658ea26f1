"""The logical problem: reading and writing frozen rollouts, and the digests by which both sides attest to it."""
