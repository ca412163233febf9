"""Slow paths: what a problem loses relative to the nearest problem for which there are fast kernels, and what to
change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from gemmill.library.config.model import GemmConfig
from gemmill.library.dtypes import DTYPES
from gemmill.library.input.problem_words import FIELDS, aligns
from gemmill.library.legality.quantities import TMA_ALIGN
from gemmill.library.problem import GemmProblem, is_mixed
from gemmill.runtime.select.cost.families import FAMILIES
from gemmill.runtime.select.kernels.faults import is_aligned

MUCH = 1.3
"""Least slowdown that is reported; less is within the error of the model."""
_ALIKE = 1.05
"""Changes that gain less than this factor are left out of the advice."""
_ANY = "any"

Kind = Literal["types", "layout", "alignment", "bits"]
Time = Callable[[GemmProblem, bool], float]
"""Predicted microseconds of a problem, with the required arithmetic or with any; infinity where no kernel supports
it."""


class Change(NamedTuple):
    """One change that would make a problem faster."""

    kind: Kind
    operand: str
    """``a``, ``b``, ``c`` or ``out``; empty for ``bits``."""
    to: str
    """A dtype, the extent to make contiguous, or an alignment in bytes."""


@dataclass(frozen=True, slots=True)
class SlowPath:
    """The slowdown of a problem, and the changes that avoid it."""

    factor: float
    """Predicted time relative to the time with the changes."""
    us: float
    """Predicted microseconds with the changes."""
    changes: tuple[Change, ...]

    @property
    def transposed(self) -> SlowPath:
        """The same for the transposed problem, with ``a`` and ``b`` exchanged."""
        names = {"a": "b", "b": "a"}
        return replace(self, changes=tuple(x._replace(operand=names.get(x.operand, x.operand)) for x in self.changes))

    @property
    def advice(self) -> str:
        """What to change."""
        ways: dict[tuple[Kind, str], list[str]] = {}
        for change in self.changes:
            ways.setdefault((change.kind, change.to), []).append(change.operand)
        return "; ".join(_WAYS[kind].format(" and ".join(names), to) for (kind, to), names in ways.items())

    def __str__(self) -> str:
        alternatives = " and ".join(dict.fromkeys(_INSTEAD[change.kind] for change in self.changes))
        return f"predicted {self.factor:.1f}x slower than {alternatives} ({self.us:.1f} us): {self.advice}"


_INSTEAD: dict[Kind, str] = {
    "types": "with equal dtypes",
    "layout": "with contiguous operands",
    "alignment": "with 16-byte alignment",
    "bits": "without bits",
}
_WAYS: dict[Kind, str] = {
    "types": "convert {} to {}, so that a and b have the same dtype",
    "layout": "make {} contiguous along {}",
    "alignment": "align {} to {} bytes (the address and every stride), for example by padding rows",
    "bits": "leave out bits",
}


def has_fast_formats(problem: GemmProblem, config: GemmConfig) -> bool:
    """Whether a kernel is of a fast family, TMA can move all operands of its problem and tensor cores can read them:
    16-bit operands with either major, others K-major."""
    formats = ((problem.a_dtype, problem.a_major), (problem.b_dtype, problem.b_major))
    moved = is_aligned(problem) and _ANY not in (problem.a_major, problem.b_major, problem.c_major, problem.d_major)
    is_read = all(major == "k" or DTYPES[dtype].bits == 16 for dtype, major in formats)
    return FAMILIES[config.family].is_preferred and moved and is_read


def fewest_changes(problem: GemmProblem, keeps_bits: bool, time: Time) -> SlowPath | None:
    """Return what a problem loses, and the fewest changes that avoid it; None where the loss is small or unknown.

    Args:
        problem: the problem, with all extents at least 1.
        keeps_bits: whether the caller required the arithmetic of its kernel.
        time: the model.
    """
    steps = [*_changes(problem, keeps_bits)]

    def us(without: int | None = None) -> float:
        modified, keeps = problem, keeps_bits
        for i, (change, fields) in enumerate(steps):
            if i != without:
                modified, keeps = modified.but(**fields), keeps and change.kind != "bits"
        return time(modified, keeps)

    now, best = time(problem, keeps_bits), us()
    if not steps or now <= MUCH * best:
        return None
    for i in reversed(range(len(steps))):
        if us(without=i) <= _ALIKE * best:
            del steps[i]
    best = us()
    return SlowPath(now / best, best, tuple(change for change, _ in steps))


def _changes(problem: GemmProblem, keeps_bits: bool) -> Iterator[tuple[Change, dict[str, Any]]]:
    """Yield changes towards what fast kernels support, with the fields that each sets; they are cumulative."""
    if keeps_bits:
        yield Change("bits", "", ""), {}
    a, b = problem.a_dtype, problem.b_dtype
    if a != b and not is_mixed(a, b):
        name, to = ("a", b) if DTYPES[a].bits < DTYPES[b].bits else ("b", a)
        yield Change("types", name, to), {f"{name}_dtype": to}
        problem = problem.but(**{f"{name}_dtype": to})
    for name in "abcd":
        if getattr(problem, f"{name}_dtype") is None:
            continue
        argument = "out" if name == "d" else name
        fast, major = "k" if name in "ab" else "n", getattr(problem, f"{name}_major")
        if major == _ANY or (major != fast and name in "ab"):
            packed = problem.but(**{f"{name}_major": fast})
            align = aligns({field: getattr(packed, field) for field in FIELDS})[f"{name}_align"]
            yield Change("layout", argument, fast.upper()), {f"{name}_major": fast, f"{name}_align": align}
            problem = packed.but(**{f"{name}_align": align})
        if getattr(problem, f"{name}_align") < TMA_ALIGN:
            yield Change("alignment", argument, str(TMA_ALIGN)), {f"{name}_align": TMA_ALIGN}
