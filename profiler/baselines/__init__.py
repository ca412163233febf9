"""Baselines that kernels are compared with: cuBLAS, cuBLASLt and Triton."""
