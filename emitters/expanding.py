"""The kernel that multiplies sums of tokens by the second factors of their adapters, and adds them to ``y``, as PTX.

A CTA has a tile of tokens and some columns. It adds the sums of the slices of K in their order, rounds the result to
the dtype of the tokens, multiplies it by the factors, 16 ranks at a time, scales the sums, and adds them to ``y``.

Lanes load ranks of factors straight into the registers of their fragments, and each has eight columns of the result.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from string import Template

from gemmill.emitters.adapting import (
    ALL_LANES,
    BLOCK,
    DIRECTIVES,
    NEXT_ADAPTER,
    REGISTERS,
    THREADS,
    WARPS,
    Order,
    mma,
    rows_of_lane,
    tokens_of_lanes,
)
from gemmill.emitters.ptx import BITS, half_to_f32, head, lines

ENTRY = "gemmill_expanding"
"""Symbol of the kernel."""
JOB = struct.Struct("<QQQQQQQqqqqqqIIIIIf")
"""The parameters: addresses of the sums, the second factors, the ids or offsets, the rows, the scales,
y and the result; bytes between adapters, between rows of a factor, between scales, between rows of y and of the result,
and between slices of sums; tokens; adapters; columns; CTAs of a tile's columns; CTAs that share the adapters of a tile;
the scale of all tokens."""
COLUMNS_OF_WARP = 32
COLUMNS = WARPS * COLUMNS_OF_WARP
"""Columns of a CTA."""


@dataclass(frozen=True, slots=True)
class Expansion:
    """What a kernel is made for."""

    dtype: str
    order: Order
    rank: int
    blocks: int
    slices: int
    y: str | None
    """Dtype of y; None for sums that start from 0."""
    scale: str | None
    """Dtype of the scales of tokens; None where all have one."""
    out: str


_EXPAND = Template("""\
  .shared .align 16 .b8 counts[$shared];
  .reg .pred %unused, %has, %stores, %keep<$row_count>;
  .reg .b16 %half<2>;
  .reg .b32 %columns, %across, %column, %scale, %own, %element, %v<$loaded>;
  .reg .b32 %h<$fragments>, %b<$factors>, %c<$sums>, %y<$words>, %of<$row_count>;
  .reg .b64 %from, %factors, %scales, %y, %out, %stride, %size, %part, %tail, %at<$row_count>, %of_y<$row_count>;
  ld.param.b64 %from, [job];
  ld.param.b64 %factors, [job + 8];
  ld.param.b64 %ids, [job + 16];
  ld.param.b64 %rows, [job + 24];
  ld.param.b64 %scales, [job + 32];
  ld.param.b64 %y, [job + 40];
  ld.param.b64 %out, [job + 48];
  ld.param.b64 %stride, [job + 64];
  ld.param.b64 %size, [job + 96];
  ld.param.b32 %tokens, [job + 104];
  ld.param.b32 %adapters, [job + 108];
  ld.param.b32 %columns, [job + 112];
  ld.param.b32 %across, [job + 116];
  ld.param.b32 %parts, [job + 120];

  // The part of the adapters, the columns and the tile of this CTA.
  mov.b32 %x, %ctaid.x;
  div.u32 %i, %x, %parts;
  mul.lo.u32 %q, %i, %parts;
  sub.u32 %turn, %x, %q;
  div.u32 %tile, %i, %across;
  mul.lo.u32 %q, %tile, %across;
  sub.u32 %column, %i, %q;
  mul.lo.u32 %column, %column, $columns;
$tokens
  // The columns of this lane: 8 of the result, and rows of the factors.
  mad.lo.u32 %column, %warp, $columns_of_warp, %column;
  shr.u32 %x, %group, 1;
  mad.lo.u32 %x, %x, 8, %column;
  setp.lt.u32 %has, %x, %columns;
  and.b32 %q, %group, 1;
  add.u32 %x, %x, %q;
  cvt.u64.u32 %z, %x;
  mad.lo.s64 %factors, %z, %stride, %factors;
  mul.lo.u64 %stride, %stride, 2;
  mul.wide.u32 %z, %quad, 4;
  add.u64 %factors, %factors, %z;
  mad.lo.u32 %column, %quad, 8, %column;
  setp.lt.u32 %stores, %column, %columns;
$locate
  vote.sync.ballot.b32 %pending, %inside, 0xffffffff;
  and.b32 %pending, %pending, $mask;

  // Load factors before the sums are there: the kernels before the one that makes them have ended.
$next_first
$load
  griddepcontrol.wait;
  griddepcontrol.launch_dependents;
$load_y
  // Add the slices, and give each lane its part.
  mul.wide.u32 %z, %first, $rank_bytes;
  add.u64 %from, %from, %z;
  mul.wide.u32 %z, %thread, 16;
  add.u64 %from, %from, %z;
  mov.b32 %own, counts;
$slices
  bar.sync 0;
  mad.lo.u32 %own, %group, $pitch, %own;
  mad.lo.u32 %own, %quad, 4, %own;
