"""Measure kernels on a GPU: operands, verification, timing, telemetry, sweeps, records, reports and training."""
