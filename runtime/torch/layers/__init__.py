"""Layers whose weights are stored as kernels take them, and models converted to them."""
