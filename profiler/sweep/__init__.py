"""Sweeps: measure many kernels on many problems, on one GPU or several."""
