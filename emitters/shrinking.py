"""The kernel that multiplies tokens by the first factors of their adapters, as PTX.

A CTA has a tile of tokens, some ranks and a slice of K, of which each warp has a part: its tensor cores add 16 products
at a time, in the order of K, to a sum in f32. The sums of the warps are added in their order, and stored.

Lanes load vectors of K straight into the registers of their fragments: those of tokens and of factors have the same
elements of K, whichever they are.
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
from gemmill.emitters.ptx import head, lines

ENTRY = "gemmill_shrinking"
"""Symbol of the kernel."""
JOB = struct.Struct("<QQQQQqqqqIIIIII")
"""The parameters: addresses of x, the first factors, the ids or offsets, the rows and the sums; bytes
between tokens, between adapters, between rows of a factor, and between slices of sums; tokens; adapters; vectors of a
token; steps of a warp; slices; CTAs that share the adapters of a tile."""
STEP = 32
"""Elements of K that a lane's vectors cover with those of three other lanes."""
_VECTORS = 16
"""Vectors of a lane that are on their way at once, about."""


def ranks_of_cta(rank: int, blocks: int) -> int:
    """Ranks of a CTA whose tile has some blocks: the sums of its warps fit in 32 KB."""
    return next(n for n in (64, 32, 16, 8) if rank % n == 0 and n * blocks <= 64)


