"""The figures of each problem in records: the fastest kernel, the baselines, and the loss of the selector's choice."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.dtypes import DTYPES
from gemmill.library.input.group_sizes import as_full
from gemmill.library.problem import GemmProblem
from gemmill.library.records import Measurement
from gemmill.profiler.baselines.baseline import BASELINES, THROUGH_TORCH
from gemmill.profiler.measure.operands import argument_bytes


class Run(NamedTuple):
    """The context in which times are comparable: one problem, GPU, commit, sweep and method of measurement."""

    problem: GemmProblem
    gpu: str
    commit: str
    sweep: str
    """``Measurement.run``; empty in the file of a single sweep."""
    regime: str
    method: int
    sizes: str = ""
    """Sizes of the problem's groups."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one run. Finalists and baselines were timed in the same rounds; other kernels only briefly."""

    run: Run
    finalists: Mapping[SlicedKernel, Measurement]
    """Kernels of the final stage."""
    screened: Mapping[SlicedKernel, Measurement]
    """Kernels that were only timed in the screening stage, in which they were slower."""
    failed: tuple[Measurement, ...]
    baselines: Mapping[str, Measurement]
    """Baselines that support the GEMM, by name."""

    @property
    def baseline(self) -> Measurement | None:
        """cuBLAS through PyTorch, which ratios refer to; None if it does not support the GEMM."""
        return next((self.baselines[name] for name in THROUGH_TORCH if name in self.baselines), None)

    @property
    def best(self) -> Measurement | None:
        """The fastest finalist."""
        return min(self.finalists.values(), key=_costs(self.finalists.values()), default=None)

    def over(self, kernel: Measurement | None, baseline: str) -> float | None:
        """Speed of a kernel relative to a baseline, above 1 if faster; None if either was not timed.

        Times are divided by cuBLAS's if it was timed, since two sweeps of one problem run at different clocks.
        """
        other = self.baselines.get(baseline)
        if kernel is None or kernel.us is None or other is None:
            return None
        cost = _costs([kernel, other])
        return cost(other) / cost(kernel)

    def reached(self, kernels: Sequence[SlicedKernel]) -> float | None:
        """Speed of the fastest of some kernels relative to the best: 1 if it is among them, None if none was timed.

        Screened kernels count only if no finalist is among the kernels, since their clocks were different.
        """
        measurements = [
            stage[kernel] for stage in (self.finalists, self.screened) for kernel in kernels if kernel in stage
        ]
        if self.best is None or not measurements:
            return None
        measurements = [m for m in measurements if m.stage == "final"] or measurements
        cost = _costs([self.best, *measurements])
        return cost(self.best) / min(map(cost, measurements))


def _costs(measurements: Iterable[Measurement]) -> Callable[[Measurement], float]:
    """The cost that measurements of one problem are ranked by: the time relative to cuBLAS in the same rounds if all
    measurements have it, since two sweeps run at different clocks; else the time."""
    return _over_cublas if all(m.ratio for m in measurements) else _us


def _over_cublas(measurement: Measurement) -> float:
    return 1 / measurement.ratio if measurement.ratio else math.inf


def _us(measurement: Measurement) -> float:
    return math.inf if measurement.us is None else measurement.us


def figures(measurements: Iterable[Measurement]) -> list[Figures]:
    """The figures of each run, in the order of the measurements. The last measurement of a kernel counts."""
    runs: dict[Run, dict[SlicedKernel, Measurement]] = {}
    for m in measurements:
        runs.setdefault(Run(m.problem, m.gpu, m.commit, m.run, m.regime, m.method, m.sizes), {})[m.sliced] = m
    result = []
    for run, measured in runs.items():
        kernels = {kernel: m for kernel, m in measured.items() if kernel.name not in BASELINES}
        timed = {kernel: m for kernel, m in kernels.items() if m.us is not None}
        result.append(
            Figures(
                run,
                {kernel: m for kernel, m in timed.items() if m.stage == "final"},
                {kernel: m for kernel, m in timed.items() if m.stage == "screen"},
                tuple(m for m in kernels.values() if m.stage == "failed"),
                {m.kernel: m for m in measured.values() if m.kernel in BASELINES and m.us is not None},
            )
        )
    return result


def formats(problem: GemmProblem, sizes: str = "") -> str:
    """The text of a problem without its extents, such as ``bf16 tn`` or ``e4m3 tn grouped=64 a_scale=1x128``, with the
    sizes of its groups."""
    return f"{str(problem).partition(' ')[2]} {sizes and f'sizes={sizes}'}".rstrip()


def moved_bytes(problem: GemmProblem) -> float:
    """Bytes of A, B, C, D and the epilogue's tensors, each moved once. Assumes groups of equal size, and full masked
    groups."""
    p = as_full(problem).typical()
    matrices = [(p.a_dtype, p.m * p.k), (p.b_dtype, p.k * p.n), (p.d_dtype, p.d_rows * p.d_columns)]
    if p.c_dtype is not None:
        matrices.append((p.c_dtype, p.d_rows * p.d_columns))
    return p.batch * sum(DTYPES[dtype].bits * count / 8 for dtype, count in matrices) + argument_bytes(problem)


def intensity(problem: GemmProblem) -> float:
    """Arithmetic intensity in FLOP per byte, with each operand moved once."""
    return problem.flops / moved_bytes(problem)


def geometric_mean(values: Iterable[float]) -> float | None:
    """The geometric mean; None without values."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else None
