"""The training adapter of xcfg for Megatron-core."""
