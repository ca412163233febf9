"""Measurement records: the time of one kernel on one problem, with the conditions of the measurement.

The profiler appends records as JSON Lines; the selector and reports read them. Published records are packed into
Parquet (:mod:`gemmill.library.parquet`), which the same functions read.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from pydantic import AwareDatetime, Field, ValidationError, computed_field, model_validator

from gemmill.library.arithmetic import arithmetic_named
from gemmill.library.decompositions.decomposition import MAX_SLICES
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.errors import RecordError
from gemmill.library.file_kinds import wrong_kind
from gemmill.library.files import ending
from gemmill.library.frozen import Frozen
from gemmill.library.input.group_sizes import BALANCED, as_full, checked_sizes, flops_of
from gemmill.library.input.lines import MOST_NAMED, Faults, read_lines
from gemmill.library.problem import MAX_US, MIN_US, GemmProblem, Regime

METHOD = 4
"""Version of the method of measurement, including everything about a launch except its cubin. It increases when
operands, rotation, graphs, statistics or descriptors change; older records then no longer count as measured. (1:
candidates had the same neighbours in every round. 2: L2 fetched two lines even for rows that begin within sectors. 3:
replays followed each other without a pause, so that the power limit lowered the clock.)"""

_LATER_FIELDS: Mapping[str, str | None] = {"expected_rows": None, "rows": "stored", "symmetry": "general"}
"""Fields of problems that records from before them lack, and their defaults, which keys of records leave out."""
_DERIVED = ("key", "arithmetic", "tflops", "ratio", "joules")


class Measurement(Frozen):
    """The measurement of one kernel on one problem."""

    kernel: str
    """Kernel name, or the name of a baseline such as ``cublas`` or ``cublaslt-tuned``."""
    slices: int = Field(default=1, ge=1, le=MAX_SLICES)
    """Slices of K of the launch of a split-K kernel; 1 for other kernels."""
    digest: str
    """SHA-256 of the cubin in hex; empty for baselines, and if there is no cubin."""
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
    """Sizes of the problem's groups (library/input/group_sizes.py); empty without groups."""
    run: str = ""
    """The sweep of the record, if a file contains several. Times of one run are comparable."""
    chosen: tuple[str, ...] = Field(default=(), strict=False)
    """What would have picked this kernel for the problem before it was measured: ``selected`` (the selector); in older
    records also ``quick`` (its decision trees) and ``heuristics`` (nvMatmulHeuristics)."""
    holds: Literal["time", "rank", "nothing"] = "time"
    """What is still valid if kernels or launches have changed since: the time, the rank among the fastest kernels, or
    nothing. Models are trained on times; tables of the fastest kernels also use ranks."""
    stage: Literal["failed", "screen", "final"]
    """``screen``: timed briefly; ``final``: timed again, at length; ``failed``: not timed."""
    us: float | None = Field(default=None, ge=MIN_US, le=MAX_US)
    """Median time of one launch in microseconds; None if it failed."""
    low_us: float | None = Field(default=None, ge=MIN_US, le=MAX_US)
    """Lower quartile."""
    high_us: float | None = Field(default=None, ge=MIN_US, le=MAX_US)
    """Upper quartile."""
    samples: int = Field(default=0, ge=0)
    """Number of replays in the median and quartiles: one per round."""
    launches: int = Field(default=0, ge=0)
    """Launches per replay; a sample is their mean. 0 if it was not recorded."""
    regime: Regime = "burst"
    """The load of the GPU. For ``sustained``, clocks and power are those of this kernel alone."""
    baseline_us: float | None = Field(default=None, ge=MIN_US, le=MAX_US)
    """Median time of PyTorch's cuBLAS, interleaved in the same run; None if it was not timed."""
    verified: bool
    """Whether every element of D was within its bound of a float64 reference."""
    error: float | None = Field(default=None, allow_inf_nan=False)
    """Largest error in multiples of an element's bound; None if it was not verified or is not finite."""
    says: str = ""
    """Why the measurement failed."""
    sm_mhz: int | None = None
    """SM clock under load."""
    memory_mhz: int | None = None
    """Memory clock under load."""
    watts: float | None = Field(default=None, allow_inf_nan=False)
    """Power under load."""
    celsius: int | None = None
    """GPU temperature."""
    throttle: tuple[str, ...] = Field(default=(), strict=False)
    """Reasons for throttled clocks."""

    @computed_field  # type: ignore[prop-decorator]  # mypy does not support decorated properties
    @property
    def key(self) -> str:
        """The identity of the measurement; see :func:`measurement_key`."""
        return measurement_key(self.digest, self.problem, self.gpu, self.method, self.sizes, self.regime, self.slices)

    @property
    def sliced(self) -> SlicedKernel:
        """The kernel with its number of slices of K."""
        return SlicedKernel(self.kernel, self.slices)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def arithmetic(self) -> str | None:
        """The order of the sums, which determines the bits of D; see
        :func:`~gemmill.library.arithmetic.arithmetic_named`."""
        return arithmetic_named(self.sliced)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def tflops(self) -> float | None:
        """Rate in TFLOP/s."""
        return None if self.us is None else flops_of(self.problem, self.sizes) / self.us / 1e6

    @property
    def as_full(self) -> GemmProblem:
        """The problem; the capacity of masked groups is reduced to the average number of used rows."""
        return as_full(self.problem, self.sizes)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def ratio(self) -> float | None:
        """Speed relative to cuBLAS: above 1 is faster."""
        return None if self.us is None or self.baseline_us is None else self.baseline_us / self.us

    @computed_field  # type: ignore[prop-decorator]
    @property
    def joules(self) -> float | None:
        """Energy of a launch: power times time; None if candidates alternated and so shared clock and power."""
        if self.regime != "sustained" or self.us is None or self.watts is None:
            return None
        return self.watts * self.us / 1e6

    @model_validator(mode="before")
    @classmethod
    def _without_derived(cls, data: Any) -> Any:
        """Drop derived values, which are written for queries of the file and recomputed here. Convert former kernel
        names, except those of kernels that have been replaced, since their times do not apply to the replacement."""
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
    """SHA-256 in hex over cubin digest, problem, GPU, method, group sizes unless balanced, regime unless burst, and
    slices of K unless 1. A measurement with an equal key need not be repeated."""
    optional_parts: list[str | int] = [] if sizes in ("", BALANCED) else [sizes]
    optional_parts += [] if regime == "burst" else [regime]
    optional_parts += [] if slices == 1 else [slices]
    fields = asdict(problem)
    for name, default in _LATER_FIELDS.items():
        if fields[name] == default:
            del fields[name]
    text = json.dumps([digest, fields, gpu, method, *optional_parts], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _check_kind(path: Path) -> None:
    """Raise RecordError if a file that is no valid file of records is one of another kind."""
    if says := wrong_kind(path, "records"):
        raise RecordError(f"{path} {says}") from None


def read_records(path: Path) -> Iterator[Measurement]:
    """The measurements of a file or pipe, in order: JSON Lines, optionally ``.xz``, or ``.parquet``.

    A line that is not complete JSON, for example because its writer was killed, is skipped with a warning in the log.

    Raises:
        RecordError: the file cannot be read or is too large; or lines are not records. The latter is raised after all
            valid records; the error lists the first invalid lines and counts the others.
    """
    if ending(path) == ".parquet":
        from gemmill.library.parquet import read_parquet  # imported here, because it imports this module

        try:
            yield from read_parquet(path)
        except RecordError:
            _check_kind(path)
            raise
        return
    faults = Faults(path)
    torn = 0
    for number, line in read_lines(path):
        try:
            measurement = Measurement.model_validate_json(line)
            measurement.problem.check()
            checked_sizes(measurement.problem, measurement.sizes)
        except ValidationError as error:
            if number == 1:
                _check_kind(path)
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
