"""Train models on records: the network, its energy term, and tables of the fastest kernels."""
