"""Subtiles of D, and of what its epilogue reads and writes by TMA: how wide a warpgroup stages them."""

from __future__ import annotations

from functools import cache

from gemmill.library.arch import ARCHS
from gemmill.library.config.fields import Fields, part
from gemmill.library.decompositions.decomposition import has_second_kernel
from gemmill.library.epilogues.parse import LINEAR, is_gated, is_repeatable, staged_formats
from gemmill.library.families.wgmma.ring import bytes_per_stage, max_auto_stages, sums_bytes
from gemmill.library.families.wgmma.warpgroups import SUBTILE_M, cluster_splits, storing_warpgroups, warpgroup_m
from gemmill.library.legality.quantities import TMA_ALIGN, align_up, dtype_bytes, integer, partial_dtype

MAX_SUBTILE_N = 128
"""Most columns of a subtile."""
MAX_STAGED_N = 32
"""The same where an epilogue's matrices are staged as well: two matrices then take the shared memory of one, and cost
no stage. And where the CTAs of a cluster exchange sums, for which a stage or two have to go already."""
REWRITTEN_N = 64
"""Most columns of a subtile where the last one overlaps the one before: a row of 16-bit elements is a swizzle span, and
ptxas spills of 128 of 8 bits beside 176 sums."""
FAR_FEWER = 0.6
"""What wider subtiles, of which the last overlaps the one before, have to leave of their number to be worth it."""
MIN_D_BUFFERS = 1
"""Fewest D subtiles of a warpgroup: with one, each is stored before the next is written."""
AUTO_D_BUFFERS = 2
"""Those that ``stages: auto`` leaves room for: one is written while another is stored."""


def columns_d(fields: Fields) -> int:
    """Columns of D that a CTA stores of a tile: a gated epilogue makes one of two."""
    return integer(fields, "tile.n") // (2 if is_gated(str(fields["epilogue"])) else 1) // cluster_splits(fields)


def stored_dtype(fields: Fields, operand: str) -> str:
    """The dtype of C or D as the main kernel sees it: split kernels store partial sums, and take no C."""
    if has_second_kernel(fields):
        return "none" if operand == "c" else partial_dtype(fields)
    return str(fields[f"{operand}.dtype"])


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
    return ((), ()) if has_second_kernel(fields) else staged_formats(str(fields["epilogue"]))


def subtile_n(fields: Fields) -> int:
    """Columns of the subtiles that a warpgroup stages at a time.

    n-major: a warp accesses rows without bank conflicts if they are a swizzle span or an odd multiple of 16 bytes long.
    m-major: always swizzled; a subtile has at most 8 KiB. Handing one to TMA takes some 300 clocks, however wide it is
    (docs/performance): where no such width divides the tile well, subtiles are wider, if that costs no stage, and
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
    exchanges, columns = cluster_splits(fields) > 1, columns_d(fields)
    most = MAX_STAGED_N if any(_matrices(fields)) or exchanges else MAX_SUBTILE_N
    n = _dividing_n(columns, most, *loaded(fields), *stored(fields))
    dtype, major = stored(fields)[0]
    narrow = n == 8 and dtype_bytes(dtype) == 2 and major == "n"
    rewrites = fields["epilogue"] == LINEAR and not loaded(fields) and not exchanges
    return REWRITTEN_N if narrow and rewrites and columns > REWRITTEN_N else n


@cache
def _dividing_n(columns: int, most: int, *staged: Format) -> int:
    """The most columns of a subtile that divide those of D that a CTA stores, and suit all that is staged."""
    widths = range(min(columns, most) // 8 * 8, 8, -8)
    return next((n for n in widths if columns % n == 0 and all(_suits(n, *each) for each in staged)), 8)


@cache
def _wider_n(columns: int, n: int, staged: Format) -> tuple[int, ...]:
    """Columns of which a CTA's D has far fewer subtiles than of n, the fewest first. n-major, they divide D's or are
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


def _depths(fields: Fields, n: int) -> tuple[int, int]:
    """Stages of a kernel without C beside the fewest D subtiles of n columns that there are, and those of ``auto``."""
    subtiles_d = storing_warpgroups(fields) * _subtile_bytes(n, stored(fields))
    room = ARCHS[str(fields["arch"])].shared_bytes - sums_bytes(fields)
    fewest, auto = ((room - x * subtiles_d) // bytes_per_stage(fields) for x in (MIN_D_BUFFERS, AUTO_D_BUFFERS))
    return fewest, min(auto, max_auto_stages(fields))