@dataclass(frozen=True, slots=True)
class Shrinking:
    """What a kernel is made for."""

    dtype: str
    """Dtype of tokens and factors, of 16 bits."""
    order: Order
    rank: int
    blocks: int
    """Blocks of 16 tokens in a tile, 1 or 2."""

    @property
    def ranks(self) -> int:
        """Ranks of a CTA."""
        return ranks_of_cta(self.rank, self.blocks)

    @property
    def unroll(self) -> int:
        """Steps of K whose vectors a warp loads at once."""
        return max(1, _VECTORS // (2 * self.blocks + self.ranks // 8))


_SHRINK = Template("""\
  .shared .align 16 .b8 counts[$shared];
  .reg .pred %keep<$row_count>;
  .reg .b32 %part<$warps>, %vectors, %steps, %slices, %slice, %of_rank, %from, %v, %w<$words>, %c<$sums>, %zero, %area;
  .reg .b64 %x_row<$row_count>, %at<$pointers>, %factor, %base, %stride, %to, %size;
  ld.param.b64 %base, [job];
  ld.param.b64 %factor, [job + 8];
  ld.param.b64 %ids, [job + 16];
  ld.param.b64 %rows, [job + 24];
  ld.param.b64 %to, [job + 32];
  ld.param.b64 %stride, [job + 56];
  ld.param.b64 %size, [job + 64];
  ld.param.b32 %tokens, [job + 72];
  ld.param.b32 %adapters, [job + 76];
  ld.param.b32 %vectors, [job + 80];
  ld.param.b32 %steps, [job + 84];
  ld.param.b32 %slices, [job + 88];
  ld.param.b32 %parts, [job + 92];

  // The part of the adapters, the ranks, the slice and the tile of this CTA.
  mov.b32 %x, %ctaid.x;
  div.u32 %i, %x, %parts;
  mul.lo.u32 %q, %i, %parts;
  sub.u32 %turn, %x, %q;
  div.u32 %x, %i, $rank_parts;
  mul.lo.u32 %q, %x, $rank_parts;
  sub.u32 %of_rank, %i, %q;
  div.u32 %tile, %x, %slices;
  mul.lo.u32 %q, %tile, %slices;
  sub.u32 %slice, %x, %q;

  // The kernels before write the tokens. After this, the next kernel may read what these have written.
  griddepcontrol.wait;
  griddepcontrol.launch_dependents;
$tokens
  // The first vectors of this lane: of its rows of x, and of its ranks.
  mad.lo.u32 %from, %slice, $warps, %warp;
  mul.lo.u32 %from, %from, %steps;
  mul.lo.u32 %from, %from, 4;
  add.u32 %from, %from, %quad;
  mul.wide.u32 %z, %from, 16;
  add.u64 %base, %base, %z;
  add.u64 %factor, %factor, %z;
  mul.lo.u32 %x, %of_rank, $ranks;
  add.u32 %x, %x, %group;
  cvt.u64.u32 %z, %x;
  mad.lo.s64 %factor, %z, %stride, %factor;
  mul.lo.u64 %stride, %stride, 8;
$locate
  // Where this lane leaves its sums.
  mul.lo.u32 %area, %warp, $area;
  mad.lo.u32 %area, %group, $sum_row, %area;
  mad.lo.u32 %area, %quad, 8, %area;
  mov.b32 %zero, counts;
  add.u32 %area, %area, %zero;

  setp.lt.and.u32 %in, %id, %adapters, %inside;
  vote.sync.ballot.b32 %pending, %in, 0xffffffff;
  and.b32 %pending, %pending, $mask;
$next
$begin
  mov.b32 %v, %from;
  mov.b32 %i, 0;
MULTIPLY:
  setp.ge.u32 %done, %i, %steps;
  @%done bra SUMMED;
$load
$multiply
  add.u32 %v, %v, $ahead;
  add.u32 %i, %i, $unroll;
  bra MULTIPLY;
SUMMED:
$leave
  bar.sync 0;
$add
  bar.sync 0;
  bra FIND;
DONE:
  ret;
}
""")


def emit_shrink(kind: Shrinking) -> str:
    """The PTX of the kernel, for sm_90 and later. Its parameters are :data:`JOB`; CTAs have
    :data:`THREADS` threads, and a tile ``kind.rank / kind.ranks`` CTAs for each slice and part of the adapters."""
    tile, ranks = BLOCK * kind.blocks, kind.ranks
    columns = ranks // 8
    area = 4 * tile * ranks
    start = head(ENTRY, JOB, THREADS, DIRECTIVES) + REGISTERS
    return start + _SHRINK.substitute(
        tokens=tokens_of_lanes(kind.order, tile),
        shared=WARPS * area,
        area=area,
        sum_row=4 * ranks,
        words=4 * kind.unroll * (2 * kind.blocks + columns),
        sums=4 * kind.blocks * columns,
        row_count=2 * kind.blocks,
        pointers=2 * kind.blocks + columns,
        rank_parts=kind.rank // ranks,
        ranks=ranks,
        warps=WARPS,
        mask=(1 << tile) - 1,
        unroll=kind.unroll,
        ahead=4 * kind.unroll,
        locate=lines(_locate_rows(kind)),
        next=NEXT_ADAPTER.substitute(label=""),
        begin=lines(_begin_sums(kind)),
        load=lines(_load_vectors(kind)),
        multiply=lines(_multiply_vectors(kind)),
        leave=lines(_leave(kind)),
        add=lines(_add_warps(kind)),
    )


def _locate_rows(kind: Shrinking) -> Iterator[str]:
    """Yield the code that gives each of a lane's rows of x an address."""
    yield "ld.param.b64 %t, [job + 40];"
    for i, distance in rows_of_lane(kind.blocks):
        yield f"add.u32 %x, %group, {distance};"
        yield f"shfl.sync.idx.b32 %x, %token, %x, 31, {ALL_LANES};"
        yield "cvt.u64.u32 %z, %x;"
        yield f"mad.lo.s64 %x_row{i}, %z, %t, %base;"


def _begin_sums(kind: Shrinking) -> Iterator[str]:
    """Yield the code that goes to an adapter, and sets the sums to 0."""
    rows = 2 * kind.blocks
    for i, distance in rows_of_lane(kind.blocks):
        yield f"mov.b64 %at{i}, %x_row{i};"
        yield f"add.u32 %x, %group, {distance};"
        yield "shr.u32 %x, %same, %x;"
        yield "and.b32 %x, %x, 1;"
        yield f"setp.gt.u32 %keep{i}, %x, 0;"
    yield "ld.param.b64 %t, [job + 48];"
    yield "cvt.u64.u32 %z, %current;"
    yield f"mad.lo.s64 %at{rows}, %z, %t, %factor;"
    for n in range(1, kind.ranks // 8):
        yield f"add.u64 %at{rows + n}, %at{rows + n - 1}, %stride;"
    yield from (f"mov.b32 %c{i}, 0;" for i in range(kind.blocks * kind.ranks // 2))


def _words(kind: Shrinking, step: int, source: int) -> list[str]:
    first = 4 * (step * (2 * kind.blocks + kind.ranks // 8) + source)
    return [f"%w{first + i}" for i in range(4)]


def _load_vectors(kind: Shrinking) -> Iterator[str]:
    """Yield the code that loads the vectors of some steps; zeros beyond K and for other adapters."""
    sources = range(2 * kind.blocks + kind.ranks // 8)
    for step in range(kind.unroll):
        yield f"add.u32 %x, %v, {4 * step};"
        yield "setp.lt.u32 %in, %x, %vectors;"
        for source in sources:
            words, loads = _words(kind, step, source), "in"
            yield from (f"mov.b32 {word}, 0;" for word in words)
            if source < 2 * kind.blocks:
                loads = "mine"
                yield f"setp.lt.and.u32 %mine, %x, %vectors, %keep{source};"
            yield f"@%{loads} ld.global.v4.b32 {{{', '.join(words)}}}, [%at{source} + {2 * STEP * step}];"
    yield from (f"add.u64 %at{source}, %at{source}, {2 * STEP * kind.unroll};" for source in sources)


def _multiply_vectors(kind: Shrinking) -> Iterator[str]:
    """Yield the code that adds the products of some steps: each half of a vector is a lane's part of 16 elements."""
    rows = 2 * kind.blocks
    for step in range(kind.unroll):
        for half in (0, 2):
            for block in range(kind.blocks):
                low, high = (_words(kind, step, 2 * block + i)[half : half + 2] for i in range(2))
                for n in range(kind.ranks // 8):
                    factor = _words(kind, step, rows + n)[half : half + 2]
                    first = 4 * (block * kind.ranks // 8 + n)
                    yield mma(kind.dtype, [low[0], high[0], low[1], high[1]], factor, first)


def _leave(kind: Shrinking) -> Iterator[str]:
    """Yield the code that stores a lane's sums for the other warps."""
    for block in range(kind.blocks):
        for n in range(kind.ranks // 8):
            first = 4 * (block * kind.ranks // 8 + n)
            for half in range(2):
                at = 4 * kind.ranks * (BLOCK * block + 8 * half) + 32 * n
                low, high = f"%c{first + 2 * half}", f"%c{first + 2 * half + 1}"
                yield f"st.shared.v2.b32 [%area + {at}], {{{low}, {high}}};"


def _add_warps(kind: Shrinking) -> Iterator[str]:
    """Yield the code that adds the sums of the warps, and stores those of this adapter's tokens."""
    tile = BLOCK * kind.blocks
    for first in range(0, tile * kind.ranks, THREADS):
        yield f"add.u32 %i, %thread, {first};"
        yield f"div.u32 %x, %i, {kind.ranks};"
        yield f"mul.lo.u32 %q, %x, {kind.ranks};"
        yield "sub.u32 %q, %i, %q;"
        yield f"mad.lo.u32 %q, %of_rank, {kind.ranks}, %q;"
        yield f"setp.lt.u32 %mine, %x, {tile};"
        yield f"min.u32 %zero, %x, {tile - 1};"
        yield "shr.u32 %zero, %same, %zero;"
        yield "and.b32 %zero, %zero, 1;"
        yield "setp.gt.and.u32 %mine, %zero, 0, %mine;"
        yield "add.u32 %x, %x, %first;"
        yield f"mul.wide.u32 %z, %x, {4 * kind.rank};"
        yield "mul.wide.u32 %t, %q, 4;"
        yield "add.u64 %z, %z, %t;"
        yield "add.u64 %z, %z, %to;"
        yield "cvt.u64.u32 %t, %slice;"
        yield "mad.lo.s64 %z, %t, %size, %z;"
        yield "mov.b32 %zero, counts;"
        yield "mad.lo.u32 %zero, %i, 4, %zero;"
        for warp in range(WARPS):  # registers of their own, for all loads to be on their way at once
            yield f"@%mine ld.shared.b32 %part{warp}, [%zero + {4 * warp * tile * kind.ranks}];"
        yield from (f"add.rn.f32 %part0, %part0, %part{warp};" for warp in range(1, WARPS))
        yield "@%mine st.global.b32 [%z], %part0;"
