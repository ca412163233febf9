"""The peak rates of a GPU, measured: how fast its tensor cores multiply, and how fast its memory copies.

Tensor cores at work are bound by power before anything else, so by how many bits flip: the data is what the profiler
multiplies as well (:func:`~gemmill.profiler.measure.operands.fill_random`), and the load lasts until clocks have
settled. Zeros or small integers would give a peak that no real GEMM comes near.
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
"""Most bytes of a file of peak rates."""
COPY = "copy"
"""Stands where a dtype would, for the bandwidth of memory."""

WARM_WINDOWS = 25
"""Windows that only bring clocks and power to where they stay, half a second."""
WINDOWS = 50
"""Windows that are timed, a second."""
STEPS = 64
"""Stages of 128 bytes along K that a tile sums: 4,096 elements of 16 bits."""
TILES = 500
"""Tiles that a CTA computes in a window: 20 ms on an H200, of which copying the operands takes 10 us."""
COPY_BYTES = 1 << 30
"""Size of the buffer that is copied: many times any L2."""
COPIES = 36
"""Copies of a window, 20 ms on an H200."""
WINDOWS_AHEAD = 10
"""Windows that are queued before the host waits: the GPU works on while clocks and power are read."""
READ_EVERY = 10
"""Windows between two readings."""
SEED = 0


class Rate(Frozen):
    """A rate that a GPU sustains, in the unit of whoever holds it, and the GPU's state meanwhile."""

    median: float = Field(gt=0, allow_inf_nan=False)
    """Of all windows."""
    low: float = Field(gt=0, allow_inf_nan=False)
    """Lower quartile."""
    high: float = Field(gt=0, allow_inf_nan=False)
    """Upper quartile."""
    windows: int = Field(gt=0)
    """Windows that these are of."""
    sm_mhz: int
    """SM clock."""
    memory_mhz: int
    """Memory clock."""
    watts: float
    """Power."""
    celsius: int
    """GPU temperature."""
    throttle: tuple[str, ...] = Field(default=(), strict=False)
    """Reasons for which the clocks were held down."""


class Roof(NamedTuple):
    """What holds a problem back first."""

    name: str
    """The dtype whose WGMMAs do, or :data:`COPY`."""
    us: float
    """Microseconds that the problem takes at that rate."""


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
    """TFLOP/s of WGMMA alone, by the type of A and B; only of those that were measured."""
    copy_tbps: Rate
    """TB/s of a copy from memory to memory, read and written bytes both counted."""

    def roof(self, problem: GemmProblem) -> Roof | None:
        """The roof that a problem meets first; None where that of its type was not measured, or it has none.

        Each operand is moved once at the rate of a copy: a problem that reads far more than it writes can be faster.
        """
        dtype = peak_rate_dtype(problem)
        if dtype is None or dtype not in self.compute_tflops:
            return None
        compute = Roof(dtype, problem.flops / self.compute_tflops[dtype].median / 1e6)
        memory = Roof(COPY, moved_bytes(problem) / self.copy_tbps.median / 1e6)
        return max(compute, memory, key=lambda roof: roof.us)

    def fraction(self, measurement: Measurement) -> float | None:
        """How much of the nearer roof a measurement reaches; None where there is none, or it has no time."""
        roof = self.roof(measurement.as_full)
        return None if roof is None or measurement.us is None else roof.us / measurement.us


def peak_rate_dtype(problem: GemmProblem) -> DTypeName | None:
    """The type whose WGMMAs bound a problem; None where tensor cores of Hopper have no WGMMA for it (f32, f64).

    Of two types the wider: the other is upconverted before it is multiplied.
    """
    wider = max(problem.a_dtype, problem.b_dtype, key=lambda name: DTYPES[name].bits)
    compatible = DTYPES[wider].compatible or wider
    return compatible if compatible in MEASURED_DTYPES else None


class PeakRateLaunch:
    """A launch of the WGMMAs of a type, and nothing else, on every SM of GPU 0.

    Args:
        dtype: one of :data:`~gemmill.emitters.peak_rate.MEASURED_DTYPES`.
        tiles: tiles that a CTA computes, one after the other.
        steps: stages that it multiplies for each, those in shared memory in turn.
        fill: fills an operand.

    Raises:
        DeviceError: there is no GPU, or it has no WGMMA.
        ToolchainError, CompileError: the kernel cannot be compiled here.
    """

    def __init__(self, dtype: DTypeName, tiles: int, steps: int, fill: Callable[[Any], None]) -> None:
        from gemmill.runtime.compile.compiler import Compiler  # the rest of the module needs no toolchain

        config = peak_rate_config(dtype)
        kernel = load(0, Compiler().compile(emit_peak_rate(config), config))
        ctas = kernel.max_clusters  # one on each SM, whose shared memory it fills
        tile, spec = config.tile, kernel.spec

        def tensor(dtype: str, *shape: int) -> Any:
            return torch().empty(shape, dtype=torch_dtype(dtype), device="cuda:0")

        self.a = tensor(dtype, config.stages, tile.m, tile.k)
        """Stages of A: (stages, M, K)."""
        self.b = tensor(dtype, config.stages, tile.n, tile.k)
        """Stages of B: (stages, N, K)."""
        self.sums = tensor(config.accumulator, ctas, spec.threads)
        """What a launch leaves: for each thread of each CTA the sum of its part of the tile."""
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
        """From the next launch on, compute so many tiles a CTA."""
        self._parameters.write(self._tiles_at, "i", tiles)
        self.flops = self._tile_flops * tiles
        """Operations of a launch."""

    def __call__(self) -> None:
        """Launch on torch's current stream."""
        self._prepared.launch(torch().cuda.current_stream().cuda_stream)


def measure_peak_rates(
    dtypes: Sequence[DTypeName] = MEASURED_DTYPES, on_done: Callable[[], None] = lambda: None
) -> PeakRates:
    """Measure the peak rates of this machine's first GPU, 1.5 seconds each; ``on_done`` is called after each.

    Raises:
        DeviceError: there is no GPU, no torch, or the GPU has no WGMMA.
        ToolchainError, CompileError: a kernel cannot be compiled here.
    """
    machine, telemetry = this_machine()
    began = datetime.now(UTC)
    generator = torch().Generator(device="cuda:0").manual_seed(SEED)
    # All kernels are compiled first: the GPU does not cool down between two of them.
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
    """TB/s of torch's copy."""
    source, target = (torch().empty(COPY_BYTES, dtype=torch().uint8, device="cuda:0") for _ in range(2))
    source.random_(0, 256)

    def copies() -> None:
        for _ in range(COPIES):
            target.copy_(source)

    return _sustained(copies, 2 * COPY_BYTES * COPIES / 1e12, telemetry)


def _sustained(window: Callable[[], None], work: float, telemetry: Telemetry) -> Rate:
    """The rate of windows of so much work each, one after the other without a pause: ``work`` a second."""
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
    """The peak rates of a file that ``gemmill roofline`` wrote.

    Raises:
        RecordError: the file cannot be read, or holds something else.
    """
    try:
        return PeakRates.model_validate_json(read_given(path, _MAX_BYTES))
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        field = ".".join(map(str, fault["loc"])) or "peak_rates"
        raise RecordError(f"{path}: {field}: {fault['msg']}; gemmill roofline -o FILE writes such files") from None
