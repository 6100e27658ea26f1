"""GEMM operators for xcfg."""
