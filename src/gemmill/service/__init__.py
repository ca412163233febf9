"""The instantiation service: one command that compiles, keeps, selects and serves kernels for a fleet."""
