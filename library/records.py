"""Measurement records: one kernel on one problem, and what a figure needs to be believed.

The profiler appends them, as JSON Lines; the selector and reports read them. What is to be kept and published is packed
into Parquet (:mod:`gemmill.library.parquet`), which is read alike.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from pydantic import AwareDatetime, Field, ValidationError, computed_field, model_validator

from gemmill.library.decompositions.decomposition import MAX_SLICES
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.frozen import Frozen
from gemmill.library.input.group_sizes import BALANCED, as_full, checked_sizes, flops_of
from gemmill.library.input.lines import MOST_NAMED, Faults, read_lines
from gemmill.library.problem import MAX_US, MIN_US, GemmProblem, Regime

METHOD = 3
"""Version of how times are taken, and of what a launch is besides its cubin. A change of operands, rotation, graphs,
statistics or descriptors raises it, and older records no longer count as measured. (1: candidates had the same
neighbours in every round. 2: L2 fetched two lines also of rows that begin within sectors.)"""

_DERIVED = ("key", "tflops", "ratio", "joules")


class Measurement(Frozen):
    """What became of one kernel on one problem."""

    kernel: str
    """Kernel name, or that of a baseline, as ``cublas`` or ``cublaslt-tuned``."""
    slices: int = Field(default=1, ge=1, le=MAX_SLICES)
    """Slices of K of the launch of a split-K kernel; 1 of others. Names had the number in the past."""
    digest: str
    """SHA-256 of the cubin in hex; empty for baselines, and where there is no cubin."""
    problem: GemmProblem
    gpu: str
    """Name of the GPU as the driver reports it."""
    driver: str
    """Version of the driver."""
    cuda: str
    """CUDA version of PyTorch and its cuBLAS."""
    torch: str
    """Version of PyTorch."""
    gemmill: str
    """Version of gemmill."""
    commit: str
    """Commit of gemmill's sources; empty outside a repository."""
    method: int = METHOD
    """:data:`METHOD` when it was measured."""
    time: AwareDatetime = Field(strict=False)
    """When it was measured."""
    sizes: str = ""
    """Sizes of the problem's groups (library/input/group_sizes.py); empty where it has none."""
    run: str = ""
    """Which sweep it is of, where a file holds several: times of one run compare."""
    chosen: tuple[str, ...] = Field(default=(), strict=False)
    """What would have taken this kernel for the problem before it was measured: ``selected``, the selector; in the past
    also ``quick``, its decision trees, and ``heuristics``, nvMatmulHeuristics."""
    holds: Literal["time", "rank", "nothing"] = "time"
    """What still holds of it where kernels or launches have changed since: its time, its rank among the fastest, or
    nothing. Models are trained on times, tables of the fastest kernels on ranks as well."""
    stage: Literal["failed", "screen", "final"]
    """``screen``: timed briefly; ``final``: timed again, at length; ``failed``: not timed."""
    us: float | None = Field(default=None, ge=MIN_US, le=MAX_US)
    """Median time of one launch in microseconds; None where it failed."""
    low_us: float | None = Field(default=None, ge=MIN_US, le=MAX_US)
    """Lower quartile."""
    high_us: float | None = Field(default=None, ge=MIN_US, le=MAX_US)
    """Upper quartile."""
    samples: int = Field(default=0, ge=0)
    """Replays that median and quartiles are of: one in each round, so many rounds."""
    launches: int = Field(default=0, ge=0)
    """Launches in a replay, of which a sample is the mean; 0 where that was not noted."""
    regime: Regime = "burst"
    """How the GPU was kept at work; clocks and power are this kernel's own where it is ``sustained``."""
    baseline_us: float | None = Field(default=None, ge=MIN_US, le=MAX_US)
    """Median time of PyTorch's cuBLAS, interleaved in the same run; None where it was not timed."""
    verified: bool
    """Whether every element of D was within its bound of a float64 reference."""
    error: float | None = Field(default=None, allow_inf_nan=False)
    """Largest error in multiples of an element's bound; None where it was not verified, or not finite."""
    says: str = ""
    """Why it failed."""
    sm_mhz: int | None = None
    """SM clock under load."""
    memory_mhz: int | None = None
    """Memory clock under load."""
    watts: float | None = Field(default=None, allow_inf_nan=False)
    """Power under load."""
    celsius: int | None = None
    """GPU temperature."""
    throttle: tuple[str, ...] = Field(default=(), strict=False)
    """Reasons for which the clocks were held down."""

    @computed_field  # type: ignore[prop-decorator]  # mypy knows no decorated properties
    @property
    def key(self) -> str:
        """What makes a measurement the same measurement: :func:`measurement_key`."""
        return measurement_key(self.digest, self.problem, self.gpu, self.method, self.sizes, self.regime, self.slices)

    @property
    def sliced(self) -> SlicedKernel:
        """The kernel and the slices of K that it was measured in."""
        return SlicedKernel(self.kernel, self.slices)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def tflops(self) -> float | None:
        """Rate in TFLOP/s."""
        return None if self.us is None else flops_of(self.problem, self.sizes) / self.us / 1e6

    @property
    def as_full(self) -> GemmProblem:
        """The problem, of masked groups only as many rows as are used on average."""
        return as_full(self.problem, self.sizes)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def ratio(self) -> float | None:
        """Speed relative to cuBLAS: above 1 is faster."""
        return None if self.us is None or self.baseline_us is None else self.baseline_us / self.us

    @computed_field  # type: ignore[prop-decorator]
    @property
    def joules(self) -> float | None:
        """Energy of a launch: watts by its time; None where candidates shared a clock."""
        if self.regime != "sustained" or self.us is None or self.watts is None:
            return None
        return self.watts * self.us / 1e6

    @model_validator(mode="before")
    @classmethod
    def _without_derived(cls, data: Any) -> Any:
        """Derived values are written for those who query the file, and computed anew when it is read. A
        kernel has its present name, unless another has replaced it: times of that one are none of the other."""
        if not isinstance(data, dict):
            return data
        data = {name: data[name] for name in data if name not in _DERIVED}
        if "slices" not in data and isinstance(kernel := data.get("kernel"), str):
            data["kernel"], data["slices"] = SlicedKernel.recorded(kernel)
        return data


