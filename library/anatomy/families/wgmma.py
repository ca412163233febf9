"""How WGMMA kernels work: a producer, consumers, staged D."""

from __future__ import annotations

from gemmill.library.anatomy.families.anatomy import (
    LOAD,
    MULTIPLY,
    STORE,
    WAIT,
    Anatomy,
    Lane,
    Staging,
    Step,
    stage_regions,
    thread_values,
)
from gemmill.library.anatomy.memory import Region
from gemmill.library.config.fields import Fields
from gemmill.library.families.wgmma import ring, shared_memory, subtiles, warpgroups
from gemmill.library.launch import LaunchSpec
from gemmill.library.layouts.atoms import MmaAtom, mma_atom
from gemmill.library.layouts.layout import Layout
from gemmill.library.legality.quantities import element_bits, integer


def _accumulators(f: Fields) -> Layout:
    """Four warps of sixteen rows each, and warpgroups below each other; in pingpong, and where warpgroups share K, one
    has the whole tile (PTX ISA, "Register fragments for wgmma.mma_async.m64nNk16")."""
    m, n, rows = integer(f, "tile.m"), integer(f, "tile.n"), warpgroups.warpgroup_m(f)
    threads = ((4, 2 * m), (8, 1), (4, 16), (m // rows, rows))
    return thread_values(threads, ((2, m), (2, 8), (n // 8, 8 * m), (rows // warpgroups.SUBTILE_M, 64)))


def _instruction(f: Fields) -> MmaAtom | None:
    accumulator, b = str(f["accumulator"]).upper(), str(f["b.dtype"]).upper()
    a = b if warpgroups.is_mixed(f) else str(f["a.dtype"]).upper()
    n = integer(f, "tile.n") // warpgroups.atom_parts(f)
    k = 8 * warpgroups.INSTRUCTION_K_BYTES // element_bits(f, "b")
    where = "RS" if warpgroups.multiplies_from_registers(f) else "SS"
    return mma_atom(f"SM90_64x{n}x{k}_{accumulator}{a}{b}_{where}")


def _regions(f: Fields, launch: LaunchSpec, stages: tuple[int, int]) -> list[Region]:
    writers = warpgroups.storing_warpgroups(f)
    d, c = (subtiles.subtile_bytes(f, staged) for staged in (subtiles.stored(f), subtiles.loaded(f)))
    found = [
        Region("D subtiles", writers * shared_memory.d_buffers(f), d),
        Region("C subtiles", writers * subtiles.c_buffers(f), c),
        *stage_regions(f, launch, stages),
        Region("scales of stages", integer(f, "stages"), ring.scale_bytes(f)),
        Region("sums of others, turns", 1, ring.sums_bytes(f)),
    ]
    rest = launch.shared_bytes - sum(region.size_of_all for region in found)
    return [*(region for region in found if region.size_of_all), Region("mbarriers", 1, rest)]


def _lanes(f: Fields) -> list[Lane]:
    stages = integer(f, "stages")
    loads = [Step(float(step), step + 1.0, f"load s{step % stages}", LOAD) for step in range(9)]
    lanes = [Lane("producer: one thread, TMA", loads)]
    for number in range(warpgroups.consumer_warpgroups(f)):
        begins = {1.0: "tile 0", 5.0: "tile 1"}
        if f["schedule"] == "pingpong":
            begins = {3.5: "tile 1"} if number else {1.0: "tile 0", 6.0: "tile 2"}
        steps = [Step(0.0, min(begins), "wait", WAIT)]
        for at, what in begins.items():
            steps.append(Step(at, at + 2.5, f"MMAs of {what}", MULTIPLY))
            steps.append(Step(at + 2.5, at + 4, f"D of {what}", STORE))
        lanes.append(Lane(f"consumer warpgroup {number}", steps))
    return lanes


def _staging(f: Fields) -> Staging:
    down = warpgroups.warpgroup_m(f) // warpgroups.SUBTILE_M
    sizes = subtiles.columns_d(f), subtiles.subtile_n(f), shared_memory.d_buffers(f)
    return Staging(warpgroups.storing_warpgroups(f), down, *sizes)


ANATOMY = Anatomy(
    accumulators=_accumulators,
    instruction=_instruction,
    regions=_regions,
    span=ring.operand_swizzle,
    lanes=_lanes,
    threads="T is a thread of the consumer warpgroups, from 0; V one of its sums; w a warp. In pingpong each warpgroup "
    "has such a tile of its own; where warpgroups share K, each has sums of all of the tile.",
    operands="",
    unswizzled="Stages are not swizzled.",
    staging=_staging,
)
