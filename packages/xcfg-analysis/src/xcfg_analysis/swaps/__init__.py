"""One-sided operator swaps: which side's kernel makes the gap, if any does."""
