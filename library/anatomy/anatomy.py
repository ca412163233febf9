"""The parts of a kernel's plan that the panels of a page draw, for each family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from gemmill.library.config.model import FamilyName, InputName
from gemmill.library.families.gemv import MMA_M, GemvPlan
from gemmill.library.families.kernel_plan import KernelPlan
from gemmill.library.families.mma import MMA_K_BYTES, MmaPlan
from gemmill.library.families.simt import SimtPlan
from gemmill.library.families.wgmma.wgmma_plan import INSTRUCTION_K_BYTES, SUBTILE_M, WgmmaPlan, swizzle_bytes
from gemmill.library.layouts.atoms import MmaAtom, mma_atom
from gemmill.library.layouts.layout import Layout

CHUNK = 16
"""Bytes of the unit of a swizzle: four banks."""
LOAD, MULTIPLY, STORE, WAIT = 0, 2, 1, 7
"""Colours of the steps of a lane."""
Plan = TypeVar("Plan", bound=KernelPlan)


class Step(NamedTuple):
    """An activity of warps. Times from 0 to 10 have no unit: they only state the order."""

    start: float
    end: float
    words: str
    shade: int


class Lane(NamedTuple):
    """A group of warps and their consecutive activities."""

    name: str
    steps: Sequence[Step]


class Staging(NamedTuple):
    """The subtiles in which a warpgroup stages D for TMA stores."""

    writers: int
    """Warpgroups that store D."""
    down: int
    """Subtiles along M, of 64 rows each."""
    columns: int
    """Columns of D per warpgroup."""
    subtile_n: int
    buffers: int
    """Buffers for subtiles."""
    mirrored: bool
    """Whether each subtile is also stored on the other side of the diagonal of D."""


class Anatomy(Generic[Plan]):
    """The parts of a kernel that a page draws."""

    threads: ClassVar[str]
    """A caption that explains T, V and w in the tables of accumulators."""
    operands: ClassVar[str] = ""
    """A caption on how threads get A and B, for families without :meth:`instruction`."""
    unswizzled: ClassVar[str] = "Stages are not swizzled."
    """A caption for kernels without swizzled stages."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.config = plan, plan.config

    def accumulators(self) -> Layout:
        """(thread, value) -> m + n * tile M for the sums of a tile. Threads that issue MMAs or FMAs count from 0."""
        raise NotImplementedError

    def instruction(self) -> MmaAtom | None:
        """The MMA atom of the kernel; None if it has none, or distributes operands in another way."""
        return None

    def span(self, operand: InputName) -> int:
        """Swizzle span in bytes of an operand's stages; :data:`CHUNK` without a swizzle."""
        return CHUNK

    def lanes(self) -> list[Lane]:
        """The activities of each group of warps."""
        raise NotImplementedError

    def staging(self) -> Staging | None:
        """How D is staged; None if threads store it from registers."""
        return None


Modes = tuple[tuple[int, int], ...]
"""Pairs of extent and stride. Pairs with extent 1 are dropped in layouts."""


def _thread_values(threads: Modes, values: Modes) -> Layout:
    """A layout (thread, value)."""

    def mode(modes: Modes) -> tuple[tuple[int, ...], tuple[int, ...]]:
        nontrivial = [pair for pair in modes if pair[0] > 1] or [(1, 0)]
        return tuple(extent for extent, _ in nontrivial), tuple(stride for _, stride in nontrivial)

    (t, dt), (v, dv) = mode(threads), mode(values)
    return Layout((t, v), (dt, dv))


def _pipeline(copies: str, multiplies: str, stages: int) -> list[Lane]:
    """The lanes of a kernel in which all warps copy ahead and multiply."""
    fills = [Step(2.0 * step, 2.0 * step + 2, f"{copies}: s{step % stages}", LOAD) for step in range(4)]
    used = [
        Step(2.0 * step, 2.0 * step + 2, f"{multiplies} of s{(step - 1) % stages}", MULTIPLY) for step in range(1, 4)
    ]
    first, last = Step(0.0, 2.0, "wait", WAIT), Step(8.0, 10.0, "D", STORE)
    return [Lane("every warp: copies", fills), Lane("every warp: multiplies", [first, *used, last])]


