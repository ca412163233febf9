"""Many kernels on many problems, on one GPU or many."""
