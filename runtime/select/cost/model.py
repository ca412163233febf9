"""The analytic model: how long each of many kernels takes for one problem, from the GPU's rates.

A kernel is persistent: as many clusters as the GPU holds walk the output tiles, so the tiles take ``waves`` rounds and
every round lasts as long as one tile. A tile is a loop over K, in which the tensor cores, the loads from L2 and the
latency of those loads compete and the slowest sets the pace, and an epilogue, which pingpong hides behind the other
warpgroup's loop. DRAM and power bound the whole. All of it is one numpy expression over the kernels.
Where a GPU was measured, a residual model that was fitted to what came out corrects it
(:mod:`gemmill.runtime.select.cost.residual`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gemmill.library.arch import Gpu
from gemmill.library.config.fields import fields_of
from gemmill.library.config.model import FamilyName, GemmConfig, InputOperand
from gemmill.library.decompositions.parts import PARTIAL_BYTES
from gemmill.library.dtypes import DTYPES, DTypeName
from gemmill.library.legality.resources import (
    INSTRUCTION_K_BYTES,
    SM_REGISTERS,
    SUBTILE_M,
    align_up,
    element_bytes,
    multiplies_from_registers,
    operand_swizzle,
    transposes,
)
from gemmill.library.problem import GemmProblem
from gemmill.runtime.launch import tma
from gemmill.runtime.select.cost import model_parts, residual

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Integers = npt.NDArray[np.int64]
    Bools = npt.NDArray[np.bool_]

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
CORRECTED = 1.7
"""How far behind the analytically fastest kernel trees are still asked: the best of 6,328 problems was never as far."""
MOST_CORRECTED = 64
"""Of how many kernels at most, the analytically fastest: all of them would have changed the choice for eight of 2,000
random problems of four types; with 48 it is 19."""
_LAUNCH_NS = 310.0
"""A launch in a train of launches."""
_ROW_CYCLES = 2.2
"""What TMA takes for a row of a box, of 32 bytes as of 128 (docs/performance.md)."""
_CROSSING_CYCLES: Mapping[int, float] = {16: 4.4, 32: 3.3, 64: 2.7}
"""The same for a row that may lie across two lines, by the bytes that its address is a multiple of."""
_WIDE_ROW = 128
"""Bytes of a row of a box at most."""
_TRANSPOSING_CYCLES = 250.0
"""What transposing a stage takes beside the bytes: waiting for it, a fence and a barrier, one stage after the other."""
_TRANSPOSED_BYTES_PER_CYCLE = 32.0
"""What three warps transpose in shared memory."""
_LATENCY_NS = 1430.0
"""From asking for a stage to its arrival, under load."""
_ELEMENTS_PER_CYCLE = 1.5
"""What a block stores of a D that TMA cannot store."""
_REALIGNED_KEPT = 0.45
"""Part of the time of writing a copy into aligned memory that is regained where it stays in L2."""
_TILE_NS = 1020.0
"""Draining the pipeline and starting the next tile."""
_L2_SHARE = 0.85
"""Part of L2 that operands can stay in."""
_STEP_SHARPNESS = 8.5
"""Exponent of the norm that joins what competes in a step of the loop; without end it would be their maximum."""
_WHOLE_SHARPNESS = 11.5
"""The same for a whole GEMM: the SMs, DRAM and power."""


# Rough: kernels of these families are asked where TMA cannot move operands, or no other serves, and compete with each
# other and with copies into aligned memory. Those of mma.sync, but for its registers, scattered stores and DRAM, were
# fitted to 2,555 measurements on an H200, of 124 kernels at 122 problems of five types (docs/performance.md, "Few rows
# times such weights").
_SIMT_MULTIPLY_ADDS: Mapping[DTypeName, float] = {"f32": 95, "s32": 60, "f64": 45}
"""Multiply-adds that an SM finishes in a clock by FMAs."""
_SMALL_TILE = 0.8
"""Part of it that tiles of 64 x 64 reach, in shared memory's bandwidth."""
_MMA_MULTIPLY_ADDS = 955.0
"""Those of mma.sync on 16 bits."""
_MMA_RATES: Mapping[DTypeName, float] = {
    "s8": 2.1,
    "u8": 2.1,
    "e4m3": 0.8,  # multiplied as f16
    "e5m2": 0.8,
    "tf32": 0.495,
    "f64": 0.122,
}
"""Other types' part of it."""
_COPY_CYCLES: Mapping[int, float] = {16: 0.173, 8: 0.224, 4: 0.176, 2: 0.243, 1: 0.243}
"""Clocks for a copy of so many bytes into a stage; below 4 through registers."""
_SHIFTED_CYCLES = 1.04
"""The same for 16 bytes of rows that begin anywhere, and for putting their words together."""
_COPY_A = 0.78
"""What copies of A count of that: other blocks have brought it to L2."""
_COPY_OUTSIDE = 0.4
"""What rows of a tile that lie outside of the problem take of that all the same."""
_MMA_STEP_CYCLES = 100.0
"""Clocks in which a block that has an SM alone turns to the next stage; others hide them."""
_RESERVED_BYTES = 1024
"""Shared memory that each block takes for the system, and an SM has for as many blocks of one."""
_MMA_REGISTERS = 100
"""Registers of a thread beside its sums."""
_LOAD_NS: Mapping[FamilyName, float] = {"wgmma": _LATENCY_NS, "mma": 880.0}
"""What the loads of a step take, by family."""
_SCATTERED = 2.0
"""Times as long that a D of any strides takes to store, element by element."""
_DIRECT_DRAM = 0.95
"""Part of DRAM's rate that copies by threads reach."""