class WgmmaAnatomy(Anatomy[WgmmaPlan]):
    """WGMMA kernels: a producer, consumers, and a staged D."""

    threads = (
        "T: thread of the consumer warpgroups, from 0. V: one of its accumulators. w: warp. For pingpong, each "
        "warpgroup has its own tile. If warpgroups share K, each has accumulators for the whole tile."
    )

    def accumulators(self) -> Layout:
        """Four warps of 16 rows each, with warpgroups below each other; for pingpong, and if warpgroups share K, a
        warpgroup has the whole tile (PTX ISA, "Register fragments for wgmma.mma_async.m64nNk16")."""
        m, n, rows = self.config.tile.m, self.config.tile.n, self.plan.warpgroup_m
        threads = ((4, 2 * m), (8, 1), (4, 16), (m // rows, rows))
        return _thread_values(threads, ((2, m), (2, 8), (n // 8, 8 * m), (rows // SUBTILE_M, 64)))

    def instruction(self) -> MmaAtom | None:
        """The WGMMA atom."""
        accumulator, b = self.config.accumulator.upper(), self.config.b.loaded.name.upper()
        a = b if self.plan.is_mixed else self.config.a.loaded.name.upper()
        n = self.config.tile.n // self.plan.atom_parts
        k = 8 * INSTRUCTION_K_BYTES // self.config.b.loaded.bits
        sources = "RS" if self.plan.multiplies_from_registers else "SS"
        return mma_atom(f"SM90_64x{n}x{k}_{accumulator}{a}{b}_{sources}")

    def span(self, operand: InputName) -> int:
        """Swizzle span in bytes of an operand's stages."""
        return CHUNK if operand == "a" and self.plan.is_unaligned else self.plan.swizzle(operand)

    def lanes(self) -> list[Lane]:
        """A producer, and consumers that share tiles (cooperative) or alternate (pingpong)."""
        stages = self.config.stages
        loads = [Step(float(step), step + 1.0, f"load s{step % stages}", LOAD) for step in range(9)]
        how = "one thread, TMA"
        if x := self.plan.copied:
            how = f"four warps copy {x.upper()}, one thread loads {'B' if x == 'a' else 'A'} by TMA"
        lanes = [Lane(f"producer: {how}", loads)]
        for number in range(self.plan.consumer_warpgroups):
            begins = {1.0: "tile 0", 5.0: "tile 1"}
            if self.config.schedule == "pingpong":
                begins = {3.5: "tile 1"} if number else {1.0: "tile 0", 6.0: "tile 2"}
            steps = [Step(0.0, min(begins), "wait", WAIT)]
            for at, tile in begins.items():
                steps.append(Step(at, at + 2.5, f"MMAs of {tile}", MULTIPLY))
                steps.append(Step(at + 2.5, at + 4, f"D of {tile}", STORE))
            lanes.append(Lane(f"consumer warpgroup {number}", steps))
        return lanes

    def staging(self) -> Staging:
        """The subtiles of a warpgroup."""
        plan = self.plan
        sizes = plan.columns_d, plan.subtile_n, plan.d_buffers
        return Staging(plan.storing_warpgroups, plan.warpgroup_m // SUBTILE_M, *sizes, plan.is_symmetric)


class MmaAnatomy(Anatomy[MmaPlan]):
    """Multistage kernels: every warp copies and multiplies."""

    threads = "T: thread. V: one of its accumulators. w: warp. Further warps, if any, have sums of other slices of K."
    unswizzled = "Stages are not swizzled: rows are copied without realignment, with 16 bytes of padding each."
    _TARGETS: ClassVar[Mapping[str, str]] = {"F64": "SM90", "E4M3": "SM89", "E5M2": "SM89"}
    """Architectures in CUTLASS's names for types of A other than those of SM80."""

    def _groups(self, operand: InputName, extent: int, unit: int) -> tuple[int, Modes]:
        """The distance between the rows of a group of eight, and the positions of groups. 8-bit operands that are not
        K-major are transposed from four rows along K at a time (``Fragments::position``)."""
        matrix = self.config.inputs[operand]
        if matrix.major == "mn" and matrix.loaded.unpacked_bytes == 1:
            return 4 * unit, ((4, unit), (extent // 32, 32 * unit))
        return unit, ((extent // 8, 8 * unit),)

    def accumulators(self) -> Layout:
        """The fragments of warps, which are arranged along M and N."""
        m, n = self.config.tile.m, self.config.tile.n
        along_m, along_n, _ = self.plan.warps
        warp_m, warp_n = m // along_m, n // along_n
        apart = ((along_m, warp_m), (along_n, warp_n * m))
        if self.plan.has_quadpairs:
            threads = ((2, 1), (2, 2 * m), (2, 4), (2, 4 * m), (2, 8))
            return _thread_values((*threads, *apart), ((2, m), (2, 2), (warp_n // 8, 8 * m), (warp_m // 16, 16)))
        row, rows = self._groups("a", warp_m, 1)
        column, columns = self._groups("b", warp_n, m)
        return _thread_values(((4, 2 * column), (8, row), *apart), ((2, column), *rows, *columns))

    def instruction(self) -> MmaAtom | None:
        """The mma.sync atom."""
        config = self.config
        accumulator, a, b = config.accumulator.upper(), config.a.dtype.upper(), config.b.dtype.upper()
        types = f"{accumulator}{a}{b}{accumulator}"
        if self.plan.has_quadpairs:
            majors = ("N" if config.a.major == "mn" else "T") + ("T" if config.b.major == "mn" else "N")
            return mma_atom(f"SM70_8x8x4_{types}_{majors}")
        k = MMA_K_BYTES // config.a.loaded.unpacked_bytes
        return mma_atom(f"{self._TARGETS.get(a, 'SM80')}_16x8x{k}_{types}_TN")

    def span(self, operand: InputName) -> int:
        """Swizzle span in bytes of an operand's stages; :data:`CHUNK` without a swizzle."""
        tile, matrix = self.config.tile, self.config.inputs[operand]
        if self.plan.is_shifted(operand):
            return CHUNK
        extent = tile.k if matrix.major != "mn" else tile.m if operand == "a" else tile.n
        return swizzle_bytes(extent * matrix.loaded.unpacked_bytes)

    def lanes(self) -> list[Lane]:
        """A pipeline of copies and MMAs."""
        return _pipeline("registers" if self.plan.has_quadpairs else "cp.async", "MMAs", self.config.stages)


class SimtAnatomy(Anatomy[SimtPlan]):
    """Simt kernels: threads with fused multiply-adds."""

    threads = "T: thread. V: one of its accumulators. w: warp. A thread has rows and columns in groups of 16 bytes."
    operands = "A and B: each thread reads its rows of A and columns of B from a stage, 16 bytes at a time."
    unswizzled = "Stages are not swizzled: a row holds the values of one K in the accumulator's type, plus 16 bytes."

    def accumulators(self) -> Layout:
        """Each thread has rows and columns in groups of 16 bytes (``SimtGemm::position``)."""
        m, n = self.config.tile.m, self.config.tile.n
        along_m, along_n = self.plan.sides
        rows, columns, most = m // along_m, n // along_n, 16 // self.plan.value_bytes
        gm, gn = min(rows, most), min(columns, most)
        threads = ((2, gm), (8, gn * m), (2, 2 * gm), (along_m // 4, 4 * gm), (along_n // 8, 8 * gn * m))
        values = ((gn, m), (columns // gn, along_n * gn * m), (gm, 1), (rows // gm, along_m * gm))
        return _thread_values(threads, values)

    def lanes(self) -> list[Lane]:
        """A pipeline of copies and FMAs."""
        return _pipeline("registers", "FMAs", self.config.stages)


class GemvAnatomy(Anatomy[GemvPlan]):
    """Gemv kernels: threads load B directly to registers; rows of the MMAs are columns of D."""

    threads = (
        "T: thread. V: one of its accumulators. w: warp. Columns of D are rows of MMAs. Warps along K have sums of the "
        "same elements."
    )
    operands = "A and B: lane l of a warp loads run l mod 4 along K directly from global memory."
    unswizzled = "A and B do not pass through shared memory: threads load them directly to the registers of MMAs."

    def accumulators(self) -> Layout:
        """Columns of D are the rows of MMAs. Warps along K hold partial sums of the same elements, which are added
        (``Gemv::store``)."""
        m, n, vector, warp_n = self.config.tile.m, self.config.tile.n, self.plan.vector, self.plan.warp_n
        columns, step = ((2, 8 * m), m) if self.config.b.major == "k" else ((vector, m), vector * m)
        warps_k = self.plan.threads // 32 // (n // warp_n)
        threads = ((4, 2), (8, step), (n // warp_n, warp_n * m), (warps_k, 0))
        return _thread_values(threads, ((2, 1), columns, (m // MMA_M, MMA_M)))

    def lanes(self) -> list[Lane]:
        """Loads, MMAs and sums."""
        words = [("load A, B", LOAD), ("MMAs", MULTIPLY)] * 2 + [("sums, D", STORE)]
        return [Lane("every warp", [Step(2.0 * at, 2.0 * at + 2, *step) for at, step in enumerate(words)])]


ANATOMIES: Mapping[FamilyName, type[Anatomy[Any]]] = MappingProxyType(
    {"wgmma": WgmmaAnatomy, "mma": MmaAnatomy, "simt": SimtAnatomy, "gemv": GemvAnatomy}
)
"""The anatomy class of each family."""


def anatomy_of(plan: KernelPlan) -> Anatomy[KernelPlan]:
    """The anatomy of a plan's kernel."""
    return ANATOMIES[plan.config.family](plan)