def measurement_key(
    digest: str,
    problem: GemmProblem,
    gpu: str,
    method: int = METHOD,
    sizes: str = "",
    regime: Regime = "burst",
    slices: int = 1,
) -> str:
    """SHA-256 in hex over cubin digest, problem, GPU, method, sizes of groups that are not balanced, a regime other
    than bursts, and slices of K if there are several: nothing else makes a kernel worth measuring again."""
    others: list[str | int] = [] if sizes in ("", BALANCED) else [sizes]
    others += [] if regime == "burst" else [regime]
    others += [] if slices == 1 else [slices]
    fields = asdict(problem)
    if problem.expected_rows is None:
        del fields["expected_rows"]  # as it was before there were any
    text = json.dumps([digest, fields, gpu, method, *others], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def read_records(path: Path) -> Iterator[Measurement]:
    """The measurements of a file or a pipe, in its order: JSON Lines, ``.xz`` or not, or ``.parquet``.

    A line that is cut short, as a killed writer leaves it, or no JSON otherwise is skipped, with a word in the log.

    Raises:
        RecordError: the file cannot be read, is larger than can be meant, or lines are no records: the first of them
            are named, and the others counted, when the sound ones have been yielded.
    """
    if path.suffix == ".parquet":
        from gemmill.library.parquet import read_parquet  # which knows what a measurement is

        yield from read_parquet(path)
        return
    faults = Faults(path)
    torn = 0
    for number, line in read_lines(path):
        try:
            measurement = Measurement.model_validate_json(line)
            measurement.problem.check()
            checked_sizes(measurement.problem, measurement.sizes)
        except ValidationError as error:
            fault = error.errors(include_url=False, include_input=False)[0]
            if fault["type"] == "json_invalid" and line.startswith(b"{"):
                torn += 1
                if torn <= MOST_NAMED:
                    logging.getLogger(__name__).warning("%s:%d: skipped an unfinished or damaged record", path, number)
            else:
                field = ".".join(map(str, fault["loc"])) or "record"
                faults.add(f"{path}:{number}:1: {field:.80}: {fault['msg']:.300}")
        except ValueError as error:
            faults.add(f"{path}:{number}:1: problem: {error}")
        else:
            yield measurement
    if torn > MOST_NAMED:
        logging.getLogger(__name__).warning("%s: skipped %d unfinished or damaged records in all", path, torn)
    faults.check()
