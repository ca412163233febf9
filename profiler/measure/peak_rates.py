"""Measure the peak rates of a GPU: tensor core throughput and memory bandwidth.

Power limits tensor cores first, and power depends on how many bits toggle. So the data is that of the profiler
(:func:`~gemmill.profiler.measure.operands.fill_random`), and the load lasts until the clocks are stable. Zeros or small
integers would give a peak that no real GEMM reaches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import AwareDatetime, Field, ValidationError

from gemmill.emitters.peak_rate import MEASURED_DTYPES, emit_peak_rate, peak_rate_config
from gemmill.library.dtypes import DTYPES, DTypeName
from gemmill.library.errors import RecordError
from gemmill.library.file_kinds import wrong_kind
from gemmill.library.files import read_given
from gemmill.library.frozen import Frozen
from gemmill.library.problem import GemmProblem
from gemmill.library.records import Measurement
from gemmill.library.version import __version__
from gemmill.profiler.analysis.appender import source_commit
from gemmill.profiler.analysis.figures import moved_bytes
from gemmill.profiler.measure.graph_timing import summarise
from gemmill.profiler.measure.operands import fill_random, torch, torch_dtype
from gemmill.profiler.measure.telemetry import Reading, Telemetry
from gemmill.profiler.measure.telemetry import summarise as summarise_readings
from gemmill.profiler.measure.worker import this_machine
from gemmill.runtime.launch.kernel import load
from gemmill.runtime.launch.parameters import ParameterBlock

_MAX_BYTES = 1 << 20
"""Maximum size of a file of peak rates."""
COPY = "copy"
"""Name of the memory bandwidth where other roofs have a dtype."""

WARM_WINDOWS = 25
"""Windows, half a second in all, in which clocks and power settle."""
WINDOWS = 50
"""Timed windows, a second in all."""
STEPS = 64
"""Stages of 128 bytes along K per tile: 4,096 elements of 16 bits."""
TILES = 500
"""Tiles of a CTA per window: 20 ms on an H200, of which the copy of the operands takes 10 us."""
COPY_BYTES = 1 << 30
"""Size of the copied buffer, much larger than any L2 cache."""
COPIES = 36
"""Copies per window: 20 ms on an H200."""
WINDOWS_AHEAD = 10
"""Windows queued before the host waits, so that the GPU stays busy while the host reads clocks and power."""
READ_EVERY = 10
"""Windows per reading of clocks and power."""
SEED = 0


class Rate(Frozen):
    """A sustained rate, in the unit of the containing field, and the state of the GPU during the measurement."""

    median: float = Field(gt=0, allow_inf_nan=False)
    """Median of all windows."""
    low: float = Field(gt=0, allow_inf_nan=False)
    """Lower quartile."""
    high: float = Field(gt=0, allow_inf_nan=False)
    """Upper quartile."""
    windows: int = Field(gt=0)
    """Number of timed windows."""
    sm_mhz: int
    """SM clock in MHz."""
    memory_mhz: int
    """Memory clock in MHz."""
    watts: float
    """Power in watts."""
    celsius: int
    """GPU temperature in degrees Celsius."""
    throttle: tuple[str, ...] = Field(default=(), strict=False)
    """Reasons for which the clocks were throttled."""


class Roof(NamedTuple):
    """The peak rate that limits a problem."""

    name: str
    """The dtype of the limiting WGMMAs, or :data:`COPY`."""
    us: float
    """Time of the problem, in microseconds, at that rate."""


class PeakRates(Frozen):
    """The peak rates of one GPU in one run."""

    gpu: str
    """Name of the GPU as the driver reports it."""
    driver: str
    """Version of the driver."""
    cuda: str
    """CUDA version of torch."""
    torch: str
    """Version of PyTorch."""
    gemmill: str
    """Version of gemmill."""
    commit: str
    """Commit of gemmill's sources; empty outside a repository."""
    time: AwareDatetime = Field(strict=False)
    """When the run began."""
    compute_tflops: dict[str, Rate]
    """TFLOP/s of WGMMA alone, by the type of A and B; only the measured types."""
    copy_tbps: Rate
    """TB/s of a copy from device memory to device memory; reads and writes both count."""

    def roof(self, problem: GemmProblem) -> Roof | None:
        """The rate that limits a problem; None if the rate of its type was not measured, or it does not use WGMMA.

        Assumes that each operand is moved once at the rate of a copy; a problem that mostly reads can be faster.
        """
        dtype = peak_rate_dtype(problem)
        if dtype is None or dtype not in self.compute_tflops:
            return None
        compute = Roof(dtype, problem.flops / self.compute_tflops[dtype].median / 1e6)
        memory = Roof(COPY, moved_bytes(problem) / self.copy_tbps.median / 1e6)
        return max(compute, memory, key=lambda roof: roof.us)

    def fraction(self, measurement: Measurement) -> float | None:
        """The measured rate relative to the limiting rate; None without a limiting rate or without a time."""
        roof = self.roof(measurement.as_full)
        return None if roof is None or measurement.us is None else roof.us / measurement.us


