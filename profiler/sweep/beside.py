"""A few compiled kernels side by side on one problem, whoever wrote their source; nothing is kept."""

from __future__ import annotations

from collections.abc import Sequence

from gemmill.library.problem import GemmProblem
from gemmill.library.records import Measurement
from gemmill.profiler.analysis.records import source_commit
from gemmill.profiler.measure.messages import Options, Unit
from gemmill.profiler.sweep.measuring import OneGpu
from gemmill.profiler.sweep.sweep import measurements
from gemmill.runtime.storage.artifact import Artifact


def measured_beside(problem: GemmProblem, artifacts: Sequence[Artifact]) -> list[Measurement]:
    """Verify kernels against the float64 reference and time those that are right in the same rounds, on GPU 0.

    In a process of its own, as sweeps do: a kernel that faults or hangs is a measurement that says so.

    Raises:
        DeviceError: there is no GPU or no PyTorch.
    """
    unit = Unit(
        problem,
        tuple(artifact.config for artifact in artifacts if not artifact.is_edited),
        artifacts={artifact.name: artifact.to_bytes() for artifact in artifacts},
        baselines=(),
        edited=tuple(artifact.name for artifact in artifacts if artifact.is_edited),
    )
    digests = {artifact.name: artifact.digest for artifact in artifacts}
    with OneGpu() as gpu:
        machine = gpu.start(Options(finalists=None))
        [done] = gpu.measure(iter([unit]), {})
    return measurements(unit, done.report, digests, machine, source_commit(), {})
