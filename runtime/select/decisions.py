"""Decisions: measured times of kernels on problems. Packs carry them, the selector prefers them to its model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gemmill.library.problem import GemmProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The measured time of one kernel on one problem."""

    problem: GemmProblem
    gpu: str
    """Name of the GPU it was measured on, as the driver reports it."""
    kernel: str
    """Kernel name."""
    us: float
    """Median time in microseconds."""
    final: bool = True
    """False for a brief measurement; those count only where a problem has no other."""


def read_decisions(paths: Iterable[Path]) -> list[Decision]:
    """The verified times in files of measurements; of a kernel measured again, the last that is not brief. Those of
    which nothing holds any more, as the kernel has changed since, are passed over, and those of bursts where a problem
    was measured under sustained load.

    Raises:
        RecordError: a file cannot be read, or a line is no record.
    """
    from gemmill.library.records import read_records  # a program that reads none starts faster

    decisions: dict[tuple[GemmProblem, str, str], Decision] = {}
    sustained: dict[tuple[GemmProblem, str], set[str]] = defaultdict(set)
    for path in paths:
        for record in read_records(path):
            if record.holds == "nothing":
                continue
            if record.verified and record.us is not None and record.digest:  # without a cubin it is cuBLAS
                key = record.problem, record.gpu, record.kernel
                kernels = sustained[key[:2]]
                if record.regime == "sustained":
                    kernels.add(record.kernel)
                elif record.kernel in kernels:
                    continue
                if record.stage != "final" and key in decisions and decisions[key].final:
                    continue
                decisions[key] = Decision(
                    problem=record.problem,
                    gpu=record.gpu,
                    kernel=record.kernel,
                    us=record.us,
                    final=record.stage == "final",
                )
    return [x for x in decisions.values() if not (alone := sustained[x.problem, x.gpu]) or x.kernel in alone]