$fragments_load
EACH:
$multiply
$store
$next
$load
$load_y
  bra EACH;
DONE:
  ret;
}
""")


def emit_expand(kind: Expansion) -> str:
    """The PTX of the kernel, for sm_90 and later. Its parameters are :data:`JOB`; CTAs have
    :data:`THREADS` threads and :data:`COLUMNS` columns."""
    tile, pitch = BLOCK * kind.blocks, _pitch(kind)
    start = head(ENTRY, JOB, THREADS, DIRECTIVES) + REGISTERS
    return start + _EXPAND.substitute(
        tokens=tokens_of_lanes(kind.order, tile),
        shared=tile * pitch,
        pitch=pitch,
        columns=COLUMNS,
        columns_of_warp=COLUMNS_OF_WARP,
        fragments=4 * kind.blocks * _steps(kind),
        factors=2 * 4 * _steps(kind),
        loaded=4 * kind.slices,
        sums=16 * kind.blocks,
        words=16 * kind.blocks,
        row_count=2 * kind.blocks,
        mask=(1 << tile) - 1,
        rank_bytes=4 * kind.rank,
        locate=lines(_locate_results(kind)),
        next_first=NEXT_ADAPTER.substitute(label=""),
        next=NEXT_ADAPTER.substitute(label="_AGAIN"),
        load=lines(_load_factors(kind)),
        slices=lines(_add_slices(kind)),
        fragments_load=lines(_load_fragments(kind)),
        load_y=lines(_load_y(kind)),
        multiply=lines(_multiply_ranks(kind)),
        store=lines(_store(kind)),
    )


def _steps(kind: Expansion) -> int:
    """Instructions for all ranks; the last may have only 8."""
    return -(-kind.rank // 16)


def _pitch(kind: Expansion) -> int:
    """Bytes between rows of rounded sums: not a multiple of 128, so that rows lie in different banks."""
    return 2 * (kind.rank + 8)


def _locate_results(kind: Expansion) -> Iterator[str]:
    """Yield the code that finds the addresses of a lane's rows of y and of the result."""
    for i, distance in rows_of_lane(kind.blocks):
        yield f"add.u32 %x, %group, {distance};"
        yield f"shfl.sync.idx.b32 %of{i}, %token, %x, 31, {ALL_LANES};"
    for name, dtype, register, stride in (("y", kind.y, "of_y", 80), ("out", kind.out, "at", 88)):
        if dtype:
            yield f"mul.wide.u32 %z, %column, {BITS[dtype] // 8};"
            yield f"add.u64 %{name}, %{name}, %z;"
            yield f"ld.param.b64 %t, [job + {stride}];"
            for i in range(2 * kind.blocks):
                yield f"cvt.u64.u32 %z, %of{i};"
                yield f"mad.lo.s64 %{register}{i}, %z, %t, %{name};"


def _load_factors(kind: Expansion) -> Iterator[str]:
    """Yield the code that loads the factors of the adapter; zeros where there is none."""
    yield "setp.lt.and.u32 %mine, %current, %adapters, %has;"
    yield "ld.param.b64 %t, [job + 56];"
    yield "cvt.u64.u32 %z, %current;"
    yield "mad.lo.s64 %tail, %z, %t, %factors;"
    yield "mul.wide.u32 %z, %quad, 4;"
    yield "add.u64 %part, %tail, %z;"
    for n in range(4):
        for step in range(_steps(kind)):
            first = 2 * (n * _steps(kind) + step)
            yield from (f"mov.b32 %b{first + i}, 0;" for i in range(2))
            if 16 * step + 8 < kind.rank:
                group = f"{{%b{first}, %b{first + 1}}}"
                yield f"@%mine ld.relaxed.gpu.global.v2.b32 {group}, [%part + {32 * step}];"
            else:
                yield f"@%mine ld.relaxed.gpu.global.b32 %b{first}, [%tail + {32 * step}];"
        if n < 3:
            yield "add.u64 %part, %part, %stride;"
            yield "add.u64 %tail, %tail, %stride;"


def _add_slices(kind: Expansion) -> Iterator[str]:
    """Yield the code that adds the slices of four ranks of a token, and leaves them rounded for all warps."""
    quads = BLOCK * kind.blocks * kind.rank // 4
    for first in range(0, quads, THREADS):
        yield f"add.u32 %i, %thread, {first};"
        yield f"setp.lt.u32 %mine, %i, {quads};"
        yield f"add.u64 %t, %from, {16 * first};"
        for part in range(kind.slices):  # registers of their own, for all loads to be on their way at once
            loaded = [f"%v{4 * part + i}" for i in range(4)]
            yield f"@%mine ld.global.v4.b32 {{{', '.join(loaded)}}}, [%t];"
            yield "add.u64 %t, %t, %size;"
        for part in range(1, kind.slices):
            yield from (f"add.rn.f32 %v{i}, %v{i}, %v{4 * part + i};" for i in range(4))
        yield f"cvt.rn.{kind.dtype}x2.f32 %v0, %v1, %v0;"
        yield f"cvt.rn.{kind.dtype}x2.f32 %v1, %v3, %v2;"
        yield f"div.u32 %x, %i, {kind.rank // 4};"
        yield f"mul.lo.u32 %q, %x, {kind.rank // 4};"
        yield "sub.u32 %q, %i, %q;"
        yield f"mad.lo.u32 %x, %x, {_pitch(kind)}, %own;"
        yield "mad.lo.u32 %x, %q, 8, %x;"
        yield "@%mine st.shared.v2.b32 [%x], {%v0, %v1};"


