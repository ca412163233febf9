"""What a sweep and the processes that measure for it tell each other: a machine, a unit of work, what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gemmill.library.arch import DEFAULT_GPU
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.problem import GemmProblem, Regime
from gemmill.library.version import __version__
from gemmill.profiler.baselines.baseline import BASELINES
from gemmill.profiler.measure.graph_timing import ROUNDS, Timing
from gemmill.profiler.measure.telemetry import Reading

Stage = Literal["failed", "screen", "final"]


@dataclass(frozen=True, slots=True)
class Options:
    """How thoroughly to measure."""

    screen_rounds: int = 4
    """Replays of every kernel's graph in the first stage."""
    finalists: int | None = 8
    """Kernels that the last stage measures again, beside the baselines; None: all."""
    final_rounds: int = ROUNDS
    """Replays of each in the last stage."""
    seed: int = 0
    """Seed of the operands."""
    regime: Regime = "burst"
    """How the last stage keeps the GPU at work."""
    seconds: float = 0.4
    """Of a candidate's turn in the regime ``sustained``, whose second half counts."""
    turns: int = 3
    """Of each candidate in that regime, while it may be the fastest."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The GPU that is measured."""

    gpu: str
    """Name that the driver reports."""
    uuid: str
    driver: str
    """Version of the driver."""
    cuda: str
    """CUDA version of torch and its cuBLAS."""
    torch: str
    """Version of torch."""
    gemmill: str = __version__
    """Version of gemmill in the process that measures."""
    capability: tuple[int, int] = DEFAULT_GPU.capability
    """Compute capability."""
    absent: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Baselines that cannot be had there, and why."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One problem and the kernels to be measured on it, side by side."""

    problem: GemmProblem
    kernels: tuple[SlicedKernel, ...]
    """The likely best first, where time is limited."""
    pinned: tuple[SlicedKernel, ...] = ()
    """Kernels that are finalists however slow they look at first."""
    seconds: float | None = None
    """Time for all of it; None: as long as it takes."""
    artifacts: Mapping[str, bytes] = field(default_factory=dict, repr=False, hash=False)
    """The compiled kernels by name, in their form on disk: what is measured is what the sweep knows the digest of,
    whatever compilers and stores there are where it is measured."""
    baselines: tuple[str, ...] = tuple(BASELINES)
    """What they are compared with: names of :data:`~gemmill.profiler.baselines.baseline.BASELINES`."""
    sizes: str = ""
    """Sizes of its groups (library/input/group_sizes.py); empty where it has none."""

    @property
    def candidates(self) -> tuple[SlicedKernel, ...]:
        """The kernels, then the baselines."""
        return (*self.kernels, *map(SlicedKernel, self.baselines))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one kernel, or of a baseline, on a problem."""

    kernel: SlicedKernel
    """The kernel, or one of :data:`~gemmill.profiler.baselines.baseline.BASELINES`."""
    stage: Stage
    """``screen``: timed briefly; ``final``: timed again, at length; ``failed``: not timed."""
    timing: Timing | None = None
    """None where it failed."""
    verified: bool = False
    """Whether every element of D was within its bound."""
    error: float | None = None
    """Largest error in multiples of an element's bound; None where it was not verified."""
    says: str = ""
    """Why it failed."""
    reading: Reading | None = None
    """The GPU's state under this one alone; None where candidates shared one."""

    @property
    def us(self) -> float:
        """Microseconds of a launch; 0 where it was not timed."""
        return self.timing.median if self.timing else 0.0


@dataclass(frozen=True, slots=True)
class Report:
    """All outcomes of a unit, and the state of the GPU meanwhile."""

    outcomes: tuple[Outcome, ...]
    reading: Reading | None
    """None where nothing was timed."""
    untried: int = 0
    """Kernels for which there was no time."""


@dataclass(frozen=True, slots=True)
class Running:
    """Word of which kernel is about to run; None while none is."""

    kernel: SlicedKernel | None


@dataclass(frozen=True, slots=True)
class Refusal:
    """The worker cannot start: no GPU, no torch. Nothing can be measured."""

    says: str


@dataclass(frozen=True, slots=True)
class Fault:
    """The GPU or the host gave an error that this process cannot go on from."""

    says: str
