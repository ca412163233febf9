"""The analytic model: how long each of many kernels takes for one problem, from the GPU's rates.

A kernel is persistent: as many clusters as the GPU holds walk the output tiles, so the tiles take ``waves`` rounds and
every round lasts as long as one tile. A tile is a loop over K, in which the tensor cores, the loads from L2 and the
latency of those loads compete and the slowest sets the pace, and an epilogue, which pingpong hides behind the other
warpgroup's loop. DRAM and power bound the whole. All of it is one numpy expression over the kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gemmill.library.arch import Gpu
from gemmill.library.config import FamilyName, GemmConfig
from gemmill.library.dtypes import DTypeName
from gemmill.library.families import gemv
from gemmill.library.fields import fields_of
from gemmill.library.problem import GemmProblem
from gemmill.library.resources import INSTRUCTION_K_BYTES, SUBTILE_M
from gemmill.runtime import model_parts
from gemmill.runtime.parts import PARTIAL_BYTES

Floats = npt.NDArray[np.float64]

BOUNDS = ("tensor cores", "L2 loads", "load latency", "epilogue", "DRAM", "power")
"""What can set the pace of a kernel, in the order of :attr:`Estimate.bound`."""

# Of Hopper's SM, per clock.
_MMA_COLUMNS_PER_CYCLE = 2
"""Columns of a 64-row WGMMA that the tensor cores of an SM finish in a clock."""
_SHARED_BYTES_PER_CYCLE = 128
"""What WGMMA reads of its operands from shared memory, and what TMA writes there."""

# Fitted to measurements on an H200, together with its row of library/arch.py (docs/performance.md).
_SUSTAINED = 0.84
"""Part of the tensor cores' rate that a loop of WGMMAs reaches."""
_STORE_BYTES_PER_CYCLE = 16
"""What one SM's epilogue moves from registers through shared memory to L2, or back."""
_MULTICAST_COST = 0.26
"""Part of a load that multicast does not save."""
_LAUNCH_NS = 310.0
"""A launch in a train of launches."""
_LATENCY_NS = 1430.0
"""From asking for a stage to its arrival, under load."""
_TILE_NS = 1020.0
"""Draining the pipeline and starting the next tile."""
_L2_SHARE = 0.85
"""Part of L2 that operands can stay in."""
_STEP_SHARPNESS = 8.5
"""Exponent of the norm that joins what competes in a step of the loop; without end it would be their maximum."""
_WHOLE_SHARPNESS = 11.5
"""The same for a whole GEMM: the SMs, DRAM and power."""


# Rough: kernels of these families are asked where no other serves, and compete with each other alone.
_MULTIPLY_ADDS: Mapping[FamilyName, Mapping[DTypeName, float]] = {
    "simt": {"f32": 95, "s32": 60, "f64": 45},
    "mma": {"f32": 640, "s32": 480, "f64": 85},
}
"""Multiply-adds that an SM finishes in a clock outside WGMMA, by family and accumulator; those of mma.sync with
operands of 16 bits, and twice as many of 8."""
_BY_ELEMENT = 0.35
"""Part of mma.sync's rate that is left where an operand is loaded element by element."""
_SMALL_TILE = 0.8
"""Part of the rate that tiles of 64 x 64 reach, in shared memory's bandwidth."""


# The gemv family, from a run of fourteen kernels on three problems.
_STREAM_NS = 750.0
"""From a load of B to its arrival in registers."""
_STREAM_GBPS = 48.0
"""The most of B that one SM takes in."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Figures of kernels with equal operand formats, one array element a kernel; prepared once."""

    tile_m: Floats
    tile_n: Floats
    tile_k: Floats
    cluster_m: Floats
    cluster_n: Floats
    cluster_k: Floats
    """Blocks of a cluster that share K of a tile."""
    stages: Floats
    splits: Floats
    swizzle: Floats
    raster_m: npt.NDArray[np.bool_]
    pingpong: npt.NDArray[np.bool_]
    split: npt.NDArray[np.bool_]
    fused: npt.NDArray[np.bool_]
    stream: npt.NDArray[np.bool_]
    multiply_adds: Floats
    """In a clock of an SM; 0 for WGMMA, which has a formula."""
    streamed: Floats
    """Bytes of B that a block of the gemv family has in flight; 0 for others."""
    blocks_per_sm: Floats
    bytes: tuple[float, float, int, int]
    """Bytes of an element of A, B, C (0 without C) and D."""

    @classmethod
    def of(cls, configs: Sequence[GemmConfig]) -> Columns:
        """The figures of configs that share their operand formats."""

        def column(values: list[int]) -> Floats:
            return np.array(values, dtype=np.float64)

        first = configs[0]
        return cls(
            tile_m=column([c.tile.m for c in configs]),
            tile_n=column([c.tile.n for c in configs]),
            tile_k=column([c.tile.k for c in configs]),
            cluster_m=column([c.cluster.m for c in configs]),
            cluster_n=column([c.cluster.n for c in configs]),
            cluster_k=column([c.scheduler.splits if c.scheduler.decomposition == "cluster" else 1 for c in configs]),
            stages=column([c.stages for c in configs]),
            splits=column([c.scheduler.splits for c in configs]),
            swizzle=column([c.scheduler.swizzle for c in configs]),
            raster_m=np.array([c.scheduler.raster == "m" for c in configs]),
            pingpong=np.array([c.schedule == "pingpong" for c in configs]),
            split=np.array([c.scheduler.decomposition == "split" for c in configs]),
            fused=np.array([c.scheduler.decomposition == "fused" for c in configs]),
            stream=np.array([c.scheduler.decomposition == "stream" for c in configs]),
            multiply_adds=np.array([_multiply_adds(c) for c in configs]),
            streamed=column([gemv.bytes_in_flight(fields_of(c)) if c.family == "gemv" else 0 for c in configs]),
            blocks_per_sm=column([gemv.blocks_per_sm(fields_of(c)) if c.family == "gemv" else 1 for c in configs]),
            bytes=(
                first.a.type.bits / 8,
                first.b.type.bits / 8,
                first.c.type.bytes if first.c else 0,
                first.d.type.bytes,
            ),
        )


