"""Products of eager PyTorch by our kernels, without a line changed: kernels of ``aten`` operators overridden."""
