"""Tensors of any library as operands of a GEMM."""