def peak_rate_dtype(problem: GemmProblem) -> DTypeName | None:
    """The type whose WGMMAs limit a problem; None for types without WGMMA (f32, f64).

    If A and B differ, it is the wider type, since the narrower one is upconverted before the MMA.
    """
    wider = max(problem.a_dtype, problem.b_dtype, key=lambda name: DTYPES[name].bits)
    compatible = DTYPES[wider].compatible or wider
    return compatible if compatible in MEASURED_DTYPES else None


class PeakRateLaunch:
    """A kernel that runs only WGMMAs of a type, on every SM of GPU 0.

    Args:
        dtype: one of :data:`~gemmill.emitters.peak_rate.MEASURED_DTYPES`.
        tiles: number of tiles that each CTA computes, one after the other.
        steps: number of stages per tile; they rotate over those in shared memory.
        fill: fills an operand.

    Raises:
        DeviceError: there is no GPU, or it has no WGMMA.
        ToolchainError, CompileError: the kernel cannot be compiled.
    """

    def __init__(self, dtype: DTypeName, tiles: int, steps: int, fill: Callable[[Any], None]) -> None:
        from gemmill.runtime.compile.compiler import Compiler  # only this class needs a toolchain

        config = peak_rate_config(dtype)
        kernel = load(0, Compiler().compile(emit_peak_rate(config), config))
        ctas = kernel.max_clusters  # one per SM, since a CTA uses all shared memory
        tile, spec = config.tile, kernel.spec

        def tensor(dtype: str, *shape: int) -> Any:
            return torch().empty(shape, dtype=torch_dtype(dtype), device="cuda:0")

        self.a = tensor(dtype, config.stages, tile.m, tile.k)
        """Stages of A: (stages, M, K)."""
        self.b = tensor(dtype, config.stages, tile.n, tile.k)
        """Stages of B: (stages, N, K)."""
        self.sums = tensor(config.accumulator, ctas, spec.threads)
        """Output of a launch: (CTAs, threads), the sum of each thread's part of the tile."""
        fill(self.a)
        fill(self.b)
        self._parameters = ParameterBlock(spec.params_bytes)
        for name in ("a", "b", "sums"):
            self._parameters.write(spec.offsets[name], "Q", getattr(self, name).data_ptr())
        self._parameters.write(spec.offsets["steps"], "i", steps)
        self._tiles_at = spec.offsets["tiles"]
        self._tile_flops = 2 * tile.m * tile.n * tile.k * steps * ctas
        self.repeat(tiles)
        self._prepared = kernel.prepare(ctas, self._parameters.arguments)

    def repeat(self, tiles: int) -> None:
        """Set the number of tiles per CTA, from the next launch on."""
        self._parameters.write(self._tiles_at, "i", tiles)
        self.flops = self._tile_flops * tiles
        """Floating point operations of a launch."""

    def __call__(self) -> None:
        """Launch on torch's current stream."""
        self._prepared.launch(torch().cuda.current_stream().cuda_stream)


