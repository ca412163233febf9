"""The rules of WGMMA kernels on what is multiplied: operands, batching, decompositions of K and scales."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from gemmill.library.config.batchings import GROUPED_EXTENT, MASKED, OFFSETS
from gemmill.library.config.domains import one_of
from gemmill.library.config.model import InputName, InputOperand, OutputOperand
from gemmill.library.config.scales import BLOCK_SCALES, MX_SCALE
from gemmill.library.decompositions.decomposition import decomposition_of
from gemmill.library.dtypes import FP8, INT8, SPLIT, SPLIT_PROMOTION
from gemmill.library.epilogues.parse import LINEAR
from gemmill.library.families.shared_rules import Accumulators
from gemmill.library.families.wgmma.wgmma_plan import INSTRUCTION_K_BYTES, SPANS, SUBTILE_M, WgmmaPlan
from gemmill.library.legality.quantities import TMA_ALIGN
from gemmill.library.legality.rule import rule

NARROW = (*INT8, *FP8, "s4", "u4", "e2m1")
"""Types of A that kernels upconvert to the type of B."""
GROUP_SCALES = tuple(f"1x{group}{zeros}" for zeros in ("", "z") for group in (32, 64, 128))
"""Group scales of a narrow A along K, without and with zero points."""
SUM_SCALE = "1x128"
"""Scales that multiply the sums of a stage."""
ACCUMULATORS: Accumulators = MappingProxyType(
    {
        ("bf16", "bf16"): ("f32",),
        ("f16", "f16"): ("f32", "f16"),
        ("tf32", "tf32"): ("f32",),
        **{(name, name): ("f32",) for name in SPLIT},
        **{(a, b): ("f32", "f16") for a in FP8 for b in FP8},
        **{(a, b): ("s32",) for a in INT8 for b in INT8},
        **{(a, b): ("f32",) for a in NARROW for b in ("bf16", "f16")},
        ("s4", "e4m3"): ("f32",),
    }
)
"""Accumulator types by the types of A and B."""
TRANSPOSED_DEPTHS = (64, 128, 256)
"""Supported depths in bytes along K of transposed stages: those that warps can divide among their lanes."""
ALIGNS = (1, 2, 4, 8, 16)
"""Alignments of C and D that the reduction kernel supports. It accesses them without TMA."""
UNALIGNED = ("bf16", "f16", "tf32", *FP8, *INT8)
"""Types of an A that producer warps copy without TMA."""
UNALIGNED_K_BYTES, UNALIGNED_K = (128, 256), 128
"""Bytes along K of a stage of such an A, and its most elements: with more, the rows that a thread copies would begin at
other places within 16 bytes."""
GATHERED_M, GATHERED_ROW, GATHERED_STEP = 128, 128, 16
"""Most rows of a tile whose rows of A are gathered, since none with more was measured; the bytes of a swizzle span,
which divide each in a stage; and the rows that the producer copies at once."""
GATHERED_N = 192
"""Most columns that are gathered beside 8-bit weights if there is an expression. With 256, one kernel spilled."""


_SCALE_PAIRS = ", or ".join(f"{a} and {b}" for a, b in (("none", "none"), *BLOCK_SCALES.values()))
_FIRST_EXTENT = "CUDA driver API, cuTensorMapEncodeTiled: the first extent is contiguous"


@rule("tma-majors", ("a.major", "b.major"), _FIRST_EXTENT, WgmmaPlan)
def majors(plan: WgmmaPlan) -> str | None:
    """A and B must each be contiguous along one extent."""
    return _loose(plan.config.inputs)


@rule("tma-output-majors", ("d.major", "c.major"), _FIRST_EXTENT, WgmmaPlan)
def output_majors(plan: WgmmaPlan) -> str | None:
    """C and D must each be contiguous along one extent."""
    return _loose(plan.config.outputs)


def _loose(operands: Mapping[Any, InputOperand | OutputOperand]) -> str | None:
    """What is wrong with operands of any strides."""
    loose = [name.upper() for name, operand in operands.items() if operand.major == "any"]
    return f"the major of {' and '.join(loose)} is any; TMA needs one contiguous extent" if loose else None


@rule(
    "row-groups",
    ("d.major", "a.major", "b.major", "c.major", "scheduler.batching"),
    "CUDA driver API, cuTensorMapEncodeTiled: strides, and therefore group starts, are multiples of 16 bytes",
    WgmmaPlan,
)
def row_groups(plan: WgmmaPlan) -> str | None:
    """With groups along M D must be n-major, and with groups at offsets A must be K-major and C n-major. With groups
    along N D must be m-major, and with groups at offsets B must be K-major and C m-major."""
    config = plan.config
    batching = config.scheduler.batching
    along = GROUPED_EXTENT.get(batching)
    if along not in ("m", "n"):
        return None
    name: InputName = "a" if along == "m" else "b"
    other = "n" if along == "m" else "m"
    if config.d.major == along:
        return (
            f"D is {along}-major; with {batching} batching it must be {other}-major, because TMA cannot clip an "
            f"{along}-major D at the end of a group"
        )
    contiguous = [name.upper()] * (config.inputs[name].major == "mn") + ["C"] * (config.outputs["c"].major == along)
    if batching in MASKED or not contiguous:
        return None
    subject = f"{' and '.join(contiguous)} {'is' if len(contiguous) == 1 else 'are'}"
    return (
        f"{subject} contiguous along {along.upper()}; with {batching} batching {name.upper()} must be K-major and C "
        f"{other}-major, because a group can begin at any {'row' if along == 'm' else 'column'} but a TMA load only at "
        "a multiple of 16 bytes"
    )


@rule(
    "k-groups",
    ("a.major", "b.major", "scheduler.batching"),
    "CUDA driver API, cuTensorMapEncodeTiled: strides, and therefore group starts, are multiples of 16 bytes",
    WgmmaPlan,
)
def k_groups(plan: WgmmaPlan) -> str | None:
    """With kgrouped batching A and B must be mn-major."""
    config = plan.config
    if config.scheduler.batching != "kgrouped":
        return None
    k_major = [name.upper() for name, operand in config.inputs.items() if operand.major == "k"]
    if not k_major:
        return None
    return (
        f"the major of {' and '.join(k_major)} is k; with kgrouped batching it must be mn, because TMA cannot clip "
        "K-major operands at the end of a group"
    )


@rule(
    "gathered-rows",
    (
        *("scheduler.rows", "scheduler.batching", "cluster.m", "cluster.n", "tile.m", "tile.n", "tile.k"),
        *("schedule", "epilogue", "a.dtype", "a.major", "a.align", "a.scale", "b.dtype", "b.major"),
    ),
    "gemmill: emitters/include/gemmill/copy/gather.cuh",
    WgmmaPlan,
)
def gathered_rows(plan: WgmmaPlan) -> str | None:
    """Rows of A can be gathered with grouped batching if a stage has at most 128 rows of whole swizzle spans, which no
    other CTA reads, A is K-major and as wide as B, its scales are f32, and no stage is transposed. With kgrouped
    batching, K rows of an A of 16 bits can be; with ngrouped batching, columns of B beside a narrow A: at most 192 with
    8 bits and an expression."""
    if not plan.gathered:
        return None
    config, x = plan.config, plan.gathered
    batching, operand, name = config.scheduler.batching, config.inputs[x], x.upper()
    along_k, along_n = batching == "kgrouped", batching == "ngrouped"
    major, peers = "mn" if along_k else "k", "m" if along_n else "n"
    row = GATHERED_ROW if along_k else config.tile.k * operand.type.bits // 8
    shared = getattr(config.cluster, peers)
    for is_wrong, what in (
        (batching not in OFFSETS, f"batching is {batching}; it must be {one_of(OFFSETS)}"),
        (
            operand.major != major,
            f"the major of {name} is {operand.major}; it must be {major} with {batching} batching",
        ),
        (along_k and operand.type.bits != 16, f"A is {operand.dtype}; with kgrouped batching it must have 16 bits"),
        (config.tile.k % GATHERED_STEP != 0, f"tile K is {config.tile.k}; it must be a multiple of {GATHERED_STEP}"),
        (operand.dtype == "tf32", f"{name} is tf32, to which only TMA rounds f32; it must be of another type"),
        (
            x == "a" and config.a.scale not in ("none", "1x128")[: 1 if along_k else 2],
            f"the scale of A is {config.a.scale}; it must be none{'' if along_k else ' or 1x128'}",
        ),
        (
            plan.is_mixed and not along_n,
            f"A is {config.a.dtype} and B is {config.b.dtype}; they must be equally wide",
        ),
        (
            plan.transposes("b"),
            f"B is {config.b.dtype} and mn-major; it must be k-major, because no warp transposes it",
        ),
        (shared > 1, f"cluster.{peers} is {shared}; it must be 1, because each CTA copies its own rows"),
        (
            along_n and config.tile.n > GATHERED_N and config.a.type.bits == 8 and config.epilogue != LINEAR,
            f"tile N is {config.tile.n}; beside {config.a.dtype}, with an expression, it must be at most {GATHERED_N}",
        ),
        (x == "a" and config.tile.m > GATHERED_M, f"tile M is {config.tile.m}; it must be at most {GATHERED_M}"),
        (row % GATHERED_ROW != 0, f"a row of {name}'s tile has {row} bytes; it must have a multiple of {GATHERED_ROW}"),
    ):
        if is_wrong:
            return f"rows is gathered and {what}"
    return None


@rule(
    "symmetric-d",
    (
        *("scheduler.symmetry", "scheduler.raster", "scheduler.decomposition", "scheduler.batching", "epilogue"),
        *("tile.m", "tile.n", "a.dtype", "b.dtype", "c.dtype", "c.major", "d.dtype", "d.major"),
    ),
    "gemmill: emitters/include/gemmill/scheduler/triangle.cuh; a subtile has one TMA box on both sides of the diagonal",
    WgmmaPlan,
)
def symmetric_d(plan: WgmmaPlan) -> str | None:
    """If D is symmetric, A, B and D must have 16 bits, D must be n-major, and the kernel must be data-parallel with
    strided batching, raster m, the linear epilogue and at least 64 columns in a tile. C must have the format of D, and
    tiles are then square: C may be D, and no element may be written before it is read."""
    if not plan.is_symmetric:
        return None
    config = plan.config
    scheduler, tile, c, d = config.scheduler, config.tile, config.c, config.d
    for is_wrong, what in (
        (scheduler.batching != "strided", f"batching is {scheduler.batching}; it must be strided"),
        (scheduler.decomposition != "tiles", f"decomposition is {scheduler.decomposition}; it must be tiles"),
        (scheduler.raster != "m", f"raster is {scheduler.raster}; it must be m"),
        (config.epilogue != LINEAR, f"the epilogue is {config.epilogue}; it must be linear"),
        (d.major != "n", f"D is {d.major}-major; it must be n-major"),
        *(
            (x.type.bits != 16, f"{name} is {x.dtype}; it must have 16 bits")
            for name, x in (("A", config.a), ("B", config.b), ("D", d))
        ),
        (tile.n < SUBTILE_M, f"tile N is {tile.n}; it must be at least {SUBTILE_M}"),
        (
            c is not None and (c.dtype, c.major) != (d.dtype, d.major),
            f"C is {c and c.dtype} and {c and c.major}-major; it must be {d.dtype} and {d.major}-major as D is",
        ),
        (c is not None and tile.m != tile.n, f"the tile is {tile.m}x{tile.n}; with C it must be square"),
    ):
        if is_wrong:
            return f"D is symmetric and {what}"
    return None


@rule(
    "array-panels",
    ("tile.k", "a.major", "b.major", "a.dtype", "b.dtype", "scheduler.batching"),
    "measured on an H200: for a box completely outside a tensor, TMA reads at the start of the tensor",
    WgmmaPlan,
)
def array(plan: WgmmaPlan) -> str | None:
    """With array batching a row of a stage of a K-major operand must be one TMA box of 32, 64 or 128 bytes."""
    config = plan.config
    if config.scheduler.batching != "array":
        return None
    for name, operand in config.inputs.items():
        row = config.tile.k * operand.loaded.unpacked_bytes
        if operand.major == "k" and row not in SPANS:
            return (
                f"a row of {name.upper()}'s tile has {row} bytes; with array batching it must have "
                f"{one_of(SPANS[::-1])} bytes, so that no TMA box lies completely beyond K"
            )
    return None


@rule(
    "array-clusters",
    ("cluster.m", "cluster.n", "scheduler.batching"),
    "measured on an H200: for a box completely outside a tensor, TMA reads at the start of the tensor",
    WgmmaPlan,
)
def descriptor_start(plan: WgmmaPlan) -> str | None:
    """With array batching the cluster must be 1x1."""
    config = plan.config
    if config.scheduler.batching != "array" or config.cluster.m * config.cluster.n == 1:
        return None
    return (
        f"cluster is {config.cluster.m}x{config.cluster.n}; with array batching it must be 1x1, because TMA reads "
        "memory outside the operand for a slice that lies completely beyond K"
    )


@rule(
    "mixed-batching",
    ("scheduler.batching", "a.dtype", "b.dtype"),
    "gemmill: loads of a narrow A support only one stride, and groups along N exist for it alone",
    WgmmaPlan,
)
def mixed_batching(plan: WgmmaPlan) -> str | None:
    """A mixed-input GEMM with a narrow A supports strided batching and groups along N; others no groups along N."""
    config = plan.config
    batching = config.scheduler.batching
    along_n = GROUPED_EXTENT.get(batching) == "n"
    if plan.is_mixed and not along_n and batching != "strided":
        return (
            f"batching is {batching}; kernels that upconvert A ({config.a.dtype} to {config.b.dtype}) support only "
            "strided, ngrouped and nmasked"
        )
    if along_n and not plan.is_mixed:
        return f"batching is {batching}; A is {config.a.dtype}, which must be narrower than B ({config.b.dtype})"
    return None


@rule(
    "mma-majors",
    ("a.major", "b.major", "tile.k", "a.dtype", "b.dtype", "a.align"),
    "PTX ISA, wgmma.mma_async: imm-trans-a and imm-trans-b exist only for .f16 and .bf16; gemmill: stage depths that "
    "the transposing warps support",
    WgmmaPlan,
)
def mma_majors(plan: WgmmaPlan) -> str | None:
    """A narrow A must be K-major; a stage that is transposed in shared memory must be 64, 128 or 256 bytes deep."""
    config = plan.config
    if plan.is_mixed and config.a.major == "mn":
        return f"A is {config.a.dtype} and mn-major; an A narrower than B must be K-major"
    for name, operand in config.inputs.items():
        depth = config.tile.k * operand.loaded.unpacked_bytes
        if plan.transposes(name) and depth not in TRANSPOSED_DEPTHS:
            return (
                f"{name.upper()} is {operand.dtype} and mn-major, so the kernel transposes its stages; tile K is "
                f"{depth} bytes and must be {one_of(TRANSPOSED_DEPTHS)} bytes"
            )
    return None


@rule(
    "tma-alignment",
    ("a.align", "b.align", "d.align", "c.align", "c.dtype", "scheduler.decomposition"),
    "CUDA driver API, cuTensorMapEncodeTiled: globalAddress and globalStrides are multiples of 16 bytes",
    WgmmaPlan,
)
def alignment(plan: WgmmaPlan) -> str | None:
    """Operands that TMA moves must be aligned to 16 bytes: all operands, except for an A that producer warps copy; for
    split-K kernels only A and B."""
    config = plan.config
    wrong = [
        f"{name.upper()} is aligned to {operand.align} bytes"
        for name, operand in (config.inputs if plan.has_second_kernel else config.operands).items()
        if operand.align != TMA_ALIGN
        and not (name == "c" and config.c is None)
        and not (name == "a" and plan.is_unaligned)
    ]
    return f"{' and '.join(wrong)}; TMA needs an alignment of {TMA_ALIGN} bytes" if wrong else None


@rule(
    "unaligned-a",
    ("a.align", "a.dtype", "b.dtype", "b.major"),
    "gemmill: emitters/include/gemmill/copy/unaligned.cuh",
    WgmmaPlan,
)
def unaligned_a(plan: WgmmaPlan) -> str | None:
    """An A that producer warps copy without TMA must be aligned to one element of 8, 16 or 32 bits. B must have as many
    bits and, unless they are 16, be K-major."""
    if not plan.is_unaligned:
        return None
    a, b = plan.config.a, plan.config.b
    bits = a.type.bits
    return _fault_of_copied(
        plan,
        (a.dtype not in UNALIGNED, f"A is {a.dtype}; it must be {one_of(UNALIGNED)}"),
        (b.type.bits != bits, f"B is {b.dtype}; it must have {bits} bits, as A has"),
        (8 * a.align != bits, f"the alignment of A must be {one_of((bits // 8, TMA_ALIGN))}"),
        (b.major == "mn" and bits != 16, f"B is {b.dtype} and mn-major; it must be k-major: no warp transposes it"),
    )


@rule(
    "unaligned-tile",
    (
        *("a.align", "a.dtype", "a.major", "tile.m", "tile.k", "cluster.n", "promote"),
        *("scheduler.batching", "scheduler.rows", "scheduler.symmetry", "scheduler.decomposition"),
    ),
    "gemmill: emitters/include/gemmill/copy/unaligned.cuh",
    WgmmaPlan,
)
def unaligned_tile(plan: WgmmaPlan) -> str | None:
    """If producer warps copy A without TMA, tiles must have 64, 128 or, with a K-major A, 256 rows, and along K 128 or
    256 bytes, at most 128 elements. No other CTA may share A, batching must be strided, and the decomposition not
    serial."""
    if not plan.is_unaligned:
        return None
    config, scheduler = plan.config, plan.config.scheduler
    rows = (64, 128, 256)[: 3 if config.a.major == "k" else 2]
    depths = sorted({min(8 * size // config.a.type.bits, UNALIGNED_K) for size in UNALIGNED_K_BYTES})
    return _fault_of_copied(
        plan,
        (config.tile.m not in rows, f"tile M is {config.tile.m}; it must be {one_of(rows)}"),
        (config.tile.k not in depths, f"tile K is {config.tile.k}; it must be {one_of(depths)}"),
        (config.cluster.n > 1, f"cluster.n is {config.cluster.n}; it must be 1, because each CTA copies its own rows"),
        (scheduler.batching != "strided", f"batching is {scheduler.batching}; it must be strided"),
        (scheduler.rows != "stored", f"rows is {scheduler.rows}; it must be stored"),
        (scheduler.symmetry != "general", f"symmetry is {scheduler.symmetry}; it must be general"),
        (decomposition_of(config).is_serial, f"decomposition is {scheduler.decomposition}; sums leave it no registers"),
        (config.promote != 0, f"promote is {config.promote}; it must be 0"),
    )


def _fault_of_copied(plan: WgmmaPlan, *faults: tuple[bool, str]) -> str | None:
    """The first fault of a kernel whose producer warps copy A without TMA."""
    what = next((what for is_wrong, what in faults if is_wrong), None)
    return what and f"A is aligned to {plan.config.a.align} bytes, so that producer warps copy it, and {what}"


@rule(
    "reduction-alignment",
    ("d.align", "c.align", "d.dtype", "c.dtype", "scheduler.decomposition"),
    "CUDA Programming Guide, Device Memory Accesses: vectors are aligned to their size",
    WgmmaPlan,
)
def reduction_alignment(plan: WgmmaPlan) -> str | None:
    """C and D of split-K kernels must be aligned to a power of two from one element to 16 bytes."""
    if not plan.has_second_kernel:
        return None
    for name, operand in plan.config.outputs.items():
        if not operand.is_there:
            continue
        allowed = [align for align in ALIGNS if align >= operand.type.unpacked_bytes]
        if operand.align not in allowed:
            return (
                f"{name.upper()} is {operand.dtype} and aligned to {operand.align} bytes; its alignment must be "
                f"{one_of(allowed)}"
            )
    return None


@rule(
    "sums-of-parts",
    ("scheduler.decomposition", "accumulator", "promote"),
    "gemmill: partial sums are added in f32 or s32",
    WgmmaPlan,
)
def sums(plan: WgmmaPlan) -> str | None:
    """Stream-K and cluster split-K kernels must not accumulate in f16; serial split-K kernels must accumulate in f32,
    without two-level accumulation."""
    config = plan.config
    decomposition = config.scheduler.decomposition
    if decomposition_of(config).is_serial:
        if config.promote:
            return f"promote is {config.promote}; {decomposition} kernels add slices of one level: promote must be 0"
        if config.accumulator != "f32":
            return f"accumulator is {config.accumulator}; {decomposition} kernels add slices of K in f32"
    if decomposition in ("stream", "cluster") and config.accumulator == "f16":
        return (
            f"accumulator is f16; {decomposition} kernels add partial sums in the accumulator, which must not be f16: "
            "use splitk"
        )
    return None


@rule(
    "parts-batching",
    ("scheduler.decomposition", "scheduler.batching"),
    "gemmill: available tile schedulers",
    WgmmaPlan,
)
def parts_batching(plan: WgmmaPlan) -> str | None:
    """Kernels with slices of K, and stream-K kernels, support only strided batching."""
    config = plan.config
    decomposition, batching = config.scheduler.decomposition, config.scheduler.batching
    if decomposition == "tiles" or batching == "strided":
        return None
    return f"batching is {batching}; {decomposition} kernels support only strided batching"


@rule(
    "mixed-parts",
    ("scheduler.decomposition", "a.dtype", "b.dtype", "a.major", "a.align"),
    "gemmill: fragments of A leave no registers to add partial sums",
    WgmmaPlan,
)
def mixed_parts(plan: WgmmaPlan) -> str | None:
    """Kernels with a narrow A support only the data-parallel (``tiles``) and split-K (``splitk``, ``tree``)
    decompositions; serial split-K kernels also need a K-major A if it has 32 bits."""
    config = plan.config
    decomposition = config.scheduler.decomposition
    if decomposition_of(config).is_serial and plan.multiplies_from_registers and not plan.is_mixed:
        return (
            f"A is {config.a.dtype} and mn-major, so MMAs read it from registers; {decomposition} kernels need a "
            "K-major A: use splitk"
        )
    if decomposition == "tiles" or plan.has_second_kernel or not plan.is_mixed:
        return None
    return (
        f"A is {config.a.dtype} and B is {config.b.dtype}; {decomposition} kernels need operands of equal width: use "
        "tiles or splitk"
    )


@rule(
    "promotion",
    (
        *("promote", "tile.k", "tile.n", "accumulator", "a.dtype", "b.dtype", "a.major", "b.major", "a.align"),
        "scheduler.decomposition",
    ),
    "CUTLASS include/cutlass/gemm/collective/fp8_accumulation.hpp: promotion every 4 MMAs",
    WgmmaPlan,
)
def promote(plan: WgmmaPlan) -> str | None:
    """Two-level accumulation (``promote``) needs operands that are fp8 (``promote`` 4) or split f32 (2, which these
    always need), an f32 accumulator and a tile K of as many WGMMAs; with an mn-major B of split f32, half of a tile N
    above 192 must be whole swizzle spans."""
    config = plan.config
    needed = SPLIT_PROMOTION if config.a.dtype in SPLIT else 4
    if not config.promote:
        is_split = config.a.dtype in SPLIT
        return f"promote is 0; for {config.a.dtype} operands it must be {needed}" if is_split else None
    for name, operand in config.inputs.items():
        if operand.dtype not in (*FP8, *SPLIT) and not plan.scales_sums:
            allowed = one_of((*FP8, *SPLIT))
            return f"{name.upper()} is {operand.dtype}; with two-level accumulation (promote) it must be {allowed}"
    if config.accumulator != "f32":
        return f"accumulator is {config.accumulator}; with two-level accumulation (promote) it must be f32"
    if config.promote != needed:
        return f"promote is {config.promote}; for {config.a.dtype} operands it must be {needed}"
    size = config.b.loaded.unpacked_bytes
    if config.tile.k != (depth := config.promote * INSTRUCTION_K_BYTES // size):
        return f"tile K is {config.tile.k}; with two-level accumulation (promote) it must be {depth}"
    columns, span = config.tile.n // plan.atom_parts, plan.swizzle("b") // size
    if plan.transposes("b") or config.b.major != "mn" or columns % span == 0:
        return None
    return (
        f"tile N is {config.tile.n} and B is {config.b.dtype} and mn-major; with two-level accumulation (promote) a "
        f"WGMMA multiplies {columns} columns, which must be a multiple of {span}, those of a swizzle span"
    )


@rule(
    "split-batching",
    ("scheduler.batching", "scheduler.rows", "a.dtype"),
    "gemmill: components lie one after another, so that they take the place of a batch",
    WgmmaPlan,
)
def split_batching(plan: WgmmaPlan) -> str | None:
    """Split f32 operands support only strided and grouped batching, and no gathered rows."""
    scheduler, dtype = plan.config.scheduler, plan.config.a.dtype
    if dtype not in SPLIT:
        return None
    if scheduler.rows != "stored":
        return f"rows is {scheduler.rows}; for {dtype} operands it must be stored"
    if scheduler.batching not in ("strided", "grouped"):
        return f"batching is {scheduler.batching}; for {dtype} operands it must be strided or grouped"
    return None


@rule(
    "block-scales",
    ("a.scale", "b.scale", "promote", "a.dtype", "b.dtype"),
    "DeepSeek-V3 technical report, 3.3: A scaled 1 x 128, B 128 x 128",
    WgmmaPlan,
)
def block_scales(plan: WgmmaPlan) -> str | None:
    """fp8 operands with two-level accumulation can have scales of 1x128 (A) and 128x128 (B), both of the same type; an
    e2m1 A must have scales of 1x32e8, and another narrow A can have group scales; other operands must have no
    scales."""
    config = plan.config
    a, b = config.a.scale, config.b.scale
    if plan.scales_sums and not config.promote:
        return f"promote is 0; for {config.a.dtype} x {config.b.dtype} it must be 4, since scales multiply sums"
    if plan.is_mixed:
        allowed = (MX_SCALE,) if config.a.dtype == "e2m1" else ("none", *GROUP_SCALES)
        if plan.scales_sums:
            allowed = (SUM_SCALE,)
        if a in allowed and b == "none":
            return None
        types = f"{config.a.dtype} x {config.b.dtype}"
        return f"the scales of A and B are {a} and {b}; for {types} B must have none, and A {one_of(allowed)}"
    if (a, b) == ("none", "none"):
        return None
    if (a, b) not in BLOCK_SCALES.values():
        return f"the scales of A and B are {a} and {b}; they must be {_SCALE_PAIRS}"
    return None if config.promote else "promote is 0; block scales need two-level accumulation, so it must be 4"
