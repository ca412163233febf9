"""What operands a WGMMA kernel takes: types, majors, alignments, batches, decompositions of K."""

from __future__ import annotations

from types import MappingProxyType

from gemmill.library.config.domains import one_of
from gemmill.library.config.fields import Fields
from gemmill.library.decompositions.decomposition import has_second_kernel
from gemmill.library.families.arithmetic import FP8, INT8, Accumulators, converted, multiplied
from gemmill.library.families.wgmma import warpgroups
from gemmill.library.legality.quantities import TMA_ALIGN, element_bytes, integer
from gemmill.library.legality.rule import rule

NARROW = (*INT8, *FP8, "s4", "u4")
"""Types of A that kernels upconvert to B's."""
GROUP_SCALES = tuple(f"1x{group}{zeros}" for zeros in ("", "z") for group in (32, 64, 128))
"""Scales of groups of narrow A along K, without and with zero points."""
ACCUMULATORS: Accumulators = MappingProxyType(
    {
        ("bf16", "bf16"): ("f32",),
        ("f16", "f16"): ("f32", "f16"),
        ("tf32", "tf32"): ("f32",),
        **{(a, b): ("f32", "f16") for a in FP8 for b in FP8},
        **{(a, b): ("s32",) for a in INT8 for b in INT8},
        **{(a, b): ("f32",) for a in NARROW for b in ("bf16", "f16")},
    }
)
"""Accumulator types by the types of A and B."""
PROMOTION_K = 128
"""K that four fp8 WGMMAs multiply, and that shares a scale where blocks have one: the depth of a promoted stage."""
TRANSPOSED_DEPTHS = (64, 128, 256)
"""Bytes along K of stages that are transposed: what warps deal out among their lanes."""
ALIGNS = (1, 2, 4, 8, 16)
"""Alignments that the reduction kernel takes of C and D, which it accesses without TMA."""
SPANS = (32, 64, 128)
"""Bytes of the swizzle spans: what a TMA box of A or B has along the contiguous extent."""


@rule(
    "tma-majors",
    ("a.major", "b.major", "d.major", "c.major"),
    "CUDA driver API, cuTensorMapEncodeTiled: the first extent is contiguous",
    "wgmma",
)
def majors(f: Fields) -> str | None:
    """A, B, C and D are contiguous along one of their extents."""
    loose = [operand.upper() for operand in "abcd" if f[f"{operand}.major"] == "any"]
    return f"{' and '.join(loose)} may have any strides; TMA needs one contiguous extent" if loose else None


@rule(
    "row-groups",
    ("d.major", "a.major", "c.major", "scheduler.batching"),
    "CUDA driver API, cuTensorMapEncodeTiled: strides, and so places of a window, are multiples of 16 bytes",
    "wgmma",
)
def row_groups(f: Fields) -> str | None:
    """In groups of rows D is n-major; where a group may begin at any row, A is K-major and C n-major."""
    batching = f["scheduler.batching"]
    if batching not in ("grouped", "masked"):
        return None
    if f["d.major"] == "m":
        return (
            f"D is m-major with {batching} batching; a group ends at any row, where TMA clips D only if it is n-major"
        )
    along_m = [x.upper() for x, major in (("a", "mn"), ("c", "m")) if f[f"{x}.major"] == major]
    if batching == "masked" or not along_m:
        return None
    return (
        f"{' and '.join(along_m)} is contiguous along M with grouped batching; a group begins at any row, and a TMA "
        "load at multiples of 16 bytes"
    )


@rule(
    "k-groups",
    ("a.major", "b.major", "scheduler.batching"),
    "CUDA driver API, cuTensorMapEncodeTiled: strides, and so places of a window, are multiples of 16 bytes",
    "wgmma",
)
def k_groups(f: Fields) -> str | None:
    """In groups along K neither A nor B is K-major."""
    if f["scheduler.batching"] != "kgrouped":
        return None
    k_major = [operand.upper() for operand in "ab" if f[f"{operand}.major"] == "k"]
    if not k_major:
        return None
    return (
        f"{' and '.join(k_major)} is K-major with kgrouped batching; a group ends at any K, where TMA clips only "
        "operands that are mn-major"
    )


@rule(
    "array-panels",
    ("tile.k", "a.major", "b.major", "a.dtype", "b.dtype", "scheduler.batching"),
    "measured on an H200: TMA reads at the start of a tensor for a box that lies wholly outside it",
    "wgmma",
)
def array(f: Fields) -> str | None:
    """In arrays a row of a K-major tile is one TMA box."""
    if f["scheduler.batching"] != "array":
        return None
    for operand in "ab":
        row = integer(f, "tile.k") * element_bytes(f, operand)
        if f[f"{operand}.major"] == "k" and row not in SPANS:
            return (
                f"a row of {operand.upper()}'s tile has {row} bytes; with array batching it must be one box of "
                f"{one_of(SPANS)} bytes: others may lie wholly beyond K"
            )
    return None


@rule(
    "array-clusters",
    ("cluster.m", "cluster.n", "scheduler.batching"),
    "measured on an H200: TMA reads at the start of a tensor for a box that lies wholly outside it",
    "wgmma",
)
def descriptor_start(f: Fields) -> str | None:
    """Arrays and groups along K have no clusters."""
    batching, ctas = f["scheduler.batching"], integer(f, "cluster.m") * integer(f, "cluster.n")
    if batching not in ("array", "kgrouped") or ctas == 1:
        return None
    return (
        f"cluster is {f['cluster.m']}x{f['cluster.n']}; with {batching} batching it must be 1x1: slices may lie wholly "
        "beyond K, where TMA reads at the start of a descriptor, which is no memory of the operand"
    )


