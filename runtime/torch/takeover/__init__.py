"""Overrides of PyTorch's ``aten`` matmul operators, so that unchanged programs run on gemmill's kernels."""
