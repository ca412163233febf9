"""The plan of a WGMMA kernel: warpgroups, registers, stages, subtiles and shared memory.

The kernel headers compute the same quantities from the same template arguments and export them. The compiler rejects a
cubin whose constants differ from this plan.

The regions of shared memory are aligned to 1,024 bytes each (the period of the 128-byte swizzle)::

    | D subtiles: consumer warpgroups x buffers | C subtiles | A stages | B stages | scales of stages |
    | sums of slices or of a cluster's CTAs | mbarriers |

A buffer of D also holds a subtile of each matrix that the epilogue writes by TMA, and a buffer of C one of each matrix
that it reads by TMA.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from gemmill.library.config.batchings import GROUPED_EXTENT
from gemmill.library.config.fields import member, part
from gemmill.library.config.model import InputName, MajorCD
from gemmill.library.config.scales import MX_SCALE, dtype_of_groups, scale_block, scale_dtype, scales_sums
from gemmill.library.decompositions.decomposition import decomposition_of
from gemmill.library.dtypes import DTYPES, DTypeName
from gemmill.library.epilogues.parse import LINEAR, is_gated, is_repeatable, pairs_rows, scales_blocks, staged_formats
from gemmill.library.families.kernel_plan import KernelPlan, Region
from gemmill.library.families.wgmma import registers
from gemmill.library.families.wgmma.registers import EpilogueKind
from gemmill.library.legality.quantities import TMA_ALIGN, align_up
from gemmill.library.problem import upconverts_a

WARPGROUP = 128
"""Threads of a warpgroup."""
INSTRUCTION_K_BYTES = 32
"""Bytes along K of one WGMMA (PTX ISA, "wgmma.mma_async": K is 16 for 16-bit types)."""
SUBTILE_M = 64
"""Rows of a subtile of D: the M extent of one WGMMA."""
SKIPPING_ROWS = 256
"""Rows of a tile of which only blocks of 64 rows with rows of a group are multiplied
(emitters/include/gemmill/kernel/wgmma/consumer.cuh)."""
MAX_PROMOTED_N = 192
"""Most columns of a WGMMA with two-level accumulation."""
MAX_EXCHANGED_PROMOTED_N = 160
"""The same in cluster split-K kernels, where exchanging sums needs registers."""
HANDED_BYTES = 128
"""Shared memory of the tiles that the producer of groups hands over (emitters/include/gemmill/scheduler/handed.cuh)."""
MIN_STAGES = 2
MAX_AUTO_STAGES = 16
"""Most stages for ``stages: auto``. More stages would not hide more latency."""
MAX_SCALED_STAGES = 12
"""The same with block scales: each stage needs a named barrier
(emitters/include/gemmill/pipeline/named_barrier.cuh)."""
MAX_SUBTILE_N = 128
"""Most columns of a subtile."""
MAX_STAGED_N = 32
"""The same if matrices of the epilogue are staged too: two matrices then take the shared memory of one, and no stage is
lost. It also holds in cluster split-K kernels, whose receive buffers already take a stage or two."""
MAX_SPLIT_N = 16
"""The same for split f32, of which a stage holds all components: wider subtiles are used only if they cost no stage."""
REWRITTEN_N = 64
"""Most columns of a subtile if the last subtile overlaps the previous one. A row of 16-bit elements is then one swizzle
span. With 128 columns of 8 bits, ptxas spills beside 176 sums."""
FAR_FEWER = 0.6
"""Overlapping subtiles are used if they reduce the number of subtiles to this fraction or less."""
MIN_D_BUFFERS = 1
"""Fewest D buffers of a warpgroup. With one, each subtile is stored before the next is written."""
AUTO_D_BUFFERS = 2
"""D buffers for which ``stages: auto`` leaves room: one is written while the other is stored."""
PRODUCER_REGISTERS = 56
"""Registers of a producer thread after ``setmaxnreg``. With fewer, the producer of a multicasting kernel spills."""
CONSUMER_REGISTERS: Mapping[int, int] = {2: 224, 3: 152, 4: 104}
"""Registers of a consumer thread, by number of consumer warpgroups (PTX ISA, ``setmaxnreg``)."""
NARROW_N, NARROW_K = 32, 128
"""Most columns of tiles of 256 rows of narrow weights with four consumer warpgroups, and the K of their stages."""
SHIFTED_REGISTERS = 8
"""Registers that a producer thread has more, and each of two consumers less, where columns of B are gathered. Without
them, some kernels of 256 columns spill. Where A may have any alignment, a producer thread has twice as many more."""
SHIFTED_BYTES = 16
"""Bytes of a row of a stage beside its elements, if A may have any alignment
(emitters/include/gemmill/copy/unaligned.cuh)."""
SHALLOW_K_BYTES = 64
"""Bytes along K of the shallowest stages."""
SPANS = (128, 64, 32)
"""Swizzle spans in bytes, widest first."""


class Format(NamedTuple):
    """Type and major of C, D or a matrix of the epilogue."""

    dtype: DTypeName
    major: MajorCD

    @property
    def bytes(self) -> int:
        """Size of an element."""
        return DTYPES[self.dtype].unpacked_bytes


class WgmmaPlan(KernelPlan):
    """The plan of a kernel that uses TMA and WGMMA."""

    family = "wgmma"
    archs = ("sm90a",)
    batchings = ("strided", "nested", "array", "grouped", "masked", "kgrouped", "ngrouped", "nmasked")
    rows = ("stored", "gathered")
    symmetries = ("general", "symmetric")

    @member
    def decompositions(self) -> tuple[str, ...]:
        """The decompositions of K that the schedule supports."""
        stream = () if self.config.schedule == "pingpong" else ("stream",)
        return ("tiles", "splitk", *stream, "cluster", "serial", "tree")

    # Operands.

    @part
    def is_mixed(self) -> bool:
        """Whether A is narrower than B, so that the kernel upconverts it to B's type before the MMAs."""
        return upconverts_a(self.config.a.dtype, self.config.b.dtype)

    @part
    def scales_sums(self) -> bool:
        """Whether the scales of a narrow A multiply the sums of each stage: if B is e4m3."""
        return scales_sums(self.config.a.dtype, self.config.b.dtype)

    @member
    def group_size(self) -> int:
        """Elements of a narrow A along K that share a scale; 0 without group scales."""
        scale = self.config.a.scale
        if scale == "none" or not self.is_mixed:
            return 0
        rows, group = scale_block(scale)
        return group if rows == 1 else 0

    @member
    def groups(self) -> int:
        """Groups along K whose scales a stage holds."""
        return max(1, self.config.tile.k // self.group_size) if self.group_size else 0

    @member
    def has_zeros(self) -> bool:
        """Whether groups have zero points."""
        return self.config.a.scale.endswith("z")

    @member
    def group_scale_dtype(self) -> DTypeName:
        """The type of group scales: ue8m0 for e2m1; f32 where they multiply sums; else B's."""
        if self.config.a.scale == MX_SCALE:
            return "ue8m0"
        return dtype_of_groups(self.config.a.dtype, self.config.b.dtype)

    @member
    def has_block_scales(self) -> bool:
        """Whether A and B have block scales."""
        return self.config.a.scale != "none" and not self.is_mixed

    @member
    def block_scale_dtype(self) -> DTypeName | None:
        """The type of the block scales in memory; None without them."""
        return scale_dtype(self.config.a.scale) if self.has_block_scales else None

    @part
    def multiplies_from_registers(self) -> bool:
        """Whether WGMMA reads A from registers: if A is upconverted, has any alignment, or has 32 bits and is not
        K-major."""
        is_wide = self.config.a.major == "mn" and self.config.a.loaded.bits == 32
        return self.is_mixed or self.is_unaligned or is_wide

    @part
    def is_unaligned(self) -> bool:
        """Whether A may have any alignment: producer warps copy it without TMA."""
        return self.config.a.align < TMA_ALIGN

    def transposes(self, operand: InputName) -> bool:
        """Whether the kernel transposes an operand's stages in shared memory. WGMMA reads operands of other than 16
        bits from there K-major only."""
        in_registers = operand == "a" and self.multiplies_from_registers
        matrix = self.config.inputs[operand]
        return matrix.major == "mn" and matrix.loaded.bits != 16 and not in_registers

    # Warpgroups.

    @member
    def slices(self) -> int:
        """Consumer warpgroups that take the stages of a tile in turn: 4 for mixed input in cooperative tiles of 64
        rows, else 1."""
        shared = self.config.schedule == "cooperative" and self.config.tile.m == SUBTILE_M
        return 4 if shared and self.is_mixed else 1

    @member
    def steps(self) -> int:
        """Steps along K in which a warpgroup upconverts a stage: as many as warpgroups share stages, two if four have
        64 rows each, else one."""
        if self.scales_sums or not self.is_mixed:
            return 1
        return self.slices if self.slices > 1 else 2 if self.consumer_warpgroups == 4 else 1

    @member
    def consumer_warpgroups(self) -> int:
        """Warpgroups that issue WGMMAs: those that take stages in turn, else four for 16-bit mixed input in cooperative
        tiles of 256 rows with few columns and deep stages, three for tiles of 192 rows, else two."""
        tile = self.config.tile
        if self.slices > 1 or self.config.schedule != "cooperative":
            return max(2, self.slices)
        upconverts = self.is_mixed and not self.scales_sums
        if upconverts and (tile.m, tile.k) == (4 * SUBTILE_M, NARROW_K) and tile.n <= NARROW_N:
            return 4
        return 3 if tile.m == 3 * SUBTILE_M else 2

    @member
    def storing_warpgroups(self) -> int:
        """Consumer warpgroups that store D: one if they take stages in turn."""
        return 1 if self.slices > 1 else self.consumer_warpgroups

    @member
    def warpgroup_m(self) -> int:
        """Rows of the tile that one consumer warpgroup accumulates."""
        whole = self.config.schedule == "pingpong" or self.slices > 1
        return self.config.tile.m if whole else self.config.tile.m // self.consumer_warpgroups

    @member
    def threads(self) -> int:
        """Threads of a CTA: the producer warpgroup and the consumers."""
        return WARPGROUP * (1 + self.consumer_warpgroups)

    # Registers.

    @member
    def gathered(self) -> InputName | None:
        """The operand of which producer warps copy rows that an index names: B for groups along N, else A."""
        if self.config.scheduler.rows == "stored":
            return None
        return "b" if self.config.scheduler.batching == "ngrouped" else "a"

    @member
    def copied(self) -> InputName | None:
        """The operand that producer warps copy without TMA."""
        return "a" if self.is_unaligned else self.gathered

    @member
    def producer_registers(self) -> int:
        """Registers of a producer thread after ``setmaxnreg``."""
        return PRODUCER_REGISTERS + self._shifted_registers * (2 if self.is_unaligned else 1)

    @member
    def consumer_registers(self) -> int:
        """Registers of a consumer thread after ``setmaxnreg``."""
        return CONSUMER_REGISTERS[self.consumer_warpgroups] - self._shifted_registers

    @member
    def _shifted_registers(self) -> int:
        """Registers that threads of the producer have more than usual."""
        copies = self.gathered == "b" or self.is_unaligned
        return SHIFTED_REGISTERS if copies and self.consumer_warpgroups == 2 else 0

    @member
    def fragment_registers(self) -> int:
        """Registers of a consumer thread for fragments of A, if MMAs read A from registers: those of two stages, or
        two steps of a stage, because the thread loads the next one during the MMAs."""
        if not self.multiplies_from_registers:
            return 0
        depth = self.config.tile.k // self.steps
        return 2 * self.warpgroup_m * depth * self.config.b.loaded.bits // (32 * WARPGROUP)

    @part
    def accumulator_registers(self) -> int:
        """32-bit accumulator registers of a consumer thread; with two-level accumulation those of both levels, with
        serial split-K those of a slice and of all slices."""
        n, bits = self.config.tile.n, DTYPES[self.config.accumulator].bits
        waiting = SUBTILE_M * n // self.atom_parts if self.config.promote and not self.scales_sums else 0
        sets = 2 if self.scales_sums or decomposition_of(self.config).is_serial else 1
        return (self.warpgroup_m * n * sets + waiting) * bits // (32 * WARPGROUP)

    @member
    def atom_parts(self) -> int:
        """Parts of tile N, one for each WGMMA: two if a whole one would not fit with two-level accumulation, else
        one."""
        exchanges = self.config.scheduler.decomposition == "cluster"
        widest = MAX_EXCHANGED_PROMOTED_N if exchanges else MAX_PROMOTED_N
        return 2 if self.config.promote and not self.scales_sums and self.config.tile.n > widest else 1

    @member
    def multiply_add_chain(self) -> int:
        """Multiply-adds by one scale of sums that a warp issues before it yields; 0 without such scales.

        Lengths from 5 to 16 are equally fast to within 1%. A length of 4 is slower with two warpgroups.
        """
        return 8 if self.has_block_scales or self.scales_sums else 0

    # What ptxas leaves to sums.

    @member
    def cluster_ctas(self) -> int:
        """CTAs that share loads."""
        return self.config.cluster.m * self.config.cluster.n

    @member
    def has_expression(self) -> bool:
        """Whether the main kernel evaluates an expression. In split-K kernels the second kernel does."""
        return self.config.epilogue != LINEAR and not self.has_second_kernel

    @part
    def epilogue_kind(self) -> EpilogueKind:
        """The kind of the main kernel's epilogue."""
        if self.has_expression and registers.pairs_rows_alone(self.config.epilogue):
            return "rows"
        if self.has_expression:
            return "many values" if registers.is_demanding(self.config.epilogue) else "expression"
        if self.config.c is not None and not self.has_second_kernel:
            return "c"
        return "plain n" if self.config.d.major == "n" else "plain m"

    @part
    def accumulator_limit(self) -> int:
        """Most accumulator registers that a consumer thread may hold."""
        config, consumers, epilogue = self.config, self.consumer_warpgroups, self.epilogue_kind
        decomposition, n = config.scheduler.decomposition, config.tile.n
        narrow = self.stored_d.bytes == 1
        plain = epilogue == "plain n" and not narrow
        if config.promote and (config.epilogue == LINEAR or self._gates_few_values):
            shared = registers.PROMOTED_SHARED_LIMIT.get(decomposition, registers.PROMOTED_LIMIT)
            return (registers.PROMOTED_LIMIT if plain and self._has_room_for_shares else shared)[consumers]
        if decomposition_of(config).is_serial:
            return registers.SERIAL_LIMIT[epilogue].get(consumers, 0)
        limits = [registers.ACCUMULATOR_LIMIT[epilogue][consumers]]
        if narrow:
            limits.append(registers.NARROW_D_LIMIT.get((consumers, config.d.major), limits[0]))
        if n % 16:
            limits.append(registers.ODD_LIMIT)
        if self.transposes_for_masked_groups:
            limits.append(registers.MASKED_TRANSPOSED_LIMIT)
        if self.has_expression and self.multiplies_from_registers:
            matrices, _ = registers.read_in_place(config.epilogue)
            limits[0] -= registers.BESIDE_FRAGMENTS * (matrices > 0)
        if scales_blocks(config.epilogue) and not is_gated(config.epilogue) and not config.promote:
            limits.append(registers.QUANTISED_LIMIT[consumers])
        shallow = config.tile.k * config.a.loaded.unpacked_bytes <= SHALLOW_K_BYTES
        limits += self._limits_of_shared_k(plain, shallow, limits[0])
        if config.schedule == "cooperative" and shallow:
            limits.append(registers.SHALLOW_LIMIT)
        if config.schedule == "cooperative" and self.is_symmetric:
            limits.append(registers.SYMMETRIC_LIMIT)
        return min(limits)

    @part
    def _gates_few_values(self) -> bool:
        """Whether the epilogue has few live values beside sums in two levels: a gate and few vectors; without scales of
        blocks, also neither matrices nor outputs other than D."""
        epilogue, decomposition = self.config.epilogue, self.config.scheduler.decomposition
        if not is_gated(epilogue) or decomposition != "tiles" or self.epilogue_kind != "expression":
            return False
        vectors = registers.vectors_beside_blocks(epilogue)
        if scales_blocks(epilogue):
            return vectors <= (0 if self.pairs_tiles else registers.MOST_BESIDE_TWO_LEVELS)
        vectors += registers.holds_many_beside_scalars(epilogue)
        return vectors <= registers.MOST_BESIDE_GATE and is_repeatable(epilogue)

    @part
    def pairs_tiles(self) -> bool:
        """Whether CTAs of a cooperative cluster have two tiles of a group of rows, or of two columns. Values for this
        live from tile to tile."""
        cluster, scheduler = self.config.cluster, self.config.scheduler
        is_pair = (cluster.m, cluster.n) == (2, 1) and self.config.schedule == "cooperative"
        return is_pair and scheduler.batching in ("grouped", "masked")

    def _limits_of_shared_k(self, plain: bool, shallow: bool, otherwise: int) -> list[int]:
        """The additional limits of kernels whose CTAs share K."""
        config, consumers, n = self.config, self.consumer_warpgroups, self.config.tile.n
        match config.scheduler.decomposition:
            case "cluster":  # only mixed input has four consumers, and it is rejected here
                return [registers.CLUSTER_LIMIT.get((consumers, plain), otherwise)]
            case "stream":
                integers = config.accumulator == "s32"
                costly = {"odd": n % 16, "cluster": self.cluster_ctas > 2, "shallow": shallow, "integer": integers}
                costs = sum(registers.STREAM_COSTS[name] for name in costly if costly[name])
                return [registers.STREAM_LIMIT.get((consumers, plain), otherwise) - costs]
        return []

    @part
    def _has_room_for_shares(self) -> bool:
        """Whether a stream-K kernel meets the conditions under which ``PROMOTED_SHARED_LIMIT`` does not apply."""
        config = self.config
        return (
            config.scheduler.decomposition == "stream"
            and self.has_block_scales
            and config.tile.m == 128
            and self.cluster_ctas <= 2
            and config.a.major == config.b.major == "k"
            and config.d.type.unpacked_bytes == 2
        )

    @member
    def transposes_for_masked_groups(self) -> bool:
        """Whether B is transposed, groups are masked and D has 32 bits."""
        wide = self.stored_d.bytes == 4
        return wide and self.config.scheduler.batching == "masked" and self.transposes("b")

    # K shared among CTAs.

    @member
    def has_second_kernel(self) -> bool:
        """Whether the main kernel stores partial sums, which a second kernel adds up."""
        return decomposition_of(self.config).has_second_kernel

    @member
    def partial_dtype(self) -> DTypeName:
        """The type of partial sums."""
        return "s32" if self.config.accumulator == "s32" else "f32"

    @member
    def cluster_splits(self) -> int:
        """CTAs of a cluster that share the K of a tile. Each stores a share of its columns."""
        scheduler = self.config.scheduler
        return scheduler.splits if scheduler.decomposition == "cluster" else 1

    @member
    def partial_tile_flags(self) -> int:
        """Flags of a cluster tile in the workspace: one for each consumer warpgroup of the cluster that accumulates a
        part of the tile."""
        warpgroups = 1 if self.config.schedule == "pingpong" else self.consumer_warpgroups
        return self.config.cluster.m * self.config.cluster.n * warpgroups

    @member
    def partial_tile_bytes(self) -> int:
        """Bytes of a cluster tile in the workspace: its accumulators."""
        return self.partial_tile_flags * self.warpgroup_m * self.config.tile.n * 4

    # Stages.

    def swizzle(self, operand: InputName) -> int:
        """Swizzle span in bytes of the stages of A or B; 16 means none."""
        tile, matrix = self.config.tile, self.config.inputs[operand]
        extent = tile.k if matrix.major != "mn" else tile.m if operand == "a" else tile.n
        return swizzle_bytes(extent * matrix.loaded.bits // 8)

    @part
    def stage_bytes(self) -> tuple[int, int]:
        """Bytes of one stage of A and of B, with all components of split f32. A stage that is transposed, but not in
        place, counts twice. Rows of an A of any alignment are padded."""
        tile, a, b = self.config.tile, self.config.a, self.config.b
        bytes_a = tile.m * tile.k * a.loaded.bits // 8 * a.type.components * (2 if self._is_copied("a") else 1)
        if self.is_unaligned:
            bytes_a = align_up(bytes_a + SHIFTED_BYTES * (tile.m if a.major == "k" else tile.k), 1024)
        return (
            bytes_a,
            tile.n * tile.k * b.loaded.bits // 8 * b.type.components * (2 if self._is_copied("b") else 1),
        )

    def _is_copied(self, operand: InputName) -> bool:
        """Whether an operand is transposed to other memory: not in place, because its panels are not as deep along K as
        they are wide."""
        depth = self.config.tile.k * self.config.inputs[operand].loaded.bits // 8
        return self.transposes(operand) and depth != self.swizzle(operand)

    @member
    def scale_bytes(self) -> int:
        """Bytes of the scales of one stage.

        Block scales: one f32 for each row of A's tile, and four for B's blocks of columns. Group scales of a narrow A:
        one value for each row and group, and as many zero points if there are any.
        """
        m = self.config.tile.m
        if self.is_mixed:
            return m * self.groups * DTYPES[self.group_scale_dtype].bytes * (2 if self.has_zeros else 1)
        return (m + 4) * 4 if self.has_block_scales else 0

    @part
    def bytes_per_stage(self) -> int:
        """Shared memory of a stage: A, B, scales and mbarriers."""
        mbarriers = 3 if self.transposes("a") or self.transposes("b") else 2
        return sum(self.stage_bytes) + self.scale_bytes + 8 * mbarriers

    @member
    def max_auto_stages(self) -> int:
        """Most stages for ``stages: auto``."""
        return MAX_SCALED_STAGES if self.has_block_scales else MAX_AUTO_STAGES

    # Subtiles of D, and of what its epilogue reads and writes by TMA.

    @member
    def stored_c(self) -> Format | None:
        """Type and major of the C that the main kernel reads. None without C and in split-K kernels, whose second
        kernel reads it."""
        c = None if self.has_second_kernel else self.config.c
        return None if c is None else Format(c.dtype, c.major)

    @member
    def stored_d(self) -> Format:
        """Type and major of what the main kernel stores: D, or partial sums in split-K kernels."""
        dtype = self.partial_dtype if self.has_second_kernel else self.config.d.dtype
        return Format(dtype, self.config.d.major)

    @member
    def _matrices(self) -> tuple[tuple[Format, ...], tuple[Format, ...]]:
        """The matrices that the main kernel's epilogue reads and writes by TMA. Split-K kernels have none: the second
        kernel applies the epilogue."""
        read, written = ((), ()) if self.has_second_kernel else staged_formats(self.config.epilogue)
        return tuple(Format(*fields) for fields in read), tuple(Format(*fields) for fields in written)

    @member
    def loaded(self) -> tuple[Format, ...]:
        """The matrices in a buffer of C: C, if there is one, and those that the epilogue reads by TMA."""
        return (*((self.stored_c,) if self.stored_c else ()), *self._matrices[0])

    @member
    def is_symmetric(self) -> bool:
        """Whether each tile below the diagonal is stored above it too."""
        return self.config.scheduler.symmetry == "symmetric"

    @member
    def stored(self) -> tuple[Format, ...]:
        """The matrices in a buffer of D: D, its mirror if it is symmetric, and those that the epilogue writes by
        TMA."""
        mirror = (Format(self.stored_d.dtype, "m"),) if self.is_symmetric else ()
        return (self.stored_d, *mirror, *self._matrices[1])

    @member
    def subtile_rows(self) -> int:
        """Rows of D in a subtile: those of a WGMMA, or half of them if the epilogue pairs rows."""
        return SUBTILE_M // (2 if pairs_rows(self.config.epilogue) else 1)

    @member
    def columns_d(self) -> int:
        """Columns of D that a CTA stores of a tile. A gated epilogue computes one from two columns of sums."""
        return self.config.tile.n // (2 if is_gated(self.config.epilogue) else 1) // self.cluster_splits

    @part
    def subtile_n(self) -> int:
        """Columns of the subtiles in which a warpgroup stages D.

        An n-major D has no bank conflicts if its rows are a swizzle span or an odd multiple of 16 bytes long. An
        m-major D is always swizzled, and its subtiles have at most 8 KiB. Handing a subtile to TMA takes some 300
        clocks, whatever its width. If only narrow widths divide the tile, wider subtiles are used unless they cost a
        stage. The last one then begins earlier, and writes the columns that it shares with the previous one a second
        time.
        """
        n = self.dividing_n
        if self.is_symmetric or self.loaded or not is_repeatable(self.config.epilogue):
            return n
        wider = _wider_n(self.columns_d, n, self.stored_d)
        return next((x for x in wider if self._depths(x) == self._depths(n)), n)

    @part
    def dividing_n(self) -> int:
        """The widest subtiles that divide the columns of D and suit all staged matrices.

        Rows of 8 columns of 16 bits would not fill a sector of L2. A plain D then has whole swizzle spans instead, even
        if they do not divide its columns or cost a stage. Rows of 8 columns of 8 bits are not legal. Subtiles of a
        symmetric D are square.
        """
        if self.is_symmetric:
            return SUBTILE_M
        exchanges, columns = self.cluster_splits > 1, self.columns_d
        most = MAX_STAGED_N if any(self._matrices) or exchanges else MAX_SUBTILE_N
        most = MAX_SPLIT_N if self.config.a.type.component else most
        n = _dividing_n(columns, most, *self.loaded, *self.stored)
        narrow = n == 8 and self.stored_d.bytes == 2 and self.stored_d.major == "n"
        rewrites = self.config.epilogue == LINEAR and not self.loaded and not exchanges
        return REWRITTEN_N if narrow and rewrites and columns > REWRITTEN_N else n

    def subtile_swizzle(self, staged: Format) -> int:
        """Swizzle span in bytes of a subtile; 16 means none."""
        if staged.major == "m":
            return self._column_bytes(staged)
        row = self.subtile_n * staged.bytes
        return row if row in SPANS else 16

    def subtile_box(self, staged: Format) -> tuple[int, int]:
        """TMA box of a subtile in elements: contiguous, strided. An m-major f32 subtile of 64 rows has two boxes."""
        if staged.major == "m":
            return self._column_bytes(staged) // staged.bytes, self.subtile_n
        return self.subtile_n, self.subtile_rows

    def _column_bytes(self, staged: Format) -> int:
        """Bytes of a column of a panel of an m-major subtile."""
        return min(128, self.subtile_rows * staged.bytes)

    def _subtile_bytes(self, n: int, staged: tuple[Format, ...]) -> int:
        """Bytes of one subtile of n columns of each of several matrices."""
        return sum(align_up(self.subtile_rows * n * matrix.bytes, 1024) for matrix in staged)

    @part
    def subtiles(self) -> int:
        """Subtiles of a tile that a warpgroup stores."""
        return self.warpgroup_m // SUBTILE_M * -(-self.columns_d // self.subtile_n)

    @member
    def c_buffers(self) -> int:
        """Buffers of C for each warpgroup. Each also holds the matrices that the epilogue reads by TMA."""
        return min(2, self.subtiles) if self.loaded else 0

    @member
    def d_buffers(self) -> int:
        """Buffers of D for each warpgroup: as many as fit beside the stages, up to two or all subtiles of a tile."""
        free_bytes = self._stages_room - self.config.stages * self.bytes_per_stage
        extra_buffers = max(0, free_bytes) // self.bytes_per_d_buffer
        return min(max(AUTO_D_BUFFERS, self.subtiles), MIN_D_BUFFERS + extra_buffers)

    def _depths(self, n: int) -> tuple[int, int]:
        """Stages of a kernel without C, for subtiles of n columns: the most that are possible, and those of ``stages:
        auto``."""
        subtiles_d = self.storing_warpgroups * self._subtile_bytes(n, self.stored)
        room = self.config.target.shared_bytes - self.sums_bytes
        buffers = MIN_D_BUFFERS, self.auto_d_buffers
        fewest, auto = ((room - x * subtiles_d) // self.bytes_per_stage for x in buffers)
        return fewest, min(auto, self.max_auto_stages)

    # Shared memory.

    @part
    def sums_bytes(self) -> int:
        """Shared memory for the sums of other warpgroups and CTAs, for pingpong's two mbarriers, and for the tiles that
        the producer of groups of rows or columns hands over."""
        turns = 2 if self.config.schedule == "pingpong" else 0
        sums = (self.slices - 1) * self.config.tile.m * self.config.tile.n * 4
        in_groups = GROUPED_EXTENT.get(self.config.scheduler.batching) in ("m", "n")
        hands = in_groups and self.gathered is None and self.config.epilogue == LINEAR
        return sums + self._cluster_sums_bytes + 8 * turns + (HANDED_BYTES if hands else 0)

    @member
    def _cluster_sums_bytes(self) -> int:
        """Shared memory for the sums that the other CTAs of a cluster send, with two mbarriers for each warpgroup."""
        parts = self.cluster_splits
        share = self.warpgroup_m * self.config.tile.n * 4 // parts
        return self.consumer_warpgroups * ((parts - 1) * share + 16) if parts > 1 else 0

    @part
    def bytes_per_d_buffer(self) -> int:
        """Shared memory of one buffer of D of all storing warpgroups."""
        return self.storing_warpgroups * self._subtile_bytes(self.subtile_n, self.stored)

    @part
    def fixed_bytes(self) -> int:
        """Shared memory beside stages and buffers of D: buffers of C with their mbarriers, and :attr:`sums_bytes`."""
        per_c_buffer = self.storing_warpgroups * (self._subtile_bytes(self.subtile_n, self.loaded) + 8)
        return self.c_buffers * per_c_buffer + self.sums_bytes

    @member
    def _stages_room(self) -> int:
        """Shared memory for stages beside the fewest buffers of D; below 0 if these do not fit."""
        return self.config.target.shared_bytes - self.fixed_bytes - MIN_D_BUFFERS * self.bytes_per_d_buffer

    @member
    def auto_d_buffers(self) -> int:
        """Buffers of D of a warpgroup for which ``stages: auto`` leaves room: one where warpgroups take stages in turn
        and for split f32, which has few stages."""
        return AUTO_D_BUFFERS if self.slices == 1 and not self.config.a.type.component else MIN_D_BUFFERS

    @part
    def auto_stages(self) -> int:
        """Stages for ``stages: auto``: the most that fit beside :attr:`auto_d_buffers`, up to :attr:`max_auto_stages`;
        can be below 2. Where warpgroups take stages in turn, a multiple of their number."""
        room = self._stages_room - (self.auto_d_buffers - MIN_D_BUFFERS) * self.bytes_per_d_buffer
        return max(0, min(self.max_auto_stages, room // self.bytes_per_stage)) // self.slices * self.slices

    @member
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a CTA."""
        stages = self.config.stages * self.bytes_per_stage
        return stages + self.d_buffers * self.bytes_per_d_buffer + self.fixed_bytes

    @member
    def regions(self) -> tuple[Region, ...]:
        """The regions of shared memory in address order."""
        writers, n = self.storing_warpgroups, self.subtile_n
        regions = (
            Region("D subtiles", writers * self.d_buffers, self._subtile_bytes(n, self.stored)),
            Region("C subtiles", writers * self.c_buffers, self._subtile_bytes(n, self.loaded)),
            *super().regions,
            Region("scales of stages", self.config.stages, self.scale_bytes),
            Region("sums of others, turns, handed tiles", 1, self.sums_bytes),
        )
        mbarriers = Region("mbarriers", 1, self.shared_bytes - sum(region.bytes for region in regions))
        return (*(region for region in regions if region.bytes), mbarriers)

    @member
    def resources(self) -> Mapping[str, int]:
        """The resources of a CTA, by name with unit."""
        return {
            **super().resources,
            "registers a producer thread": self.producer_registers,
            "registers a consumer thread": self.consumer_registers,
            "D subtiles a warpgroup": self.d_buffers,
        }


def swizzle_bytes(contiguous_bytes: int) -> int:
    """The widest swizzle span (128, 64 or 32 bytes; 16 means none) that divides a contiguous extent."""
    return next((span for span in SPANS if contiguous_bytes % span == 0), 16)


@cache
def _dividing_n(columns: int, most: int, *staged: Format) -> int:
    """The most columns of a subtile that divide the columns of D that a CTA stores, and suit all staged matrices."""
    widths = range(min(columns, most) // 8 * 8, 8, -8)
    return next((n for n in widths if columns % n == 0 and all(_suits(n, matrix) for matrix in staged)), 8)


@cache
def _wider_n(columns: int, n: int, staged: Format) -> tuple[int, ...]:
    """Widths that need far fewer subtiles than width n, fewest subtiles first.

    An n-major D allows widths that divide its columns, and whole swizzle spans whose last subtile begins at a multiple
    of 16 bytes. TMA writes two lines for each row of other widths.
    """
    widths = []
    for x in range(8, min(columns, REWRITTEN_N) + 1, 8):
        left, spans = -(-columns // x) / -(-columns // n), staged.major == "n" and _is_span(x, staged)
        worth = left <= FAR_FEWER or (left < 1 and spans and not _is_span(n, staged))
        aligned = spans and (columns - x) * staged.bytes % TMA_ALIGN == 0
        if worth and _suits(x, staged) and (staged.major == "m" or aligned or columns % x == 0):
            widths.append(x)
    return tuple(sorted(widths, key=lambda x: (-(-columns // x), x)))


def _suits(n: int, staged: Format) -> bool:
    """Whether a subtile of n columns can be staged: n-major without bank conflicts, m-major in 8 KiB."""
    size = n * staged.bytes
    return size <= 128 if staged.major == "m" else _is_span(n, staged) or size % 32 == 16


def _is_span(n: int, staged: Format) -> bool:
    """Whether a row of n columns is a swizzle span."""
    return n * staged.bytes in SPANS