@rule(
    "mixed-batching",
    ("scheduler.batching", "a.dtype", "b.dtype"),
    "gemmill: what the narrow operand's loads are made for",
    "wgmma",
)
def mixed_batching(f: Fields) -> str | None:
    """A narrow A comes in strided batches alone."""
    if f["scheduler.batching"] == "strided" or not warpgroups.is_mixed(f):
        return None
    return f"A is {f['a.dtype']} and B {f['b.dtype']}; kernels that upconvert A have strided batching alone"


@rule(
    "mma-majors",
    ("a.major", "b.major", "tile.k", "a.dtype", "b.dtype"),
    "PTX ISA, wgmma.mma_async: imm-trans-a and imm-trans-b exist for .f16 and .bf16 alone; gemmill: what the "
    "transposing warps deal out",
    "wgmma",
)
def mma_majors(f: Fields) -> str | None:
    """A narrow A is K-major; stages that are transposed in shared memory are as deep as warps can deal out."""
    if warpgroups.is_mixed(f) and f["a.major"] == "mn":
        return f"A is {f['a.dtype']} and mn-major; a narrow A must be K-major"
    for operand in "ab":
        if not warpgroups.transposes(f, operand):
            continue
        depth = integer(f, "tile.k") * element_bytes(f, operand)
        if depth not in TRANSPOSED_DEPTHS:
            return (
                f"{operand.upper()} is {f[f'{operand}.dtype']} and mn-major, in stages of {depth} bytes along K; to be "
                f"transposed those must be {one_of(TRANSPOSED_DEPTHS)}"
            )
    return None


@rule(
    "tma-alignment",
    ("a.align", "b.align", "d.align", "c.align", "c.dtype", "scheduler.decomposition"),
    "CUDA driver API, cuTensorMapEncodeTiled: globalAddress and globalStrides are multiples of 16 bytes",
    "wgmma",
)
def alignment(f: Fields) -> str | None:
    """What TMA moves is aligned to 16 bytes: all operands, of split-K kernels A and B."""
    by_tma = "ab" if has_second_kernel(f) else "abcd"
    wrong = [
        f"{operand.upper()} is aligned to {f[f'{operand}.align']} bytes"
        for operand in by_tma
        if f[f"{operand}.align"] != TMA_ALIGN and not (operand == "c" and f["c.dtype"] == "none")
    ]
    return f"{' and '.join(wrong)}; TMA takes alignment {TMA_ALIGN}" if wrong else None


@rule(
    "reduction-alignment",
    ("d.align", "c.align", "d.dtype", "c.dtype", "scheduler.decomposition"),
    "CUDA Programming Guide, Device Memory Accesses: vectors are aligned to their size",
    "wgmma",
)
def reduction_alignment(f: Fields) -> str | None:
    """C and D of split-K kernels are aligned to a power of two that is at least an element."""
    if not has_second_kernel(f):
        return None
    for operand in "cd":
        align, size = integer(f, f"{operand}.align"), element_bytes(f, operand)
        if size and (align not in ALIGNS or align < size):
            allowed = one_of([a for a in ALIGNS if a >= size])
            return f"{operand.upper()} is {f[f'{operand}.dtype']} aligned to {align} bytes; it must be {allowed}"
    return None


@rule(
    "sums-of-parts",
    ("scheduler.decomposition", "accumulator"),
    "gemmill: parts are added in f32 or s32, whatever the tensor cores accumulate in",
    "wgmma",
)
def sums(f: Fields) -> str | None:
    """Kernels that add partial sums up in accumulators have accumulators of 32 bits."""
    decomposition = f["scheduler.decomposition"]
    if decomposition in ("stream", "cluster") and f["accumulator"] == "f16":
        return f"sums of {decomposition} kernels are added up in accumulators, which must not be f16: use splitk"
    return None


@rule(
    "parts-batching",
    ("scheduler.decomposition", "scheduler.batching"),
    "gemmill: the tile schedulers that exist",
    "wgmma",
)
def parts_batching(f: Fields) -> str | None:
    """Kernels whose CTAs share K take strided batches."""
    decomposition, batching = f["scheduler.decomposition"], f["scheduler.batching"]
    if decomposition == "tiles" or batching == "strided":
        return None
    return f"{decomposition} kernels take strided batches, not {batching} ones"


@rule(
    "mixed-parts",
    ("scheduler.decomposition", "a.dtype", "b.dtype"),
    "gemmill: no register is left to add parts beside upconverted fragments",
    "wgmma",
)
def mixed_parts(f: Fields) -> str | None:
    """A narrow A goes with data-parallel and split-K kernels alone."""
    decomposition = f["scheduler.decomposition"]
    if decomposition == "tiles" or has_second_kernel(f) or not warpgroups.is_mixed(f):
        return None
    return f"{decomposition} kernels take operands of equal width; A is {f['a.dtype']}, B {f['b.dtype']}: use splitk"


MMA_TYPES = multiplied(
    "mma-types",
    "wgmma",
    "WGMMA",
    ACCUMULATORS,
    "PTX ISA, wgmma.mma_async: types of A, B and D; CUTLASS include/cute/arch/mma_sm90.hpp",
)
EPILOGUE_TYPES = converted("epilogue-types", "wgmma")
