"""Measures kernels on a GPU: operands, verification, timing, telemetry, sweeps and their records."""