# The gemv family, from 3,345 measurements of it (11% off in the mean, weighted by kind and nearness to the best).
_STREAM_NS = 727.0
"""From the loads of a step to its end, where nothing else takes longer."""
_STREAM_GBPS = 38.6
"""The most of B that one SM takes in."""
_STREAM_A = 0.8
"""What a byte of A counts beside it, in tiles of more rows than an MMA has: what smaller ones take is in the rest."""
_MMA_ROWS = 8
"""Rows of A of an MMA."""
_VECTOR_CYCLES = 5.8
"""Clocks of an SM in which a warp loads a vector of B for each of its threads, however wide."""
_GATHER_CYCLES = 7.4
"""The same for an element of A, where it is read element by element."""
_MORE_ROWS_CYCLES = 3.8
"""The same for a word of A of each MMA along M beyond the first, and the MMA."""
_CROSSING_SECTORS = 0.63
"""Sectors more of the adjacent vectors of four threads, where these do not stay in L1 and rows do not begin sectors."""


class FeatureTable(NamedTuple):
    """Figures of kernels, one array element a kernel; prepared once."""

    tile_m: Floats
    tile_n: Floats
    tile: Floats
    """Elements of an output tile."""
    tile_k: Floats
    cluster_m: Floats
    cluster_n: Floats
    cluster_k: Floats
    """Blocks of a cluster that share K of a tile."""
    blocks: Floats
    """Blocks of a cluster."""
    splits: Floats
    swizzle: Floats
    raster_m: Bools
    pingpong: Bools
    split: Bools
    stream: Bools
    bytes_a: Floats
    """Bytes of an element of A; so of the others, 0 without C."""
    bytes_b: Floats
    bytes_c: Floats
    bytes_d: Floats
    step_cycles: Floats
    """Clocks in which an SM alone multiplies one step along K of a tile."""
    copy_cycles_a: Floats
    """Clocks in which threads copy what a step has of A, and of B; 0 in families whose loads take none."""
    copy_cycles_b: Floats
    step_bytes_a: Floats
    """What is loaded of A for it, as far as multicast does not save it; so of B."""
    step_bytes_b: Floats
    step_rows: Floats
    """Rows of boxes of A and of B, the rows, that a block asks TMA for in a step; 0 in families without it."""
    narrow: Bools
    """Whether those of A or B are narrow, as of an mn-major operand whose tile is no multiple of 128 bytes."""
    transposing_cycles: Floats
    """Clocks in which a block transposes what it must of a step, in shared memory."""
    latency_ns: Floats
    """What its loads take while the other stages are multiplied; 0 where several blocks on an SM hide it."""
    dram_share: Floats
    """Part of DRAM's rate that its loads reach."""
    stored: Floats
    """Bytes of an output tile that a block stores or, of C, loads."""
    aligns: Floats
    """Bytes that A, B, C and D, the rows, are aligned to where the kernel loads and stores them at its best."""
    shared_ns: Floats
    """Time in which the blocks of a cluster add up the parts of each tile."""
    exchange_ns: Floats
    """Time to add up the parts of a tile, where that is the kernel's own work."""
    stream_cycles: Floats
    """Clocks of an SM in which a block of the gemv family issues the loads of a step; 0 for others."""
    stream_crossing: Floats
    """Part of B that a kernel of the gemv family loads once more where its rows do not begin sectors."""
    blocks_per_sm: Floats
    """Blocks that share an SM where the problem has as many; but for gemv and mma.sync one."""
    swap_ab: Bools
    """Whether the kernel runs the transposed problem."""
    stages: Floats
    fused: Floats
    """Parts of K whose sums blocks add up within the kernel; 1 where there is but one."""
    fitted: Bools
    """Whether trees correct the kernel: WGMMA and gemv kernels that multiply what they load, the latter with tiles of
    eight rows. The others serve what these cannot, or compete among themselves."""

    @classmethod
    def of(cls, configs: Sequence[GemmConfig], swap_ab: bool = False) -> FeatureTable:
        """The figures of configs, for problems as they are or transposed."""

        def column(values: list[float]) -> Floats:
            return np.array(values, dtype=np.float64)

        tile_m, tile_n, tile_k = (column([getattr(c.tile, x) for c in configs]) for x in "mnk")
        cluster_m, cluster_n = (column([getattr(c.cluster, x) for c in configs]) for x in "mn")
        bytes_a, bytes_b = (
            column([x.type.bits / 8 for x in xs]) for xs in zip(*((c.a, c.b) for c in configs), strict=True)
        )
        bytes_c = column([c.c.type.bytes if c.c else 0 for c in configs])
        bytes_d = column([c.d.type.bytes for c in configs])
        splits = column([c.scheduler.splits for c in configs])
        stages = column([c.stages for c in configs])
        split, fused, stream = (
            np.array([c.scheduler.decomposition == name for c in configs]) for name in ("split", "fused", "stream")
        )
        cluster_k = np.where([c.scheduler.decomposition == "cluster" for c in configs], splits, 1.0)
        tile = tile_m * tile_n
        mma_cycles = np.maximum(
            tile_n / _MMA_COLUMNS_PER_CYCLE, (SUBTILE_M + tile_n) * INSTRUCTION_K_BYTES / _SHARED_BYTES_PER_CYCLE
        )
        mmas = tile_m / SUBTILE_M * tile_k * np.maximum(bytes_a, bytes_b) / INSTRUCTION_K_BYTES
        direct_cycles = column([_direct_cycles(c) for c in configs])
        copies_a, copies_b = (column([*cycles]) for cycles in zip(*map(_copy_cycles, configs), strict=True))
        scattered = column([_SCATTERED if c.family == "mma" and c.d.major == "any" else 1.0 for c in configs])
        wgmma = direct_cycles == 0
        loaded_a = tile_m * bytes_a * (_MULTICAST_COST + (1 - _MULTICAST_COST) / cluster_n)
        loaded_b = tile_n * bytes_b * (_MULTICAST_COST + (1 - _MULTICAST_COST) / cluster_m)
        row_a, row_b = (column([*sizes]) for sizes in zip(*map(_row_bytes, configs), strict=True))
        rows_a, rows_b = tile_m * tile_k * bytes_a / row_a, tile_n * tile_k * bytes_b / row_b
        streams = [_stream(c) for c in configs]
        return cls(
            tile_m=tile_m,
            tile_n=tile_n,
            tile=tile,
            tile_k=tile_k,
            cluster_m=cluster_m,
            cluster_n=cluster_n,
            cluster_k=cluster_k,
            blocks=cluster_m * cluster_n * cluster_k,
            splits=splits,
            swizzle=column([c.scheduler.swizzle for c in configs]),
            raster_m=np.array([c.scheduler.raster == "m" for c in configs]),
            pingpong=np.array([c.schedule == "pingpong" for c in configs]),
            split=split,
            stream=stream,
            bytes_a=bytes_a,
            bytes_b=bytes_b,
            bytes_c=bytes_c,
            bytes_d=bytes_d,
            step_cycles=np.where(wgmma, mmas * mma_cycles / _SUSTAINED, direct_cycles),
            copy_cycles_a=copies_a,
            copy_cycles_b=copies_b,
            step_bytes_a=tile_k * loaded_a,
            step_bytes_b=tile_k * loaded_b,
            step_rows=np.where(wgmma, np.stack([rows_a / cluster_n, rows_b / cluster_m]), 0.0),
            narrow=np.minimum(row_a, row_b) < _WIDE_ROW,
            transposing_cycles=column([_transposing_cycles(c) for c in configs]),
            latency_ns=column([_LOAD_NS.get(c.family, 0.0) for c in configs]) / (stages - 1),
            dram_share=np.where(wgmma, 1.0, _DIRECT_DRAM),
            stored=scattered * tile / cluster_k * np.where(split, PARTIAL_BYTES, bytes_c + bytes_d),
            aligns=np.array([[c.a.align, c.b.align, c.c.align if c.c else 0, c.d.align] for c in configs], float).T,
            shared_ns=model_parts.cluster_ns(cluster_k, tile),
            exchange_ns=np.where(fused, model_parts.exchange_ns(splits, tile), 0),
            stream_cycles=column([cycles for cycles, _ in streams]),
            stream_crossing=column([crossing for _, crossing in streams]),
            blocks_per_sm=column([_blocks_per_sm(c) for c in configs]),
            swap_ab=np.full(len(configs), swap_ab),
            stages=stages,
            fused=np.where(fused, splits, 1.0),
            fitted=wgmma & (bytes_a == bytes_b) & np.array([_multiplies_as_loaded(c) for c in configs]),
        )

    @classmethod
    def joined(cls, parts: Sequence[FeatureTable]) -> FeatureTable:
        """The figures of kernels of several."""
        return cls(*(np.concatenate(figures, axis=-1) for figures in zip(*parts, strict=True)))


