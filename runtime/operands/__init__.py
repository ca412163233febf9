"""Reads tensors of any library as the operands of a GEMM."""
