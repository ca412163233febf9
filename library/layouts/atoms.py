"""MMA and copy atoms with CUTLASS's names: which thread holds which element, as layouts (thread, value) -> coordinate.

The fragments are those of the PTX ISA ("Matrix fragments for mma", "Register fragments for wgmma.mma_async"), in the
form of ``MMA_Traits`` and ``Copy_Traits`` of CUTLASS 4.2. A coordinate (m,n) is m + n M; a coordinate of a copy is a
bit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from gemmill.library.errors import LayoutError
from gemmill.library.layouts import tuples
from gemmill.library.layouts.algebra import upcast
from gemmill.library.layouts.layout import Composed, Layout, Swizzle
from gemmill.library.layouts.tuples import IntTuple
from gemmill.library.wording import one_of, suggest

Operand = Literal["A", "B", "C"]


@dataclass(frozen=True)
class MmaAtom:
    """An MMA instruction D = A B + C that a group of threads executes."""

    name: str
    shape_mnk: tuple[int, int, int]
    thread_ids: Layout
    """Thread of the atom -> thread of the warp or warpgroup (``ThrID``)."""
    a: Layout
    """(thread, value) -> m + k M. If A is in shared memory, threads have stride 0: all of them access all of A."""
    b: Layout
    """(thread, value) -> n + k N; see ``a``."""
    c: Layout
    """(thread, value) -> m + n M."""

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class CopyAtom:
    """A copy instruction that a group of threads executes."""

    name: str
    thread_ids: Layout
    source: Layout
    """(thread, value) -> element of the source."""
    target: Layout
    """(thread, value) -> element of the destination."""
    bits: int
    """Bits of an element."""

    def __str__(self) -> str:
        return self.name


TYPE_BITS: Mapping[str, int] = MappingProxyType(
    {
        **dict.fromkeys(("U1", "uint1_t", "b1"), 1),
        **dict.fromkeys(("S4", "U4", "int4_t", "uint4_t", "int4b_t", "uint4b_t", "s4", "u4"), 4),
        **dict.fromkeys(("S8", "U8", "E4M3", "E5M2", "int8_t", "uint8_t", "s8", "u8"), 8),
        **dict.fromkeys(("float_e4m3_t", "float_e5m2_t", "e4m3", "e5m2"), 8),
        **dict.fromkeys(("F16", "BF16", "half_t", "bfloat16_t", "uint16_t", "f16", "bf16"), 16),
        **dict.fromkeys(("F32", "TF32", "S32", "float", "tfloat32_t", "int32_t", "uint32_t", "f32", "tf32"), 32),
        **dict.fromkeys(("F64", "double", "uint64_t", "f64"), 64),
        "uint128_t": 128,
    }
)
"""Bits of an element, by CUTLASS's and gemmill's names of types."""


def type_bits(name: str) -> int:
    """Bits of an element of a type; LayoutError for an unknown type."""
    if name in TYPE_BITS:
        return TYPE_BITS[name]
    raise LayoutError(
        f"{name!r} is not an element type{suggest(name, TYPE_BITS) or '; use for example half_t or float'}"
    )


def _modes(*modes: tuple[int, int]) -> tuple[IntTuple, IntTuple]:
    """Shape and stride of a mode of these pairs without those of extent 1; integers for a single pair."""
    nontrivial = [mode for mode in modes if mode[0] > 1] or [(1, 0)]
    if len(nontrivial) == 1:
        return nontrivial[0]
    return tuple(extent for extent, _ in nontrivial), tuple(stride for _, stride in nontrivial)


def _fragment(threads: tuple[tuple[int, int], ...], *values: tuple[int, int]) -> Layout:
    (t, dt), (v, dv) = _modes(*threads), _modes(*values)
    return Layout((t, v), (dt, dv))


def _warp(m: int, n: int, k: int, bits: int) -> tuple[Layout, Layout, Layout]:
    """A, B and C of ``mma.sync`` m8 or m16, n8: a quad of threads holds a row; a register holds 32 bits along K, or one
    f64."""
    word = max(1, 32 // bits)
    beyond = k // (4 * word)

    def rows(extent: int, columns: int, elements: int) -> Layout:
        groups = ((elements, extent), (extent // 8, 8), (columns // (4 * elements), 4 * elements * extent))
        return _fragment(((4, elements * extent), (8, 1)), *groups)

    assert beyond * 4 * word == k
    return rows(m, k, word), rows(n, k, word), rows(m, n, 2)


def _warpgroup(m: int, n: int, k: int, bits: int, a_in_registers: bool) -> tuple[Layout, Layout, Layout]:
    """A, B and C of ``wgmma``: four warps of 16 rows each; all threads access all of an operand in shared memory."""

    def whole(extent: int) -> Layout:
        return Layout((128, (extent, k)), (0, (1, extent)))

    def rows(columns: int, elements: int) -> Layout:
        threads = ((4, elements * m), (8, 1), (4, 16))
        return _fragment(threads, (elements, m), (2, 8), (columns // (4 * elements), 4 * elements * m))

    return rows(k, 32 // bits) if a_in_registers else whole(m), whole(n), rows(n, 2)


_QUADPAIR = Layout((4, 2), (1, 16))
_QUADPAIR_ALONG = Layout((8, 4), (1, 8))
_QUADPAIR_ACROSS = Layout(((4, 2), 4), ((8, 4), 1))
_QUADPAIR_C: Mapping[str, Layout] = MappingProxyType(
    {"F32": Layout(((2, 2, 2), (2, 2, 2)), ((1, 16, 4), (8, 2, 32))), "F16": Layout((8, 8), (1, 8))}
)


def _quadpair(name: str, match: re.Match[str]) -> MmaAtom:
    """Volta's ``mma.sync.m8n8k4``: eight threads in two quads; each thread holds a row of a K-major operand."""
    a = _QUADPAIR_ALONG if match["a"] == "T" else _QUADPAIR_ACROSS
    b = _QUADPAIR_ALONG if match["b"] == "N" else _QUADPAIR_ACROSS
    return MmaAtom(name, (8, 8, 4), _QUADPAIR, a, b, _QUADPAIR_C[match["d"]])


