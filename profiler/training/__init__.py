"""Models trained on records: the network, its energy term, tables of the fastest kernels."""