def _load_fragments(kind: Expansion) -> Iterator[str]:
    """Yield the code that loads a lane's ranks of the rounded sums."""
    yield "mad.lo.u32 %x, %quad, 4, %own;"
    for block in range(kind.blocks):
        for step in range(_steps(kind)):
            first = 4 * (block * _steps(kind) + step)
            for half in range(2):
                at = (BLOCK * block + 8 * half) * _pitch(kind) + 32 * step
                low, high = f"%h{first + half}", f"%h{first + half + 2}"
                if 16 * step + 8 < kind.rank:
                    yield f"ld.shared.v2.b32 {{{low}, {high}}}, [%x + {at}];"
                else:
                    yield f"ld.shared.b32 {low}, [%own + {at}];"
                    yield f"mov.b32 {high}, 0;"


def _is_this_adapters(i: int) -> Iterator[str]:
    """Yield the code that leaves in ``%keep`` whether a lane's row has this adapter, and its columns exist."""
    yield f"add.u32 %x, %group, {8 * i};"
    yield "shr.u32 %x, %same, %x;"
    yield "and.b32 %x, %x, 1;"
    yield f"setp.gt.and.u32 %keep{i}, %x, 0, %stores;"


def _load_y(kind: Expansion) -> Iterator[str]:
    """Yield the code that loads the adapter's rows of y."""
    words = 8 * BITS[kind.y] // 32 if kind.y else 0
    for i, _ in rows_of_lane(kind.blocks):
        yield from _is_this_adapters(i)
        for first in range(0, words, 4):
            loaded = [f"%y{8 * i + first + word}" for word in range(4)]
            yield f"@%keep{i} ld.global.v4.b32 {{{', '.join(loaded)}}}, [%of_y{i} + {4 * first}];"


def _multiply_ranks(kind: Expansion) -> Iterator[str]:
    """Yield the code that adds the products of all ranks."""
    steps = _steps(kind)
    yield from (f"mov.b32 %c{i}, 0;" for i in range(16 * kind.blocks))
    for step in range(steps):
        for n in range(4):
            for block in range(kind.blocks):
                first = 4 * (block * steps + step)
                a = [f"%h{first + i}" for i in range(4)]
                b = [f"%b{2 * (n * steps + step) + i}" for i in range(2)]
                yield mma(kind.dtype, a, b, 4 * (4 * block + n))


def _store(kind: Expansion) -> Iterator[str]:
    """Yield the code that scales the sums, adds them, rounds the results and stores them. Where there is no adapter, -0
    is added, which changes nothing."""
    yield "setp.ge.u32 %unused, %current, %adapters;"
    for i, _ in rows_of_lane(kind.blocks):
        sums = [f"%c{4 * (4 * (i // 2) + n) + 2 * (i % 2) + j}" for n in range(4) for j in range(2)]
        yield from _scale(kind, i)
        for e, total in enumerate(sums):
            yield f"selp.b32 {total}, 0x80000000, {total}, %unused;"
            if kind.y and BITS[kind.y] == 16:
                yield from half_to_f32(kind.y, f"%y{8 * i + e // 2}", e % 2, "%element")
            else:
                yield f"mov.b32 %element, {f'%y{8 * i + e}' if kind.y else 0};"
            yield f"fma.rn.f32 {total}, %scale, {total}, %element;"
        if BITS[kind.out] == 16:
            for e in range(0, 8, 2):
                yield f"cvt.rn.{kind.out}x2.f32 {sums[e // 2]}, {sums[e + 1]}, {sums[e]};"
        for first in range(0, 8 * BITS[kind.out] // 32, 4):
            yield f"@%keep{i} st.global.v4.b32 [%at{i} + {4 * first}], {{{', '.join(sums[first : first + 4])}}};"


def _scale(kind: Expansion, i: int) -> Iterator[str]:
    """Yield the code that loads the scale of a lane's row."""
    if kind.scale:
        yield "ld.param.b64 %t, [job + 72];"
        yield f"cvt.u64.u32 %z, %of{i};"
        yield "mad.lo.s64 %z, %z, %t, %scales;"
        if BITS[kind.scale] == 16:
            yield "ld.global.b16 %half0, [%z];"
            yield f"cvt.f32.{kind.scale} %scale, %half0;"
        else:
            yield "ld.global.b32 %scale, [%z];"
    else:
        yield "ld.param.b32 %scale, [job + 124];"
    yield "selp.b32 %scale, 0x3f800000, %scale, %unused;"