_WARP_SHAPES: Mapping[tuple[str, str], tuple[tuple[int, int, int], ...]] = MappingProxyType(
    {
        ("SM75", "F16"): ((16, 8, 8),),
        ("SM75", "S8"): ((8, 8, 16),),
        ("SM80", "F16"): ((16, 8, 8), (16, 8, 16)),
        ("SM80", "BF16"): ((16, 8, 8), (16, 8, 16)),
        ("SM80", "TF32"): ((16, 8, 4), (16, 8, 8)),
        ("SM80", "F64"): ((8, 8, 4),),
        **{("SM80", t): ((8, 8, 16), (16, 8, 16), (16, 8, 32)) for t in ("S8", "U8")},
        **{("SM80", t): ((8, 8, 32), (16, 8, 32), (16, 8, 64)) for t in ("S4", "U4")},
        **{("SM89", t): ((16, 8, 32),) for t in ("E4M3", "E5M2")},
        ("SM90", "F64"): ((16, 8, 4), (16, 8, 8), (16, 8, 16)),
    }
)
"""Shapes of ``mma.sync`` by architecture and type of A."""

_WARPGROUP_K: Mapping[str, int] = MappingProxyType(
    {"F16": 16, "BF16": 16, "TF32": 8, **dict.fromkeys(("E4M3", "E5M2", "S8", "U8"), 32)}
)
"""K of ``wgmma`` by type of A: 32 bytes."""

_TYPE = "F16|BF16|F32|TF32|F64|E4M3|E5M2|S8|U8|S4|U4|S32"
_MNK = r"(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)"
_TYPES = rf"(?P<d>{_TYPE})(?P<ta>{_TYPE})(?P<tb>{_TYPE})"


def _mnk(match: re.Match[str]) -> tuple[int, int, int]:
    return int(match["m"]), int(match["n"]), int(match["k"])


def _refused(name: str, shapes: list[str]) -> LayoutError:
    return LayoutError(
        f"there is no instruction {name}: for these types and this architecture MxNxK must be {one_of(shapes)}"
    )


_ACCUMULATORS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        **dict.fromkeys(("F16", "E4M3", "E5M2"), ("F16", "F32")),
        **dict.fromkeys(("BF16", "TF32"), ("F32",)),
        **dict.fromkeys(("S8", "U8", "S4", "U4"), ("S32",)),
        "F64": ("F64",),
    }
)
"""Types of D by type of A."""
_KINDS = (("F16",), ("BF16",), ("TF32",), ("F64",), ("E4M3", "E5M2"), ("S8", "U8"), ("S4", "U4"))
"""Groups of types. A and B must be of the same group."""


