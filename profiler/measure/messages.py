"""The messages between a sweep and its measuring processes: machines, units of work, and results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gemmill.library.arch import DEFAULT_GPU
from gemmill.library.arithmetic import Arithmetic
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.problem import GemmProblem, Regime
from gemmill.library.version import __version__
from gemmill.profiler.baselines.baseline import BASELINES
from gemmill.profiler.measure.graph_timing import ROUNDS, Timing
from gemmill.profiler.measure.telemetry import Reading

Stage = Literal["failed", "screen", "final"]


@dataclass(frozen=True, slots=True)
class Options:
    """How candidates are timed."""

    screen_rounds: int = 4
    """Replays of each kernel's graph in the screening stage."""
    finalists: int | None = 8
    """Number of kernels that the final stage measures again, in addition to the baselines; None: all."""
    final_rounds: int = ROUNDS
    """Replays of each kernel's graph in the final stage."""
    seed: int = 0
    """Seed of the operands."""
    bits: bool = False
    """Whether D of a kernel must also have the bits of the oracle."""
    regime: Regime = "burst"
    """Timing of the final stage. ``burst``: interleaved short replays. ``sustained``: each candidate runs alone until
    the power limit determines its clock."""
    seconds: float = 0.4
    """Length of a candidate's turn in the regime ``sustained``; only its second half is timed."""
    turns: int = 3
    """Maximum number of turns of each candidate in the regime ``sustained``."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The GPU that is measured."""

    gpu: str
    """Name of the GPU as the driver reports it."""
    uuid: str
    driver: str
    """Version of the driver."""
    cuda: str
    """CUDA version of torch and its cuBLAS."""
    torch: str
    """Version of torch."""
    gemmill: str = __version__
    """Version of gemmill in the measuring process."""
    capability: tuple[int, int] = DEFAULT_GPU.capability
    """Compute capability."""
    absent: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Baselines that are not available on the machine, and why."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One problem and the kernels to compare on it."""

    problem: GemmProblem
    kernels: tuple[SlicedKernel, ...]
    """Kernels to measure; with a time limit, the most promising first."""
    pinned: tuple[SlicedKernel, ...] = ()
    """Kernels that are always finalists, even if they are slow in the screening stage."""
    seconds: float | None = None
    """Time limit for the unit; None: no limit."""
    artifacts: Mapping[str, bytes] = field(default_factory=dict, repr=False, hash=False)
    """The compiled kernels by name, as stored on disk. The sweep sends them, so that the measured binaries do not
    depend on the compilers and stores of the measuring machine."""
    baselines: tuple[str, ...] = tuple(BASELINES)
    """Names of :data:`~gemmill.profiler.baselines.baseline.BASELINES` to compare with."""
    sizes: str = ""
    """Sizes of the groups (library/input/group_sizes.py); empty without groups."""
    arithmetic: Arithmetic | None = None
    """The arithmetic of all kernels; None: any."""

    @property
    def candidates(self) -> tuple[SlicedKernel, ...]:
        """The kernels, then the baselines."""
        return (*self.kernels, *map(SlicedKernel, self.baselines))


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one kernel or baseline on a problem."""

    kernel: SlicedKernel
    """The kernel, or one of :data:`~gemmill.profiler.baselines.baseline.BASELINES`."""
    stage: Stage
    """``screen``: timed briefly; ``final``: timed thoroughly; ``failed``: not timed."""
    timing: Timing | None = None
    """None if it failed."""
    verified: bool = False
    """Whether every element of D was within its error bound."""
    error: float | None = None
    """Largest error, as a multiple of the element's bound; None if the result was not verified."""
    says: str = ""
    """Why it failed."""
    reading: Reading | None = None
    """The state of the GPU during this candidate's turns; None if candidates were interleaved."""

    @property
    def us(self) -> float:
        """Microseconds of a launch; 0 if it was not timed."""
        return self.timing.median if self.timing else 0.0


@dataclass(frozen=True, slots=True)
class Report:
    """All outcomes of a unit, and the state of the GPU during the measurement."""

    outcomes: tuple[Outcome, ...]
    reading: Reading | None
    """None if nothing was timed."""
    untried: int = 0
    """Number of kernels that were skipped because of the time limit."""


@dataclass(frozen=True, slots=True)
class Running:
    """Announces the kernel that runs next; None if no kernel runs."""

    kernel: SlicedKernel | None


@dataclass(frozen=True, slots=True)
class Refusal:
    """The worker cannot start, for example without GPU or PyTorch."""

    says: str


@dataclass(frozen=True, slots=True)
class Fault:
    """An error of the GPU or the host after which the process cannot continue."""

    says: str
