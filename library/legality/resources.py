"""Threads, registers and shared memory that a config asks for: the one place where these formulas live.

The kernel headers compute the same quantities from the same template arguments and export them; the compiler refuses a
cubin whose constants differ from what stands here.

Shared memory of a block, each region aligned to 1,024 bytes (the period of the 128-byte swizzle)::

    | D subtiles: consumer warpgroups x buffers | C subtiles | A stages | B stages | scales of stages |
    | sums of slices or of a cluster's blocks | mbarriers |

A subtile of D is followed by those of the matrices that an epilogue writes by TMA beside it, one of C by those that it
reads.
"""

from __future__ import annotations

from functools import cache

from gemmill.library.arch import ARCHS
from gemmill.library.config.fields import Fields, part
from gemmill.library.dtypes import DTYPES, DTypeName
from gemmill.library.epilogues.parse import LINEAR, is_gated, is_repeatable, staged_formats

WARPGROUP = 128
"""Threads of a warpgroup."""
SM_REGISTERS = 65536
"""Registers of an SM (CUDA Programming Guide, Compute Capabilities)."""
INSTRUCTION_K_BYTES = 32
"""Bytes along K that one WGMMA multiplies (PTX ISA, "wgmma.mma_async": K is 16 for 16-bit types)."""
TMA_ALIGN = 16
"""Bytes that TMA needs base addresses and strides to be a multiple of."""
SUBTILE_M = 64
"""Rows of D that a warpgroup stages at a time: the M extent of one WGMMA."""
MAX_AUTO_STAGES = 16
"""Deepest pipeline that ``stages: auto`` asks for; more hides no further latency."""
MAX_SCALED_STAGES = 12
"""The same with block scales: named barriers for stages (emitters/include/gemmill/pipeline/named_barrier.cuh)."""
MAX_SUBTILE_N = 128
"""Most columns of a subtile."""
MAX_STAGED_N = 32
"""The same where an epilogue's matrices are staged as well: two matrices then take the shared memory of one, and cost
no stage. And where the CTAs of a cluster exchange sums, for which a stage or two have to go already."""
MAX_PROMOTED_N = 192
"""Most columns of a WGMMA whose sums are promoted."""
MAX_EXCHANGED_PROMOTED_N = 160
"""The same where the CTAs of a cluster exchange sums, for which registers have to be left."""
REWRITTEN_N = 64
"""Most columns of a subtile where the last one overlaps the one before: a row of 16-bit elements is a swizzle span, and
ptxas spills of 128 of 8 bits beside 176 sums."""
FAR_FEWER = 0.6
"""What wider subtiles, of which the last overlaps the one before, have to leave of their number to be worth it."""
MIN_D_BUFFERS = 1
"""Fewest D subtiles of a warpgroup: with one, each is stored before the next is written."""
AUTO_D_BUFFERS = 2
"""Those that ``stages: auto`` leaves room for: one is written while another is stored."""


def integer(fields: Fields, name: str) -> int:
    """An integer field."""
    value = fields[name]
    assert isinstance(value, int), f"{name} is {value!r}, not an integer"
    return value


def dtype_bytes(dtype: str) -> int:
    """Bytes of one element in shared memory; 0 for an absent C's ``none``."""
    return 0 if dtype == "none" else max(8, DTYPES[dtype].bits) // 8


def element_bytes(fields: Fields, operand: str) -> int:
    """Bytes of one element of an operand in shared memory, packed ones unpacked; 0 for an absent C."""
    return dtype_bytes(str(fields[f"{operand}.dtype"]))