def _check_types(name: str, match: re.Match[str]) -> None:
    a, b, d = match["ta"], match["tb"], match["d"]
    if not any(a in kind and b in kind for kind in _KINDS):
        raise LayoutError(f"there is no instruction {name}: {a} x {b} is not supported")
    if d not in _ACCUMULATORS[a]:
        raise LayoutError(f"there is no instruction {name}: D is {d}; for {a} it must be {one_of(_ACCUMULATORS[a])}")


def _of_warp(name: str, match: re.Match[str]) -> MmaAtom:
    _check_types(name, match)
    shape = _mnk(match)
    shapes = _WARP_SHAPES.get((match["sm"], match["ta"]), ())
    if shape not in shapes:
        of_others = [f"{sm}_{m}x{n}x{k}" for (sm, t), ss in _WARP_SHAPES.items() if t == match["ta"] for m, n, k in ss]
        raise _refused(name, ["x".join(map(str, mnk)) for mnk in shapes] or of_others)
    return MmaAtom(name, shape, Layout(32, 1), *_warp(*shape, TYPE_BITS[match["ta"]]))


def _of_warpgroup(name: str, match: re.Match[str]) -> MmaAtom:
    _check_types(name, match)
    shape, k = _mnk(match), _WARPGROUP_K.get(match["ta"])
    if shape[0] != 64 or shape[1] % 8 or not 8 <= shape[1] <= 256 or shape[2] != k:
        raise _refused(name, [f"64xNx{k} with N = 8, 16, ..., 256"])
    operands = _warpgroup(*shape, TYPE_BITS[match["ta"]], a_in_registers=match.groupdict().get("where") == "RS")
    return MmaAtom(name, shape, Layout(128, 1), *operands)


def _fma(name: str, _: re.Match[str]) -> MmaAtom:
    one = Layout((1, 1), (0, 0))
    return MmaAtom(name, (1, 1, 1), Layout(1, 0), one, one, one)


_MMAS: Mapping[str, Callable[[str, re.Match[str]], MmaAtom]] = MappingProxyType(
    {
        r"UniversalFMA": _fma,
        r"SM70_8x8x4_(?P<d>F16|F32)F16F16(?P=d)_(?P<a>[NT])(?P<b>[NT])": _quadpair,
        rf"(?P<sm>SM75|SM80|SM89|SM90)_{_MNK}_{_TYPES}(?P=d)_TN(_SATURATE)?": _of_warp,
        rf"SM90_{_MNK}_{_TYPES}_(?P<where>SS|RS)(_TN)?(_SATURATE)?": _of_warpgroup,
        rf"SM90_{_MNK}_{_TYPES}(?P=d)_TN": _of_warpgroup,
    }
)
"""For each pattern of names, the function that makes the atom; the first match counts. CuTe's documentation of MMA
atoms uses the last pattern for warpgroup MMAs with operands in shared memory."""

MMA_EXAMPLES = (
    "UniversalFMA",
    *(f"SM70_8x8x4_{d}F16F16{d}_{t}" for d in ("F32", "F16") for t in ("TN", "NT", "NN", "TT")),
    *("SM80_16x8x16_F32F16F16F32_TN", "SM80_16x8x16_F32BF16BF16F32_TN", "SM80_16x8x8_F32TF32TF32F32_TN"),
    *("SM80_16x8x32_S32S8S8S32_TN", "SM80_8x8x4_F64F64F64F64_TN", "SM89_16x8x32_F32E4M3E4M3F32_TN"),
    *("SM90_16x8x8_F64F64F64F64_TN", "SM90_64x128x16_F32BF16BF16_SS", "SM90_64x128x16_F32F16F16_RS"),
    *("SM90_64x128x8_F32TF32TF32_SS_TN", "SM90_64x256x32_F32E4M3E4M3_SS_TN", "SM90_64x64x32_S32S8S8_SS_TN"),
)
"""Example names of each pattern, for suggestions and docs."""


