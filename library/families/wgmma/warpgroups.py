"""The warpgroups of a WGMMA kernel: what each multiplies, and the threads and registers that this takes.

The kernel headers compute the quantities of this folder from the same template arguments and export them; the compiler
refuses a cubin whose constants differ from what stands here.
"""

from __future__ import annotations

from gemmill.library.config.fields import Fields, part
from gemmill.library.config.scales import block_dtype, scale_block
from gemmill.library.dtypes import DTYPES, DTypeName
from gemmill.library.legality.quantities import element_bits, integer

WARPGROUP = 128
"""Threads of a warpgroup."""
INSTRUCTION_K_BYTES = 32
"""Bytes along K that one WGMMA multiplies (PTX ISA, "wgmma.mma_async": K is 16 for 16-bit types)."""
SUBTILE_M = 64
"""Rows of D that a warpgroup stages at a time: the M extent of one WGMMA."""
MAX_PROMOTED_N = 192
"""Most columns of a WGMMA whose sums are promoted."""
MAX_EXCHANGED_PROMOTED_N = 160
"""The same where the CTAs of a cluster exchange sums, for which registers have to be left."""


@part
def is_mixed(fields: Fields) -> bool:
    """Whether A is narrower than B, and upconverted to B's type on its way to the tensor cores."""
    return element_bits(fields, "a") <= 8 and element_bits(fields, "b") == 16


def group_size(fields: Fields) -> int:
    """Elements of narrow A along K that share a scale; 0 where they have none."""
    if fields["a.scale"] == "none" or not is_mixed(fields):
        return 0
    rows, group = scale_block(str(fields["a.scale"]))
    return group if rows == 1 else 0


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
    """Threads of a CTA: the producer warpgroup and the consumers."""
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


def cluster_splits(fields: Fields) -> int:
    """CTAs of a cluster that share K of a tile, and store a share of its columns each."""
    return integer(fields, "scheduler.splits") if fields["scheduler.decomposition"] == "cluster" else 1


def has_block_scales(fields: Fields) -> bool:
    """Whether blocks of A and B have scales."""
    return fields["a.scale"] != "none" and not is_mixed(fields)


def block_scale_dtype(fields: Fields) -> DTypeName | None:
    """The type of these scales in memory; None without them."""
    return block_dtype(str(fields["a.scale"])) if has_block_scales(fields) else None


def multiply_add_chain(fields: Fields) -> int:
    """Multiply-adds by one scale of a block that a warp issues before it yields; 0 without such scales.

    Lengths of 5 to 16 are within a per cent of one another, 4 is slower with two warpgroups (docs/performance).
    """
    return 8 if has_block_scales(fields) else 0


def partial_tile_flags(fields: Fields) -> int:
    """Flags of a cluster tile in the workspace: one for each warpgroup of a cluster that accumulates rows of it."""
    warpgroups = 1 if fields["schedule"] == "pingpong" else consumer_warpgroups(fields)
    return integer(fields, "cluster.m") * integer(fields, "cluster.n") * warpgroups


def partial_tile_bytes(fields: Fields) -> int:
    """Bytes of a cluster tile in the workspace: its accumulators."""
    return partial_tile_flags(fields) * warpgroup_m(fields) * integer(fields, "tile.n") * 4
