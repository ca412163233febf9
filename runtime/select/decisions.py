"""Decisions: measured times of kernels on problems. Packs carry them, and the selector prefers them to its model. The
log counts those that it cannot use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gemmill.library.arch import Gpu
from gemmill.library.config.names import formats, parse_name
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.errors import ConfigError
from gemmill.library.problem import GemmProblem
from gemmill.runtime.select.gpus import figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The measured time of one kernel on one problem."""

    problem: GemmProblem
    gpu: str
    """Name of the GPU of the measurement, from the driver."""
    kernel: str
    """Kernel name."""
    slices: int = 1
    """Slices of K of its launch."""
    us: float
    """Median time in microseconds."""
    final: bool = True
    """False for a brief measurement, which counts only where a problem has no other."""

    @property
    def sliced(self) -> SlicedKernel:
        """The kernel and its slices of K."""
        return SlicedKernel(self.kernel, self.slices)


def read_decisions(paths: Iterable[Path]) -> list[Decision]:
    """Return the verified times in files of measurements.

    Of several measurements of a kernel, the last that is not brief counts. Records that no longer hold, because the
    kernel has changed since, are skipped, and so are burst measurements of problems that were measured under sustained
    load.

    Raises:
        RecordError: a file cannot be read, or a line is not a record.
    """
    from gemmill.library.records import read_records  # programs without records start faster

    decisions: dict[tuple[GemmProblem, str, SlicedKernel], Decision] = {}
    sustained: dict[tuple[GemmProblem, str], set[SlicedKernel]] = defaultdict(set)
    for path in paths:
        for record in read_records(path):
            if record.holds == "nothing":
                continue
            if record.verified and record.us is not None and record.digest:  # a record without a cubin is of cuBLAS
                key = record.problem, record.gpu, record.sliced
                kernels = sustained[key[:2]]
                if record.regime == "sustained":
                    kernels.add(record.sliced)
                elif record.sliced in kernels:
                    continue
                if record.stage != "final" and key in decisions and decisions[key].final:
                    continue
                decisions[key] = Decision(
                    problem=record.problem,
                    gpu=record.gpu,
                    kernel=record.kernel,
                    slices=record.slices,
                    us=record.us,
                    final=record.stage == "final",
                )
    return [
        x
        for x in decisions.values()
        if not (sustained_kernels := sustained[x.problem, x.gpu]) or x.sliced in sustained_kernels
    ]


def usable(decisions: Sequence[Decision], gpu: Gpu) -> list[Decision]:
    """Return the measurements on a GPU of kernels that this version of gemmill supports; the log warns of the
    others."""
    on_gpu = [decision for decision in decisions if figures(decision.gpu).name == gpu.name]
    other_gpus = dict.fromkeys(decision.gpu for decision in decisions if figures(decision.gpu).name != gpu.name)
    _warn_of(len(decisions) - len(on_gpu), len(decisions), f"are from other GPUs than {gpu.name}", [*other_gpus])
    support = {name: _is_supported(name) for name in dict.fromkeys(decision.kernel for decision in on_gpu)}
    supported = [decision for decision in on_gpu if support[decision.kernel]]
    unknown = [name for name, is_supported in support.items() if not is_supported]
    _warn_of(
        len(on_gpu) - len(supported),
        len(decisions),
        "are of kernels that this version of gemmill does not support",
        unknown,
    )
    return supported


def warn_of_absent(decisions: Sequence[Decision], kernels: Collection[str], types: Collection[str]) -> None:
    """Warn in the log of measurements of kernels that are missing, among those for some types of A and B.

    Args:
        decisions: the :func:`usable` measurements.
        kernels: names of the available kernels for these types.
        types: names of the types.
    """
    of_types = [decision for decision in decisions if {*formats(decision.kernel)[1:]} <= {*types}]
    absent = [decision.kernel for decision in of_types if decision.kernel not in kernels]
    _warn_of(len(absent), len(decisions), "are of kernels that are not in this registry", absent)


def _is_supported(name: str) -> bool:
    try:
        parse_name(name)
    except ConfigError:
        return False
    return True


def _warn_of(count: int, total: int, what: str, names: Sequence[str]) -> None:
    if count:
        import logging  # programs without such warnings start faster

        logging.getLogger(__name__).warning(
            "ignoring %d of %d measurements: they %s, such as %r", count, total, what, names[0]
        )