def _multiply_adds(config: GemmConfig) -> float:
    rate = _MULTIPLY_ADDS.get(config.family, {}).get(config.accumulator, 0.0)
    if config.tile.m * config.tile.n <= 64 * 64:
        rate *= _SMALL_TILE
    if config.family == "mma":
        rate *= 2 / max(1, config.a.type.bytes) if config.accumulator != "f64" else 1
        if min(config.a.align, config.b.align) < 4:
            rate *= _BY_ELEMENT
    return rate


@dataclass(frozen=True, slots=True)
class Estimate:
    """What the model says of each kernel."""

    us: Floats
    """Predicted time in microseconds."""
    tiles: Floats
    """Output tiles."""
    waves: Floats
    """Tiles that the busiest SM computes, one after the other."""
    utilisation: Floats
    """Part of the SMs' rounds that compute something inside the problem."""
    bound: npt.NDArray[np.int64]
    """Index into :data:`BOUNDS`."""


def estimate(columns: Columns, problem: GemmProblem, gpu: Gpu) -> Estimate:
    """Predict the time of every kernel for one problem whose extents are all at least 1."""
    uneven = problem.batching == "grouped"
    k, problem = columns, problem.typical()
    bytes_a, bytes_b, bytes_c, bytes_d = k.bytes

    # Tiles and waves.
    blocks = k.cluster_m * k.cluster_n * k.cluster_k
    resident = np.maximum(np.where(blocks <= 2, gpu.sms // blocks, gpu.clusters_of_4), 1)
    clusters_m = np.ceil(np.ceil(problem.m / k.tile_m) / k.cluster_m)
    if uneven:  # on average, if the rows of groups are spread exponentially
        clusters_m = -1 / np.expm1(-k.tile_m * k.cluster_m / problem.m)
    clusters_n = np.ceil(np.ceil(problem.n / k.tile_n) / k.cluster_n)
    clusters = clusters_m * clusters_n * problem.batch * k.splits / k.cluster_k
    slots = resident * k.blocks_per_sm
    waves = np.ceil(clusters / slots)
    active = np.minimum(clusters, slots) * blocks

    # One step along K of one tile.
    mma_cycles = np.maximum(
        k.tile_n / _MMA_COLUMNS_PER_CYCLE, (SUBTILE_M + k.tile_n) * INSTRUCTION_K_BYTES / _SHARED_BYTES_PER_CYCLE
    )
    mmas = k.tile_m / SUBTILE_M * k.tile_k * max(bytes_a, bytes_b) / INSTRUCTION_K_BYTES
    mma_ns = mmas * mma_cycles / (_SUSTAINED * gpu.clock_ghz)
    wgmma = k.multiply_adds == 0
    scalar_ns = k.tile_m * k.tile_n * k.tile_k / (np.where(wgmma, 1, k.multiply_adds) * gpu.clock_ghz)
    mma_ns = np.where(wgmma, mma_ns, scalar_ns)
    loaded_a = k.tile_m * bytes_a * (_MULTICAST_COST + (1 - _MULTICAST_COST) / k.cluster_n)
    loaded_b = k.tile_n * bytes_b * (_MULTICAST_COST + (1 - _MULTICAST_COST) / k.cluster_m)
    load_rate = np.minimum(_SHARED_BYTES_PER_CYCLE * gpu.clock_ghz, gpu.l2_gbps / active)
    load_ns = k.tile_k * (loaded_a + loaded_b) / load_rate
    # Other families hide it with several blocks on an SM; their rates include what they do not.
    latency_ns = np.where(wgmma, _LATENCY_NS / (k.stages - 1), 0.0)
    paces = np.stack([mma_ns, load_ns, latency_ns])
    step_ns = _norm(paces, _STEP_SHARPNESS)
    loop_ns = np.ceil(problem.k / k.splits / k.tile_k) * step_ns

    # All tiles of the busiest SM. Pingpong computes one tile while it stores another: of the stores the last alone is
    # seen, if they are shorter.
    tile = k.tile_m * k.tile_n
    stored = np.where(k.split, PARTIAL_BYTES, bytes_c + bytes_d)
    store_ns = _TILE_NS + tile / k.cluster_k * stored / (_STORE_BYTES_PER_CYCLE * gpu.clock_ghz)
    store_ns += model_parts.cluster_ns(k.cluster_k, tile)
    hidden_ns = waves * np.maximum(loop_ns, (loop_ns + store_ns) / 2) + store_ns
    busy_ns = np.where(k.pingpong, hidden_ns, waves * (loop_ns + store_ns))
    busy_ns += np.where(k.fused, model_parts.exchange_ns(k.splits, tile), 0)
    steps = np.ceil(problem.k / k.tile_k)
    stream_ns = model_parts.stream_ns(clusters, resident, steps, step_ns, store_ns, tile)
    sm_ns = _LATENCY_NS + np.where(k.stream, stream_ns, busy_ns)

    # The gemv family moves B from memory to registers, and does nothing else that takes time.
    sharing = np.minimum(k.blocks_per_sm, np.ceil(clusters / gpu.sms))
    stream_gbps = np.minimum(_STREAM_GBPS, sharing * k.streamed / _STREAM_NS)
    tile_bytes = (k.tile_n * bytes_b + k.tile_m * bytes_a) * problem.k
    tile_ns = sharing * tile_bytes / np.where(k.streamed, stream_gbps, 1) + _TILE_NS
    sm_ns = np.where(k.streamed, _LATENCY_NS + waves * tile_ns, sm_ns)

    # What all SMs share: DRAM, and power.
    dram_ns = _dram_bytes(k, problem, gpu, clusters_m * k.cluster_m, clusters_n * k.cluster_n, active) / gpu.dram_gbps
    power_ns = np.full_like(sm_ns, problem.flops * max(bytes_a, bytes_b) / 2 / gpu.power_tflops / 1000)

    bound = np.where(store_ns * waves > 0.5 * sm_ns, 3, np.argmax(paces, axis=0))
    bound = np.where(k.streamed, 2, bound)
    reduction_ns = np.where(k.split, model_parts.reduction_ns(problem, k.splits, bytes_c, bytes_d), 0)
    shared = np.stack([sm_ns, dram_ns, power_ns])
    slowest = np.argmax(shared, axis=0)
    useful = problem.m * problem.n * problem.batch / (waves * slots * blocks * k.tile_m * k.tile_n / k.splits)
    return Estimate(
        us=(_LAUNCH_NS + _norm(shared, _WHOLE_SHARPNESS) + reduction_ns) / 1000,
        tiles=clusters * k.cluster_m * k.cluster_n,
        waves=waves,
        utilisation=useful * resident * blocks / gpu.sms,
        bound=np.where(slowest == 0, bound, slowest + 3),
    )


def _norm(times: Floats, sharpness: float) -> Floats:
    """A soft maximum of the rows: what competes for an SM delays each other where it is about as slow."""
    slowest = times.max(axis=0)
    return np.asarray(slowest * ((times / slowest) ** sharpness).sum(axis=0) ** (1 / sharpness))


def _dram_bytes(k: Columns, problem: GemmProblem, gpu: Gpu, tiles_m: Floats, tiles_n: Floats, active: Floats) -> Floats:
    """Bytes that cross DRAM: every operand once, and A and B anew in each wave if they outgrow L2.

    The tiles of a wave form a band as wide as the swizzle, along the raster direction.
    """
    bytes_a, bytes_b, bytes_c, bytes_d = k.bytes
    inputs = problem.k * (problem.m * bytes_a + problem.n * bytes_b) * problem.batch
    outputs = problem.m * problem.n * (bytes_c + bytes_d) * problem.batch
    across, along = np.where(k.raster_m, tiles_n, tiles_m), np.where(k.raster_m, tiles_m, tiles_n)
    width = np.minimum(k.swizzle, across)
    length = np.minimum(np.ceil(active / width), along)
    width = np.minimum(np.maximum(width, active / length), across)
    wave_m, wave_n = np.where(k.raster_m, length, width), np.where(k.raster_m, width, length)
    wave = problem.k * (wave_m * k.tile_m * bytes_a + wave_n * k.tile_n * bytes_b)
    rounds = tiles_m * tiles_n * problem.batch / (wave_m * wave_n)
    outgrown = inputs / problem.batch > _L2_SHARE * gpu.l2_bytes
    return outputs + np.where(outgrown, np.maximum(inputs, rounds * wave), float(inputs))