def measure_peak_rates(
    dtypes: Sequence[DTypeName] = MEASURED_DTYPES, on_done: Callable[[], None] = lambda: None
) -> PeakRates:
    """Measure the peak rates of this machine's first GPU, 1.5 seconds each; ``on_done`` is called after each.

    Raises:
        DeviceError: there is no GPU, no torch, or the GPU has no WGMMA.
        ToolchainError, CompileError: a kernel cannot be compiled.
    """
    machine, telemetry = this_machine()
    began = datetime.now(UTC)
    generator = torch().Generator(device="cuda:0").manual_seed(SEED)
    # Compile all kernels first, so that the GPU does not cool down between measurements.
    launches = {
        dtype: PeakRateLaunch(dtype, TILES, STEPS, partial(fill_random, dtype=dtype, generator=generator))
        for dtype in dtypes
    }
    compute: dict[str, Rate] = {}
    for dtype, launch in launches.items():
        compute[dtype] = _sustained(launch, launch.flops / 1e12, telemetry)
        on_done()
    copied = _copy(telemetry)
    on_done()
    return PeakRates(
        gpu=machine.gpu,
        driver=machine.driver,
        cuda=machine.cuda,
        torch=machine.torch,
        gemmill=__version__,
        commit=source_commit(),
        time=began,
        compute_tflops=compute,
        copy_tbps=copied,
    )


def _copy(telemetry: Telemetry) -> Rate:
    """TB/s of torch's device-to-device copy."""
    source, target = (torch().empty(COPY_BYTES, dtype=torch().uint8, device="cuda:0") for _ in range(2))
    source.random_(0, 256)

    def copies() -> None:
        for _ in range(COPIES):
            target.copy_(source)

    return _sustained(copies, 2 * COPY_BYTES * COPIES / 1e12, telemetry)


def _sustained(window: Callable[[], None], work: float, telemetry: Telemetry) -> Rate:
    """The rate, in ``work`` per second, of windows that run one after the other without a pause."""
    ends = [torch().cuda.Event(enable_timing=True) for _ in range(WARM_WINDOWS + WINDOWS + 1)]
    readings: list[Reading] = []
    ends[0].record()
    for index, end in enumerate(ends[1:], 1):
        window()
        end.record()
        ends[max(0, index - WINDOWS_AHEAD)].synchronize()
        if index > WARM_WINDOWS and index % READ_EVERY == 0:
            readings.append(telemetry.read())
    ends[-1].synchronize()
    timed = ends[WARM_WINDOWS:]
    timing = summarise([start.elapsed_time(end) * 1e3 for start, end in pairwise(timed)])
    return Rate(
        median=work / timing.median * 1e6,
        low=work / timing.high * 1e6,
        high=work / timing.low * 1e6,
        windows=timing.samples,
        **asdict(summarise_readings(readings)),
    )


def read_peak_rates(path: Path) -> PeakRates:
    """Read a file of peak rates that ``gemmill roofline`` wrote.

    Raises:
        RecordError: the file cannot be read or is not valid.
    """
    try:
        return PeakRates.model_validate_json(read_given(path, _MAX_BYTES))
    except OSError as error:
        raise RecordError(f"{path}: cannot read the file: {error.strerror or error}") from None
    except ValidationError as error:
        if says := wrong_kind(path, "peak rates"):
            raise RecordError(f"{path} {says}") from None
        fault = error.errors(include_url=False)[0]
        field = ".".join(map(str, fault["loc"])) or "peak_rates"
        raise RecordError(f"{path}: {field}: {fault['msg']}; pass a file written by gemmill roofline -o FILE") from None
