"""The runtime `cpu-smoke`: a model without parameters that exercises the framework and proves no numerics."""