def _row_bytes(config: GemmConfig) -> tuple[int, int]:
    """Bytes of a row of the boxes of A and of B; in families without TMA, those of a wide one."""
    if config.family != "wgmma":
        return _WIDE_ROW, _WIDE_ROW
    own = fields_of(config)
    return operand_swizzle(own, "a"), operand_swizzle(own, "b")


def _transposing_cycles(config: GemmConfig) -> float:
    """Clocks in which a stage is transposed in shared memory, where it is: by warps, or what is read and written there.

    The latter are what TMA writes, what transposing reads and writes, and what WGMMAs of 64 rows read: A once, B each.
    """
    if config.family != "wgmma" or config.a.major == config.b.major == "k":
        return 0.0
    own = fields_of(config)
    a, b = (
        extent * config.tile.k * element_bytes(own, x) for x, extent in (("a", config.tile.m), ("b", config.tile.n))
    )
    transposed = sum(size for x, size in (("a", a), ("b", b)) if transposes(own, x))
    if not transposed:
        return 0.0
    moved = (a + b) + 2 * transposed + (a + b * config.tile.m // SUBTILE_M)
    return max(_TRANSPOSING_CYCLES + transposed / _TRANSPOSED_BYTES_PER_CYCLE, moved / _SHARED_BYTES_PER_CYCLE)


def _multiplies_as_loaded(config: GemmConfig) -> bool:
    """Whether WGMMA reads the stages of A and B as TMA writes them, and a gemv kernel multiplies B once."""
    if config.family == "gemv":
        from gemmill.library.families import gemv  # as in _stream

        if gemv.mmas_m(fields_of(config)) > 1:
            return False
    if config.a.major == config.b.major == "k":
        return True
    own = fields_of(config)
    moved = multiplies_from_registers(own) or any(transposes(own, x) for x in "ab")
    return not moved and "any" not in (config.a.major, config.b.major)


def _stream(config: GemmConfig) -> tuple[float, float]:
    """Of the gemv family clocks in which a block issues the loads of a step, and the part of B that it loads once more
    where rows do not begin sectors; 0 of others."""
    if config.family != "gemv":
        return 0, 0
    from gemmill.library.families import gemv  # with all rules; a program without such kernels starts faster

    own = fields_of(config)
    mmas, held = gemv.mmas_m(own), gemv.thread_k(own)
    cycles = config.stages * _VECTOR_CYCLES + (mmas * held * _GATHER_CYCLES if gemv.gathers(own) else 0)
    cycles += (mmas - 1) * held * config.a.type.bytes / 4 * _MORE_ROWS_CYCLES
    crosses = config.b.major == "k" and config.b.align >= gemv.UNCACHED_BYTES
    crossing = _CROSSING_SECTORS * tma.SECTOR / (4 * config.b.align) if crosses else 0
    return gemv.threads(own) // 32 * cycles, crossing


def _blocks_per_sm(config: GemmConfig) -> int:
    """Blocks that share an SM: of mma.sync as many as its shared memory and registers have room for."""
    if config.family == "gemv":
        from gemmill.library.families import gemv  # as in _stream

        return gemv.blocks_per_sm(fields_of(config))
    if config.family == "mma":
        from gemmill.library.families import mma

        own = fields_of(config)
        registers = mma.threads(own) * (mma.accumulator_registers(own) + _MMA_REGISTERS)
        by_memory = (config.target.shared_bytes + _RESERVED_BYTES) // (mma.shared_bytes(own) + _RESERVED_BYTES)
        return max(1, min(by_memory, SM_REGISTERS // registers))
    return 1


def _direct_cycles(config: GemmConfig) -> float:
    """Clocks of a step along K, of a kernel that multiplies neither by WGMMA nor as it streams; else 0."""
    tile = config.tile
    if config.family == "simt":
        rate = _SIMT_MULTIPLY_ADDS[config.accumulator] * (_SMALL_TILE if tile.m * tile.n <= 64 * 64 else 1)
        return tile.m * tile.n * tile.k / rate
    if config.family == "mma":
        rate = _MMA_MULTIPLY_ADDS * _MMA_RATES.get(config.a.dtype, 1.0)
        return tile.m * tile.n * tile.k / rate
    return 0.0


def _copy_cycles(config: GemmConfig) -> tuple[float, float]:
    """Clocks in which the threads of a mma.sync kernel copy the stages of A and of B; 0 of others."""
    if config.family != "mma":
        return 0.0, 0.0
    from gemmill.library.families import mma  # as in _stream

    own = fields_of(config)

    def cycles(operand: str, x: InputOperand, stage: int) -> float:
        if mma.is_shifted(own, operand):
            return stage / mma.SHIFTED_BYTES * _SHIFTED_CYCLES
        return stage / x.align * _COPY_CYCLES[x.align]

    a, b = mma.stage_bytes(own)
    return _COPY_A * cycles("a", config.a, a), cycles("b", config.b, b)


class Estimate(NamedTuple):
    """What the model says of each kernel."""

    us: Floats
    """Predicted time in microseconds."""
    tiles: Floats
    """Output tiles, or where several blocks sum a tile on their own its parts."""
    waves: Floats
    """Tiles that the busiest SM computes, one after the other."""
    utilisation: Floats
    """Part of the SMs' rounds that compute something inside the problem."""
    bound: npt.NDArray[np.int64]
    """Index into :data:`BOUNDS`."""


def estimate(columns: FeatureTable, problem: GemmProblem, gpu: Gpu, serving: Integers | None = None) -> Estimate:
    """Predict the time of every kernel for one problem whose extents are all at least 1.

    Args:
        columns: figures of the kernels.
        problem: what they are to solve.
        gpu: where.
        serving: indices of those that can; None: all.
    """
    figures, others = analytic(columns, problem, gpu)
    found = residual.fitted(gpu.name) if problem.batching == "strided" else None
    if found is None:
        return _with_realignment(figures, columns, problem, gpu)
    rows = features(columns, figures, others, problem, gpu)
    members = np.arange(figures.us.size) if serving is None else serving
    near = figures.us[members] <= CORRECTED * figures.us[members].min()
    asked = members[near & columns.fitted[members]]
    if asked.size > MOST_CORRECTED:
        asked = asked[np.argpartition(figures.us[asked], MOST_CORRECTED)[:MOST_CORRECTED]]
    us = figures.us.copy()
    if asked.size:
        factors = np.exp(found(np.array([rows[name] for name in found.features])[:, asked]))
        us[asked] *= factors
        # What the fastest of these loses, as to slow memory, those that no tree knows lose as well.
        us[~columns.fitted] *= max(1.0, factors[us[asked].argmin()])
    return _with_realignment(figures._replace(us=us), columns, problem, gpu)


def _with_realignment(figures: Estimate, k: FeatureTable, problem: GemmProblem, gpu: Gpu) -> Estimate:
    """The estimate with the time in which operands that are less aligned than a kernel reads them are copied first: of
    what is read and written, as the launch of the kernel hides behind it."""
    if min(problem.a_align, problem.b_align, problem.c_align) >= k.aligns[:3].max():
        return figures
    a, b, c = (_realigned_bytes(problem, name) for name in "abc")
    own = np.where(k.swap_ab, ((b,), (a,), (c,)), ((a,), (b,), (c,)))
    size = np.where(realigned(k, problem), own, 0).sum(axis=0) * problem.batch
    kept = np.where(size <= _L2_SHARE * gpu.l2_bytes, _REALIGNED_KEPT, 0)
    return figures._replace(us=figures.us + (2 - kept) * size / gpu.dram_gbps / 1000)


def realigned(k: FeatureTable, problem: GemmProblem) -> Bools:
    """Whether A, B and C, the rows, are copied into aligned memory before each kernel, if it serves the problem."""
    a, b, c = problem.a_align, problem.b_align, problem.c_align
    return np.asarray(np.where(k.swap_ab, ((b,), (a,), (c,)), ((a,), (b,), (c,))) < k.aligns[:3])


def _realigned_bytes(problem: GemmProblem, operand: str) -> int:
    """Bytes of a copy of a matrix of an operand, in sectors; 0 where there is no C."""
    if (dtype := getattr(problem, f"{operand}_dtype")) is None:
        return 0
    columns, rows = problem.extents_of(operand)
    return rows * align_up(columns * DTYPES[dtype].bits // 8, tma.SECTOR)


FEATURES = (
    *(
        "M",
        "N",
        "K",
        "batch",
        "bytes",
        "tile M",
        "tile N",
        "tile K bytes",
        "cluster M",
        "cluster N",
        "cluster K",
        "stages",
    ),
    *("splits", "pingpong", "split", "fused", "stream", "raster M", "swizzle", "gemv", "us", "tiles", "waves"),
    *("utilisation", "bound", "loads", "DRAM", "power", "filled M", "filled N", "steps", "active", "last wave"),
)
"""Names of the figures that trees may ask for."""


def features(
    columns: FeatureTable, figures: Estimate, others: Mapping[str, Floats], problem: GemmProblem, gpu: Gpu
) -> dict[str, Floats]:
    """What trees may ask of each kernel, by name, from what :func:`analytic` returns; M and N are those it sees."""
    k, each = columns, np.ones_like(columns.tile)
    return {
        "M": np.where(k.swap_ab, problem.n, problem.m),
        "N": np.where(k.swap_ab, problem.m, problem.n),
        "K": problem.k * each,
        "batch": problem.batch * each,
        "bytes": k.bytes_b,
        "tile M": k.tile_m,
        "tile N": k.tile_n,
        "tile K bytes": k.tile_k * k.bytes_b,
        "cluster M": k.cluster_m,
        "cluster N": k.cluster_n,
        "cluster K": k.cluster_k,
        "stages": k.stages,
        "splits": k.splits,
        "pingpong": k.pingpong,
        "split": k.split,
        "fused": k.fused,
        "stream": k.stream,
        "raster M": k.raster_m,
        "swizzle": k.swizzle,
        "gemv": k.stream_cycles > 0,
        "us": figures.us,
        "tiles": figures.tiles / gpu.sms,
        "waves": figures.waves,
        "utilisation": figures.utilisation,
        "bound": figures.bound,
        **others,
    }


def analytic(columns: FeatureTable, problem: GemmProblem, gpu: Gpu) -> tuple[Estimate, dict[str, Floats]]:
    """The analytic model alone, and further figures by name.

    ``loads``: of a step, over its MMAs. ``DRAM``, ``power``: over all of the time. ``filled M``, ``filled N``: the part
    of the tiles that lies inside the problem. ``steps``: along K, of a tile. ``active``: SMs that have work.
    ``last wave``: the part of the GPU that it fills.
    """
    uneven, strided = problem.batching == "grouped", problem.batching == "strided"
    k, problem = columns, problem.typical()
    m, n = (np.where(k.swap_ab, float(y), float(x)) for x, y in ((problem.m, problem.n), (problem.n, problem.m)))

    # Tiles and waves.
    large = np.where(k.blocks <= 4, np.floor(gpu.clusters_of_4 * 4 / k.blocks), gpu.clusters_of_8)
    resident = np.maximum(np.where(k.blocks <= 2, np.floor(gpu.sms / k.blocks), large), 1)
    clusters_m = np.ceil(np.ceil(m / k.tile_m) / k.cluster_m)
    if uneven:  # on average, if the rows of groups are spread exponentially
        clusters_m = -1 / np.expm1(-k.tile_m * k.cluster_m / m)
    clusters_n = np.ceil(np.ceil(n / k.tile_n) / k.cluster_n)
    clusters = clusters_m * clusters_n * problem.batch * k.splits / k.cluster_k
    slots = resident * k.blocks_per_sm
    waves = np.ceil(clusters / slots)
    sharing = np.minimum(k.blocks_per_sm, np.ceil(clusters / gpu.sms))
    # Of gemv, whose time does not come of steps and stores, as the trees that correct it have learned its figures: of a
    # block alone, and of all blocks that an SM can hold.
    beside = np.where(k.stream_cycles, 1, sharing)
    held = np.where(k.stream_cycles, k.blocks_per_sm, sharing)
    active = np.minimum(clusters, slots) * k.blocks

    # One step along K of one tile.
    load_rate = np.minimum(_SHARED_BYTES_PER_CYCLE * gpu.clock_ghz, gpu.l2_gbps / active)
    inside = np.ones((2, k.tile.size))
    if strided:  # boxes end with the operands
        inside = np.minimum(np.array((m / k.tile_m, n / k.tile_n)), 1)
    own_cycles = np.maximum(_row_cycles(k, problem, inside), k.transposing_cycles)
    step_bytes = k.step_bytes_a * inside[0] + k.step_bytes_b * inside[1]
    load_ns = np.maximum(step_bytes / load_rate, own_cycles / gpu.clock_ghz)
    copied_a, copied_b = _COPY_OUTSIDE + (1 - _COPY_OUTSIDE) * inside
    copy_cycles = k.copy_cycles_a * copied_a + k.copy_cycles_b * copied_b
    turning = np.where((copy_cycles > 0) & (beside <= 1), _MMA_STEP_CYCLES, 0)
    step_cycles = turning + beside * np.hypot(k.step_cycles, copy_cycles)
    paces = np.array((step_cycles / gpu.clock_ghz, load_ns, k.latency_ns))
    step_ns = _norm(paces, _STEP_SHARPNESS)
    steps = np.ceil(problem.k / k.splits / k.tile_k)
    loop_ns = steps * step_ns

    # All tiles of the busiest SM. Pingpong computes one tile while it stores another: of the stores the last alone is
    # seen, if they are shorter.
    store_ns = _TILE_NS + beside * k.stored / (_STORE_BYTES_PER_CYCLE * gpu.clock_ghz) + k.shared_ns
    by_element_ns = k.tile / k.cluster_k / (_ELEMENTS_PER_CYCLE * gpu.clock_ghz)
    store_ns += np.where(problem.d_align < k.aligns[3], by_element_ns, 0)
    hidden_ns = waves * np.maximum(loop_ns, (loop_ns + store_ns) / 2) + store_ns
    sm_ns = np.where(k.pingpong, hidden_ns, waves * (loop_ns + store_ns)) + k.exchange_ns
    if (stream := np.flatnonzero(k.stream)).size:
        own = (x[stream] for x in (clusters, resident, steps, step_ns, store_ns, k.tile))
        sm_ns[stream] = model_parts.stream_ns(*own)
    sm_ns += _LATENCY_NS

    # The gemv family moves B from memory to registers, and does nothing else that takes time.
    if k.stream_cycles.any():
        align = np.where(k.swap_ab, problem.a_align, problem.b_align)
        crosses = (problem.k * k.bytes_b % tma.SECTOR > 0) | (align < tma.ALIGNMENT)
        crossing = np.where(crosses, k.stream_crossing, 0)
        moved_ns = sharing * k.tile_n * k.tile_k * k.bytes_b * (1 + crossing) / _STREAM_GBPS
        rows = np.where(k.tile_m > _MMA_ROWS, np.minimum(m, k.tile_m), 0)
        rows_ns = sharing * rows * k.tile_k * k.bytes_a * _STREAM_A / _STREAM_GBPS
        issued_ns = sharing * k.stream_cycles / gpu.clock_ghz
        streams = np.array((np.full_like(sharing, _STREAM_NS), moved_ns, issued_ns))
        stream_ns = waves * np.maximum(steps, 1) * (_norm(streams, _STEP_SHARPNESS) + rows_ns)
        sm_ns = np.where(k.stream_cycles, _LATENCY_NS + stream_ns, sm_ns)

    # What all SMs share: DRAM, and power.
    tiles_m, tiles_n = clusters_m * k.cluster_m, clusters_n * k.cluster_n
    dram_ns = _dram_bytes(k, problem, m, n, gpu, tiles_m, tiles_n, active) / (gpu.dram_gbps * k.dram_share)
    power_ns = problem.flops * np.maximum(k.bytes_a, k.bytes_b) / 2 / gpu.power_tflops / 1000

    bound = np.where(store_ns * waves > 0.5 * sm_ns, 3, np.argmax(paces, axis=0))
    bound = np.where(k.stream_cycles, 2, bound)
    shared = np.array((sm_ns, dram_ns, power_ns))
    slowest = np.argmax(shared, axis=0)
    ns = _LAUNCH_NS + _norm(shared, _WHOLE_SHARPNESS)
    if k.split.any():
        ns += np.where(k.split, model_parts.reduction_ns(problem, k.splits, k.bytes_c, k.bytes_d), 0)
    useful = problem.m * problem.n * problem.batch / (waves * resident * held * k.blocks * k.tile / k.splits)
    figures = Estimate(
        us=ns / 1000,
        tiles=clusters * k.blocks / k.cluster_k,
        waves=waves,
        utilisation=useful * resident * k.blocks / gpu.sms,
        bound=np.where(slowest == 0, bound, slowest + 3),
    )
    return figures, {
        "loads": paces[1] / paces[0],
        "DRAM": dram_ns / ns,
        "power": power_ns / ns,
        "filled M": m / (tiles_m * k.tile_m),
        "filled N": n / (tiles_n * k.tile_n),
        "steps": steps,
        "active": active,
        "last wave": clusters / slots - waves + 1,
    }


def _row_cycles(k: FeatureTable, problem: GemmProblem, inside: Floats) -> Floats:
    """Clocks in which TMA loads the rows of boxes of a step, as far as the constants, which were fitted to wide rows
    within lines, do not have it; ``inside``: parts of tiles that lie in the problem. Operands are taken for packed, but
    those that are copied: their rows begin lines."""
    a = _crossing_cycles(problem.a_dtype, problem.extents_of("a")[0])
    b = _crossing_cycles(problem.b_dtype, problem.extents_of("b")[0])
    cycles = k.narrow * _ROW_CYCLES
    if a or b:
        cycles = np.maximum(cycles, np.where(k.swap_ab, ((b,), (a,)), ((a,), (b,))))
    return np.asarray((k.step_rows * inside * cycles).sum(axis=0))


def _crossing_cycles(dtype: DTypeName, elements: int) -> float:
    """Clocks that TMA takes for a row where rows are so many elements apart; 0 where all begin lines."""
    stride = elements * DTYPES[dtype].bits // 8
    return _CROSSING_CYCLES.get(stride & -stride, 0.0)


def _norm(times: Floats, sharpness: float) -> Floats:
    """A soft maximum of the rows: what competes for an SM delays each other where it is about as slow."""
    slowest = times.max(axis=0)
    return np.asarray(slowest * ((times / slowest) ** sharpness).sum(axis=0) ** (1 / sharpness))


def _dram_bytes(
    k: FeatureTable,
    problem: GemmProblem,
    m: Floats,
    n: Floats,
    gpu: Gpu,
    tiles_m: Floats,
    tiles_n: Floats,
    active: Floats,
) -> Floats:
    """Bytes that cross DRAM: every operand once, and A and B anew in each wave if they outgrow L2.

    The tiles of a wave form a band as wide as the swizzle, along the raster direction.
    """
    inputs = problem.k * (m * k.bytes_a + n * k.bytes_b) * problem.batch
    outputs = problem.m * problem.n * (k.bytes_c + k.bytes_d) * problem.batch
    outgrown = inputs / problem.batch > _L2_SHARE * gpu.l2_bytes
    if not outgrown.any():
        return inputs + outputs
    across, along = np.where(k.raster_m, tiles_n, tiles_m), np.where(k.raster_m, tiles_m, tiles_n)
    width = np.minimum(k.swizzle, across)
    length = np.minimum(np.ceil(active / width), along)
    width = np.minimum(np.maximum(width, active / length), across)
    wave_m, wave_n = np.where(k.raster_m, length, width), np.where(k.raster_m, width, length)
    wave = problem.k * (wave_m * k.tile_m * k.bytes_a + wave_n * k.tile_n * k.bytes_b)
    rounds = tiles_m * tiles_n * problem.batch / (wave_m * wave_n)
    return outputs + np.where(outgrown, np.maximum(inputs, rounds * wave), inputs)