def align_up(value: int, multiple: int) -> int:
    """The least multiple of ``multiple`` that is not below ``value``."""
    return -(-value // multiple) * multiple


def element_bits(fields: Fields, operand: str) -> int:
    """Bits of one element of A or B in memory and in its stages."""
    return DTYPES[str(fields[f"{operand}.dtype"])].bits


@part
def is_mixed(fields: Fields) -> bool:
    """Whether A is narrower than B, and upconverted to B's type on its way to the tensor cores."""
    return element_bits(fields, "a") <= 8 and element_bits(fields, "b") == 16


def group_size(fields: Fields) -> int:
    """Elements of narrow A along K that share a scale; 0 where they have none."""
    rows, _, group = str(fields["a.scale"]).partition("x")
    return int(group.removesuffix("z")) if rows == "1" and is_mixed(fields) else 0


def groups(fields: Fields) -> int:
    """Groups along K whose scales a stage holds."""
    group = group_size(fields)
    return max(1, integer(fields, "tile.k") // group) if group else 0


def has_zeros(fields: Fields) -> bool:
    """Whether groups have zero points."""
    return str(fields["a.scale"]).endswith("z")


@part
def multiplies_from_registers(fields: Fields) -> bool:
    """Whether WGMMA takes A from registers: a narrow one, upconverted, and one of 32 bits that is not K-major."""
    return is_mixed(fields) or (fields["a.major"] == "mn" and element_bits(fields, "a") == 32)


def transposes(fields: Fields, operand: str) -> bool:
    """Whether an operand's stages are transposed in shared memory, from where WGMMA reads all but 16-bit ones K-major
    alone."""
    in_registers = operand == "a" and multiplies_from_registers(fields)
    return fields[f"{operand}.major"] == "mn" and element_bits(fields, operand) != 16 and not in_registers


def slices(fields: Fields) -> int:
    """Parts of a stage's K that consumer warpgroups multiply each for itself: 4 where they share 64 rows."""
    shared = fields["schedule"] == "cooperative" and fields["tile.m"] == SUBTILE_M
    return 4 if shared and is_mixed(fields) else 1


def storing_warpgroups(fields: Fields) -> int:
    """Consumer warpgroups that store D: one where they share its rows."""
    return 1 if slices(fields) > 1 else consumer_warpgroups(fields)


def fragment_registers(fields: Fields) -> int:
    """Registers of a consumer thread for A, where MMAs read it there: of the stage they read and of the next."""
    if not multiplies_from_registers(fields):
        return 0
    bits = element_bits(fields, "b")
    return 2 * warpgroup_m(fields) * (integer(fields, "tile.k") // slices(fields)) * bits // (32 * WARPGROUP)


def consumer_warpgroups(fields: Fields) -> int:
    """Warpgroups that issue WGMMAs: two, three sharing a tile of 192 rows, or as many as share the K of its stages."""
    if slices(fields) > 1:
        return slices(fields)
    return 3 if fields["schedule"] == "cooperative" and fields["tile.m"] == 192 else 2


def warpgroup_m(fields: Fields) -> int:
    """Rows of the tile that one consumer warpgroup accumulates."""
    tile_m = integer(fields, "tile.m")
    whole = fields["schedule"] == "pingpong" or slices(fields) > 1
    return tile_m if whole else tile_m // consumer_warpgroups(fields)


def threads(fields: Fields) -> int:
    """Threads of a block: the producer warpgroup and the consumers."""
    return WARPGROUP * (1 + consumer_warpgroups(fields))


def register_budget(fields: Fields) -> tuple[int, int]:
    """Registers a thread of the producer and of a consumer holds after ``setmaxnreg`` (PTX ISA, ``setmaxnreg``).

    With fewer than 56 the producer of a multicasting kernel spills.
    """
    return 56, {2: 224, 3: 152, 4: 104}[consumer_warpgroups(fields)]


@part
def accumulator_registers(fields: Fields) -> int:
    """32-bit accumulator registers of a consumer thread, those of the sums that wait for promotion included."""
    n, bits = integer(fields, "tile.n"), DTYPES[str(fields["accumulator"])].bits
    waiting = SUBTILE_M * n // atom_parts(fields) if fields["promote"] else 0
    return (warpgroup_m(fields) * n + waiting) * bits // (32 * WARPGROUP)


def atom_parts(fields: Fields) -> int:
    """Parts of tile N that one WGMMA each multiplies: two where sums are promoted and a whole one would not fit."""
    exchanges = fields["scheduler.decomposition"] == "cluster"
    widest = MAX_EXCHANGED_PROMOTED_N if exchanges else MAX_PROMOTED_N
    return 2 if fields["promote"] and integer(fields, "tile.n") > widest else 1


def swizzle_bytes(contiguous_bytes: int) -> int:
    """The widest swizzle span (128, 64, 32; 16 means none) that divides a contiguous extent."""
    return next((span for span in (128, 64, 32) if contiguous_bytes % span == 0), 16)


def operand_swizzle(fields: Fields, operand: str) -> int:
    """Swizzle span in bytes of A's or B's stages."""
    mn = "tile.m" if operand == "a" else "tile.n"
    extent = mn if fields[f"{operand}.major"] == "mn" else "tile.k"
    return swizzle_bytes(integer(fields, extent) * element_bits(fields, operand) // 8)


@part
def stage_bytes(fields: Fields) -> tuple[int, int]:
    """Bytes of one stage of A and of B; one that is not transposed in its place lies there twice."""
    m, n, k = (integer(fields, f"tile.{extent}") for extent in "mnk")
    return (
        m * k * element_bits(fields, "a") // 8 * (2 if _is_copied(fields, "a") else 1),
        n * k * element_bits(fields, "b") // 8 * (2 if _is_copied(fields, "b") else 1),
    )


def _is_copied(fields: Fields, operand: str) -> bool:
    """Whether an operand is transposed to another place: its panels are not as deep along K as they are wide."""
    depth = integer(fields, "tile.k") * element_bits(fields, operand) // 8
    return transposes(fields, operand) and depth != operand_swizzle(fields, operand)


def cluster_parts(fields: Fields) -> int:
    """Blocks of a cluster that share K of a tile, and store a share of its columns each."""
    return integer(fields, "scheduler.splits") if fields["scheduler.decomposition"] == "cluster" else 1


def columns_d(fields: Fields) -> int:
    """Columns of D that a block stores of a tile: a gated epilogue makes one of two."""
    return integer(fields, "tile.n") // (2 if is_gated(str(fields["epilogue"])) else 1) // cluster_parts(fields)


def stored_dtype(fields: Fields, operand: str) -> str:
    """The dtype of C or D as the main kernel sees it: split kernels store partial sums, and take no C."""
    if fields["scheduler.decomposition"] == "split":
        return "none" if operand == "c" else partial_dtype(fields)
    return str(fields[f"{operand}.dtype"])


def partial_dtype(fields: Fields) -> DTypeName:
    """The dtype of the partial sums of a split kernel."""
    return "s32" if fields["accumulator"] == "s32" else "f32"


Format = tuple[str, str]
"""Dtype and major of C, D, or an epilogue's matrix."""


def loaded(fields: Fields) -> tuple[Format, ...]:
    """What is staged of C, where there is one, and of the matrices that the epilogue reads by TMA."""
    c = stored_dtype(fields, "c"), str(fields["c.major"])
    return (*((c,) if c[0] != "none" else ()), *_matrices(fields)[0])


def stored(fields: Fields) -> tuple[Format, ...]:
    """What is staged of D, and of the matrices that the epilogue writes by TMA."""
    return ((stored_dtype(fields, "d"), str(fields["d.major"])), *_matrices(fields)[1])


def _matrices(fields: Fields) -> tuple[tuple[Format, ...], tuple[Format, ...]]:
    """The matrices of the main kernel's epilogue; in split kernels the second one applies it."""
    return ((), ()) if fields["scheduler.decomposition"] == "split" else staged_formats(str(fields["epilogue"]))


def subtile_n(fields: Fields) -> int:
    """Columns of the subtiles that a warpgroup stages at a time.

    n-major: a warp accesses rows without bank conflicts if they are a swizzle span or an odd multiple of 16 bytes long.
    m-major: always swizzled; a subtile has at most 8 KiB. Handing one to TMA takes some 300 clocks, however wide it is
    (docs/performance.md): where no such width divides the tile well, subtiles are wider, if that costs no stage, and
    the last one begins earlier and writes anew what it shares with the one before.
    """
    n = dividing_n(fields)
    if loaded(fields) or not is_repeatable(str(fields["epilogue"])):
        return n
    wider = _wider_n(columns_d(fields), n, stored(fields)[0])
    return next((x for x in wider if _depths(fields, x) == _depths(fields, n)), n)


def dividing_n(fields: Fields) -> int:
    """The widest subtiles that divide D and suit all that is staged. Rows of 8 columns of 16 bits would fill no sector
    of L2: a plain D has whole swizzle spans then, though they divide it no better, and may cost a stage. (8 columns of
    8 bits are not the 16 bytes at whose multiples TMA stores.)"""
    exchanges, columns = cluster_parts(fields) > 1, columns_d(fields)
    most = MAX_STAGED_N if any(_matrices(fields)) or exchanges else MAX_SUBTILE_N
    n = _dividing_n(columns, most, *loaded(fields), *stored(fields))
    dtype, major = stored(fields)[0]
    narrow = n == 8 and dtype_bytes(dtype) == 2 and major == "n"
    rewrites = fields["epilogue"] == LINEAR and not loaded(fields) and not exchanges
    return REWRITTEN_N if narrow and rewrites and columns > REWRITTEN_N else n


@cache
def _dividing_n(columns: int, most: int, *staged: Format) -> int:
    """The most columns of a subtile that divide those of D that a block stores, and suit all that is staged."""
    widths = range(min(columns, most) // 8 * 8, 8, -8)
    return next((n for n in widths if columns % n == 0 and all(_suits(n, *each) for each in staged)), 8)


@cache
def _wider_n(columns: int, n: int, staged: Format) -> tuple[int, ...]:
    """Columns of which a block's D has far fewer subtiles than of n, the fewest first. n-major, they divide D's or are
    whole swizzle spans, as TMA takes two lines for other rows, and the last one begins at a multiple of 16 bytes."""
    dtype, major = staged
    found = []
    for x in range(8, min(columns, REWRITTEN_N) + 1, 8):
        left, spans = -(-columns // x) / -(-columns // n), major == "n" and _is_span(x, dtype)
        worth = left <= FAR_FEWER or (left < 1 and spans and not _is_span(n, dtype))
        aligned = spans and (columns - x) * dtype_bytes(dtype) % TMA_ALIGN == 0
        if worth and _suits(x, *staged) and (major == "m" or aligned or columns % x == 0):
            found.append(x)
    return tuple(sorted(found, key=lambda x: (-(-columns // x), x)))


def _suits(n: int, dtype: str, major: str) -> bool:
    """Whether subtiles of n columns are staged without bank conflicts, n-major, or in 8 KiB, m-major."""
    size = n * dtype_bytes(dtype)
    return size <= 128 if major == "m" else _is_span(n, dtype) or size % 32 == 16


def _is_span(n: int, dtype: str) -> bool:
    """Whether a row of n columns is a swizzle span."""
    return n * dtype_bytes(dtype) in (128, 64, 32)


def column_bytes(dtype: str) -> int:
    """Bytes of a column of a panel of an m-major subtile."""
    return min(128, SUBTILE_M * dtype_bytes(dtype))


def subtile_swizzle(fields: Fields, staged: Format) -> int:
    """Swizzle span in bytes of a subtile; 16 means none."""
    dtype, major = staged
    if major == "m":
        return column_bytes(dtype)
    row = subtile_n(fields) * dtype_bytes(dtype)
    return row if row in (128, 64, 32) else 16


def subtile_box(fields: Fields, staged: Format) -> tuple[int, int]:
    """TMA box of a subtile in elements: contiguous, strided. m-major f32 takes two boxes a subtile."""
    dtype, major = staged
    if major == "m":
        return column_bytes(dtype) // dtype_bytes(dtype), subtile_n(fields)
    return subtile_n(fields), SUBTILE_M


def subtile_bytes(fields: Fields, staged: tuple[Format, ...]) -> int:
    """Bytes of one subtile of each of several matrices."""
    return _subtile_bytes(subtile_n(fields), staged)


def _subtile_bytes(n: int, staged: tuple[Format, ...]) -> int:
    return sum(align_up(SUBTILE_M * n * dtype_bytes(dtype), 1024) for dtype, _ in staged)


@part
def subtiles(fields: Fields) -> int:
    """Subtiles that a warpgroup stores of a tile."""
    return warpgroup_m(fields) // SUBTILE_M * -(-columns_d(fields) // subtile_n(fields))


def c_buffers(fields: Fields) -> int:
    """C subtiles a warpgroup has in flight, and as many of each matrix that the epilogue reads by TMA."""
    return min(2, subtiles(fields)) if loaded(fields) else 0


def scale_bytes(fields: Fields) -> int:
    """Bytes of the scales of one stage.

    Of blocks: one f32 for each row of A's tile, and four for B's blocks of columns. Of groups of narrow A: one of B's
    type for each row and group, and as many zero points.
    """
    if is_mixed(fields):
        return integer(fields, "tile.m") * groups(fields) * element_bytes(fields, "b") * (2 if has_zeros(fields) else 1)
    return (integer(fields, "tile.m") + 4) * 4 if has_block_scales(fields) else 0


@part
def bytes_per_stage(fields: Fields) -> int:
    """Shared memory that a stage takes: A, B, scales and mbarriers."""
    rings = 3 if transposes(fields, "a") or transposes(fields, "b") else 2
    return sum(stage_bytes(fields)) + scale_bytes(fields) + 8 * rings


@part
def bytes_per_d_buffer(fields: Fields) -> int:
    """Shared memory that a D subtile of every warpgroup that stores takes."""
    return storing_warpgroups(fields) * subtile_bytes(fields, stored(fields))


@part
def fixed_bytes(fields: Fields) -> int:
    """Shared memory beside stages and D subtiles: C subtiles, sums of others, and mbarriers of those and of turns."""
    per_c_buffer = storing_warpgroups(fields) * (subtile_bytes(fields, loaded(fields)) + 8)
    return c_buffers(fields) * per_c_buffer + _sums_bytes(fields)


@part
def _sums_bytes(fields: Fields) -> int:
    """The same without C subtiles and their mbarriers."""
    turns = 2 if fields["schedule"] == "pingpong" else 0
    sums = (slices(fields) - 1) * integer(fields, "tile.m") * integer(fields, "tile.n") * 4
    return sums + _cluster_sums_bytes(fields) + 8 * turns


def _cluster_sums_bytes(fields: Fields) -> int:
    """Sums that the other CTAs of a cluster send of this one's share of a tile, and two mbarriers, by warpgroup."""
    parts = cluster_parts(fields)
    share = warpgroup_m(fields) * integer(fields, "tile.n") * 4 // parts
    return consumer_warpgroups(fields) * ((parts - 1) * share + 16) if parts > 1 else 0


def stages_room(fields: Fields) -> int:
    """Shared memory for stages beside the fewest D subtiles; below 0 where these do not fit."""
    capacity = ARCHS[str(fields["arch"])].shared_bytes
    return capacity - fixed_bytes(fields) - MIN_D_BUFFERS * bytes_per_d_buffer(fields)


def has_block_scales(fields: Fields) -> bool:
    """Whether blocks of A and B have scales."""
    return fields["a.scale"] != "none" and not is_mixed(fields)


def multiply_add_chain(fields: Fields) -> int:
    """Multiply-adds by one scale of a block that a warp issues before it yields; 0 without such scales.

    Lengths of 5 to 16 are within a per cent of one another, 4 is slower with two warpgroups (docs/performance.md).
    """
    return 8 if has_block_scales(fields) else 0


def max_auto_stages(fields: Fields) -> int:
    """Deepest pipeline that ``stages: auto`` asks for."""
    return MAX_SCALED_STAGES if has_block_scales(fields) else MAX_AUTO_STAGES


def auto_stages(fields: Fields) -> int:
    """Stages that ``stages: auto`` stands for: the most that fit beside two D subtiles, up to :func:`max_auto_stages`.

    It may be below 2.
    """
    room = stages_room(fields) - (AUTO_D_BUFFERS - MIN_D_BUFFERS) * bytes_per_d_buffer(fields)
    return max(0, min(max_auto_stages(fields), room // bytes_per_stage(fields)))


def _depths(fields: Fields, n: int) -> tuple[int, int]:
    """Stages of a kernel without C beside the fewest D subtiles of n columns that there are, and those of ``auto``."""
    subtiles_d = storing_warpgroups(fields) * _subtile_bytes(n, stored(fields))
    room = ARCHS[str(fields["arch"])].shared_bytes - _sums_bytes(fields)
    fewest, auto = ((room - x * subtiles_d) // bytes_per_stage(fields) for x in (MIN_D_BUFFERS, AUTO_D_BUFFERS))
    return fewest, min(auto, max_auto_stages(fields))


def d_buffers(fields: Fields) -> int:
    """D subtiles a warpgroup has in flight: as many as the stages leave room for, up to two or all of a tile."""
    spare = stages_room(fields) - integer(fields, "stages") * bytes_per_stage(fields)
    extra = max(0, spare) // bytes_per_d_buffer(fields)
    return min(max(AUTO_D_BUFFERS, subtiles(fields)), MIN_D_BUFFERS + extra)


def shared_bytes(fields: Fields) -> int:
    """Dynamic shared memory of a CTA."""
    stages, buffers = integer(fields, "stages"), d_buffers(fields)
    return stages * bytes_per_stage(fields) + buffers * bytes_per_d_buffer(fields) + fixed_bytes(fields)


def slot_flags(fields: Fields) -> int:
    """Flags of a slot of the workspace: one for each warpgroup of a cluster that accumulates a part of one tile."""
    warpgroups = 1 if fields["schedule"] == "pingpong" else consumer_warpgroups(fields)
    return integer(fields, "cluster.m") * integer(fields, "cluster.n") * warpgroups


def slot_bytes(fields: Fields) -> int:
    """Bytes of a slot of the workspace: the accumulators of a cluster tile."""
    return slot_flags(fields) * warpgroup_m(fields) * integer(fields, "tile.n") * 4


EXCHANGE_STEPS = 4
"""Steps along K that stream-K counts for handing the sums of a tile to another cluster."""
REDUCTION_THREADS = 256
"""Threads of a block of the reduction kernel."""


def reduction_vectors(splits: int) -> int:
    """Vectors that a block of the reduction kernel computes; threads share one where there are many parts."""
    groups = next((groups for most, groups in ((8, 1), (16, 2), (32, 4)) if splits <= most), 8)
    return REDUCTION_THREADS // groups
