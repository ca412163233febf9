"""What the kernels of low-rank adapters share: one multiplies tokens by first factors (shrinking.py), and one the sums
by second factors (expanding.py).

Any tile may have tokens of any adapters: its CTAs multiply all of its tokens by each of these adapters, and keep what
belongs to it. Tiles of tokens that are sorted by adapter (routing.py) have few. A token's adapter is its id; that of a
sorted one is the number of groups that end before its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from string import Template
from typing import Literal

from gemmill.emitters.ptx import lines

WARPS = 8
"""Warps of a CTA."""
THREADS = 32 * WARPS
"""Threads of a CTA."""
BLOCK = 16
"""Tokens of an instruction."""
MOST_RANK = 128
"""Ranks that a thread has registers for."""
DIRECTIVES = ".minnctapersm 2\n"
"""An SM hides the latency of loads with a second CTA. Kernels of 64 ranks spill up to 24 bytes for it."""
ALL_LANES = "0xffffffff"
"""The mask of a warp."""
Order = Literal["s32", "s64", "sorted"]
"""How a kernel finds the adapters of tokens: by ids of 32 or 64 bits, or by the ends of the groups of sorted tokens."""
REGISTERS = """\
  .reg .pred %inside, %done, %skip, %in, %mine;
  .reg .b32 %tokens, %adapters, %parts, %turn, %tile, %first, %thread, %lane, %warp, %group, %quad, %row, %place;
  .reg .b32 %token, %id, %high, %current, %same, %pending, %end<4>, %i, %x, %q;
  .reg .b64 %ids, %rows, %t, %z;
"""
_TOKENS = Template("""\
  // The lanes' tokens, and their adapters. Beyond the last token, that one is read again.
  mov.b32 %thread, %tid.x;
  and.b32 %lane, %thread, 31;
  shr.u32 %warp, %thread, 5;
  shr.u32 %group, %lane, 2;
  and.b32 %quad, %lane, 3;
  mul.lo.u32 %first, %tile, $tile;
  and.b32 %row, %lane, $last;
  add.u32 %place, %first, %row;
  setp.lt.u32 %inside, %place, %tokens;
  sub.u32 %x, %tokens, 1;
  min.u32 %token, %place, %x;
$find
  min.u32 %id, %id, %adapters;
""")
_BY_ID = {
    "s32": """\
  mul.wide.u32 %z, %token, 4;
  add.u64 %z, %z, %ids;
  ld.relaxed.gpu.global.b32 %id, [%z];""",
    "s64": """\
  mul.wide.u32 %z, %token, 8;
  add.u64 %z, %z, %ids;
  ld.relaxed.gpu.global.v2.b32 {%id, %high}, [%z];
  setp.eq.u32 %in, %high, 0;
  selp.b32 %id, %id, -1, %in;""",
}
_SEARCH = Template("""\
  mul.wide.u32 %z, %token, 4;
  add.u64 %z, %z, %rows;
  ld.relaxed.gpu.global.b32 %token, [%z];
  mov.b32 %id, 0;
  mov.b32 %i, %lane;
  mov.b32 %q, 0;
SEARCH:
  setp.ge.u32 %done, %q, %adapters;
  @%done bra FOUND;
$load
$count
  add.u32 %i, %i, $ahead;
  add.u32 %q, %q, $ahead;
  bra SEARCH;
FOUND:""")
"""Counts the groups that end before each lane's place, which is above all where the token has no adapter."""
NEXT_ADAPTER = Template("""\
FIND$label:
  setp.eq.u32 %done, %pending, 0;
  @%done bra DONE;
  bfind.u32 %x, %pending;
  shfl.sync.idx.b32 %current, %id, %x, 31, 0xffffffff;
  setp.eq.u32 %in, %id, %current;
  vote.sync.ballot.b32 %same, %in, 0xffffffff;
  and.b32 %same, %same, %pending;
  xor.b32 %pending, %pending, %same;
  setp.gt.u32 %skip, %turn, 0;
  selp.b32 %turn, %turn, %parts, %skip;
  sub.u32 %turn, %turn, 1;
  @%skip bra FIND$label;""")
"""Finds the tokens of the next adapter that is this CTA's, or goes to the end."""


def tokens_of_lanes(order: Order, tile: int) -> str:
    """The code that finds the tokens and adapters of the lanes, one each, given ``%tile`` of ``tile`` tokens."""
    find = _BY_ID[order] if order != "sorted" else _search()
    return _TOKENS.substitute(tile=tile, last=tile - 1, find=find)


def _search() -> str:
    """The code that finds the groups of the lanes' places: it loads 128 ends, and searches 32 at a time."""

    def load() -> Iterator[str]:
        yield "mul.wide.u32 %z, %i, 4;"
        yield "add.u64 %z, %z, %ids;"
        for n in range(4):
            yield f"add.u32 %x, %i, {32 * n};"
            yield "setp.lt.u32 %in, %x, %adapters;"
            yield f"mov.b32 %end{n}, -1;"
            yield f"@%in ld.relaxed.gpu.global.b32 %end{n}, [%z + {128 * n}];"

    def count() -> Iterator[str]:
        for n in range(4):
            yield "mov.b32 %x, 0;"
            for distance in (16, 8, 4, 2, 1):
                yield f"add.u32 %high, %x, {distance - 1};"
                yield f"shfl.sync.idx.b32 %high, %end{n}, %high, 31, {ALL_LANES};"
                yield "setp.ge.u32 %in, %place, %high;"
                yield f"@%in add.u32 %x, %x, {distance};"
            yield f"shfl.sync.idx.b32 %high, %end{n}, %x, 31, {ALL_LANES};"
            yield "setp.ge.u32 %in, %place, %high;"
            yield "@%in add.u32 %x, %x, 1;"
            yield "add.u32 %id, %id, %x;"

    return _SEARCH.substitute(load=lines(load()), count=lines(count()), ahead=128)


def rows_of_lane(blocks: int) -> Iterator[tuple[int, int]]:
    """Yield the index of each of a lane's rows, and its distance from the lane's first one."""
    yield from ((i, 8 * i) for i in range(2 * blocks))


def mma(dtype: str, a: list[str], b: list[str], first: int) -> str:
    """The instruction that adds 16 products to four sums, ``%c`` from ``first`` on."""
    sums = ", ".join(f"%c{first + i}" for i in range(4))
    return (
        f"mma.sync.aligned.m16n8k16.row.col.f32.{dtype}.{dtype}.f32 {{{sums}}}, {{{', '.join(a)}}}, "
        f"{{{', '.join(b)}}}, {{{sums}}};"
    )
