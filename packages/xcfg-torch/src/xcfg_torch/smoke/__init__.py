"""The runtime `cpu-smoke`: a synthetic model without parameters that exercises the framework and proves no numerics."""
