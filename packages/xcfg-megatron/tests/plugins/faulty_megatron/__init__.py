"""Megatron-core engines that break exactly one thing; every other line is the adapter's own."""
