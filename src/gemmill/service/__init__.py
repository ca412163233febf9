"""The kernel service: a server that compiles, stores, selects and distributes kernels for a fleet."""