def mma_atom(name: str) -> MmaAtom | None:
    """The MMA atom of a name; None if the name does not match the pattern of an MMA.

    Raises:
        LayoutError: no instruction has these types or this shape.
    """
    words = name.removeprefix("SM90::GMMA::").removeprefix("GMMA::")
    words = f"SM90_{words.removeprefix('MMA_')}" if words.startswith("MMA_") else words
    for form, make in _MMAS.items():
        if match := re.fullmatch(form, words):
            # The last pattern also matches names of SM90's mma.sync; M = 64 means a warpgroup MMA.
            if make is _of_warp and match["m"] == "64":
                continue
            return make(words, match)
    return None


def _matrices(count: int, transposed: bool) -> tuple[Layout, Layout]:
    """``ldmatrix`` of 8x8 matrices of 16 bits: the 128-bit rows that threads address, and the bits that each
    receives."""
    threads = 8 * count
    names = Layout(32, 128) if threads == 32 else Layout((threads, 32 // threads), (128, 0))
    source = Layout((names.shape, 128), (names.stride, 1))
    if transposed:
        return source, _fragment(((4, 256), (8, 16)), (16, 1), (2, 128), (count, 1024))
    return source, _fragment(((32, 32),), (32, 1), (count, 1024))


def _element_by_element(bits: int) -> tuple[Layout, Layout]:
    one = Layout((1, bits), (0, 1))
    return one, one


_COPIES: Mapping[str, tuple[Layout, Layout]] = MappingProxyType(
    {
        **{f"SM75_U32x{count}_LDSM_N": _matrices(count, transposed=False) for count in (1, 2, 4)},
        **{f"SM75_U16x{2 * count}_LDSM_T": _matrices(count, transposed=True) for count in (1, 2, 4)},
        **{f"SM90_U32x{count}_STSM_N": _matrices(count, transposed=False)[::-1] for count in (1, 2, 4)},
        **{f"SM90_U16x{2 * count}_STSM_T": _matrices(count, transposed=True)[::-1] for count in (1, 2, 4)},
    }
)
"""Bit layouts of source and destination of matrix copies by a warp."""
_BY_TYPE = ("UniversalCopy", "SM80_CP_ASYNC_CACHEALWAYS", "SM80_CP_ASYNC_CACHEGLOBAL")
"""Copies by one thread of an element of the type in angle brackets."""
COPY_NAMES = (*_COPIES, *(f"{name}<uint128_t>" for name in _BY_TYPE))


def copy_atom(name: str, of: str | None) -> CopyAtom | None:
    """The copy atom of a name, in elements of a type, or in bits without a type; None if there is no such copy.

    Raises:
        LayoutError: the copy would split elements of the type, or needs a type.
    """
    if name in _BY_TYPE:
        if of is None:
            raise LayoutError(f"{name} needs a type, for example {name}<uint128_t>")
        return CopyAtom(f"{name}<{of}>", Layout(1, 0), *_element_by_element(1), type_bits(of))
    if name not in _COPIES:
        return None
    bits = 1 if of is None else type_bits(of)
    source, target = (upcast(side, bits) for side in _COPIES[name])
    return CopyAtom(name if of is None else f"Copy_Atom<{name}, {of}>", Layout(32, 1), source, target, bits)


_SHARED_BITS: Mapping[str, int] = MappingProxyType({"INTER": 0, "SW32": 1, "SW64": 2, "SW128": 3})
SHARED_NAMES = tuple(f"Layout_{major}_{mode}_Atom" for major in ("K", "MN") for mode in _SHARED_BITS)


def shared_atom(name: str, of: str) -> Composed | None:
    """Shared-memory layout atoms of warpgroup MMAs, such as ``GMMA::Layout_K_SW128_Atom<half_t>``; None for other
    names.

    Layout and swizzle are in units of elements; CUTLASS prints the swizzle in bytes.
    """
    if name not in SHARED_NAMES:
        return None
    _, major, mode, _ = name.split("_")
    bits, log = _SHARED_BITS[mode], type_bits(of).bit_length() - 1
    across = (128 << bits) >> log
    if log > 6:
        raise LayoutError(f"{name}<{of}>: elements must have at most 64 bits")
    inner = Layout((8, across), (across, 1)) if major == "K" else Layout((across, 8), (1, across))
    return Composed(Swizzle(bits, 7 - log, 3), 0, inner)


def is_whole(threads: Layout) -> bool:
    """Whether all threads access the same elements, as for an operand in shared memory."""
    return threads.size > 1 and not any(tuples.flat(threads.stride))
