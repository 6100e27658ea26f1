"""The rollout adapter of xcfg for vLLM."""
