"""Decisions: measured times of kernels on problems. Packs carry them, the selector prefers them to its model. Those
that it cannot use are logged, with counts."""

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
    """Name of the GPU it was measured on, as the driver reports it."""
    kernel: str
    """Kernel name."""
    slices: int = 1
    """Slices of K of its launch."""
    us: float
    """Median time in microseconds."""
    final: bool = True
    """False for a brief measurement; those count only where a problem has no other."""

    @property
    def sliced(self) -> SlicedKernel:
        """The kernel and its slices of K."""
        return SlicedKernel(self.kernel, self.slices)


def read_decisions(paths: Iterable[Path]) -> list[Decision]:
    """The verified times in files of measurements; of a kernel measured again, the last that is not brief. Those of
    which nothing holds any more, as the kernel has changed since, are passed over, and those of bursts where a problem
    was measured under sustained load.

    Raises:
        RecordError: a file cannot be read, or a line is no record.
    """
    from gemmill.library.records import read_records  # a program that reads none starts faster

    decisions: dict[tuple[GemmProblem, str, SlicedKernel], Decision] = {}
    sustained: dict[tuple[GemmProblem, str], set[SlicedKernel]] = defaultdict(set)
    for path in paths:
        for record in read_records(path):
            if record.holds == "nothing":
                continue
            if record.verified and record.us is not None and record.digest:  # without a cubin it is cuBLAS
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
    return [x for x in decisions.values() if not (alone := sustained[x.problem, x.gpu]) or x.sliced in alone]


def usable(decisions: Sequence[Decision], gpu: Gpu) -> list[Decision]:
    """The measurements of a GPU and of kernels that this version of gemmill knows; a warning in the log of others."""
    here = [decision for decision in decisions if figures(decision.gpu).name == gpu.name]
    others = dict.fromkeys(decision.gpu for decision in decisions if figures(decision.gpu).name != gpu.name)
    _warn_of(len(decisions) - len(here), len(decisions), f"were taken on other GPUs than {gpu.name}", [*others])
    known = {name: _is_known(name) for name in dict.fromkeys(decision.kernel for decision in here)}
    found = [decision for decision in here if known[decision.kernel]]
    unknown = [name for name, is_known in known.items() if not is_known]
    _warn_of(len(here) - len(found), len(decisions), "are of kernels unknown to this version of gemmill", unknown)
    return found


def warn_of_absent(decisions: Sequence[Decision], kernels: Collection[str], types: Collection[str]) -> None:
    """Warn in the log of those measurements of kernels for some types of A and B whose kernels are not at hand.

    Args:
        decisions: those that are :func:`usable`.
        kernels: names of the kernels that there are for these types.
        types: names of the types.
    """
    of_types = [decision for decision in decisions if {*formats(decision.kernel)[1:]} <= {*types}]
    absent = [decision.kernel for decision in of_types if decision.kernel not in kernels]
    _warn_of(len(absent), len(decisions), "are of kernels that are not among those to choose from", absent)


def _is_known(name: str) -> bool:
    try:
        parse_name(name)
    except ConfigError:
        return False
    return True


def _warn_of(count: int, total: int, what: str, names: Sequence[str]) -> None:
    if count:
        import logging  # a program that has nothing to warn of starts faster

        logging.getLogger(__name__).warning(
            "%d of %d measurements are not used: they %s, such as %r", count, total, what, names[0]
        )
