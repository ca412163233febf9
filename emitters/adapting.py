"""The kernels that multiply few tokens by the factors of their adapters, as PTX, which the driver compiles like
copies.py. Products of groups need more tokens to be fast.

The first kernel multiplies a token by the rows of its adapter's first factor: a warp computes :data:`RANKS` sums. Each
lane adds products of every 32nd vector in f32, one fused multiply-add after the other, and a tree adds the lanes. The
second multiplies these sums, in f32, by the rows of the other factor: a thread computes two sums, in the order of
ranks, and adds them to the token's elements. The bits of a token so depend on nothing but itself and its adapter.

A token's adapter is its id. Where tokens are sorted already, it is the number of groups that end before its place.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from string import Template

from gemmill.emitters.ptx import BITS, half_to_f32, head, lines

SHRINK_ENTRY, EXPAND_ENTRY = "gemmill_adapting_shrink", "gemmill_adapting_expand"
"""Symbols of the kernels."""
SHRINK_JOB = struct.Struct("<QQQQQqqqIIIIII")
"""Parameters of the first kernel: addresses of x, the first factors, the ids or places, the offsets and the sums; bytes
between tokens, between adapters and between rows of a factor; vectors of a token; adapters; rank; CTAs of a token;
bytes between ids; padding."""
EXPAND_JOB = struct.Struct("<QQQQQQQqqqqqIIIIIf")
"""Parameters of the second kernel: addresses of the sums, the second factors, the ids or places, the offsets, the
scales, y and the result; bytes between adapters, between rows of a factor, between scales, and between rows of y and of
the result; pairs of columns; adapters; rank; CTAs of a token; bytes between ids; the scale of all tokens."""
THREADS = 128
"""Threads of a CTA."""
RANKS = 2
"""Rows of the first factor that a warp multiplies."""
RANKS_OF_CTA = THREADS // 32 * RANKS
"""Rows that a CTA multiplies; ranks are multiples."""
_VECTOR = 16
"""Bytes of a vector."""
_ELEMENTS = 8
"""Elements of a vector."""
_AHEAD = 4
"""Vectors of a lane that are on their way at once."""


@dataclass(frozen=True, slots=True)
class Adaptation:
    """What the second kernel is made for; the first needs the first two."""

    dtype: str
    """Dtype of tokens and factors, of 16 bits."""
    routed: bool
    """Whether tokens are sorted already."""
    y: str | None
    """Dtype of y; None for sums that start from 0."""
    scale: str | None
    """Dtype of the scales of tokens; None where all have one."""
    out: str


_REGISTERS = """\
  .reg .pred %outside, %done, %in, %unused;
  .reg .b16 %half<2>;
  .reg .b32 %vectors, %adapters, %rank, %parts, %step, %token, %part, %thread, %lane, %id, %place, %end, %i, %x;
  .reg .b64 %ids, %offsets, %t, %z;
"""

_TOKEN = Template("""\
  // The next kernel may be set up meanwhile; the one before writes the tokens.
  griddepcontrol.launch_dependents;
  griddepcontrol.wait;

  // The token of this CTA, and its adapter.
  mov.b32 %x, %ctaid.x;
  div.u32 %token, %x, %parts;
  mul.lo.u32 %part, %token, %parts;
  sub.u32 %part, %x, %part;
  mov.b32 %thread, %tid.x;
  and.b32 %lane, %thread, 31;
  cvt.u64.u32 %t, %token;
  mul.wide.u32 %z, %token, %step;
  add.u64 %ids, %ids, %z;
  ld.global.b32 %id, [%ids];
$search
  setp.ge.u32 %unused, %id, %adapters;
""")

_SEARCH = """\
  mov.b32 %place, %id;
  mov.b32 %id, 0;
  mov.b32 %i, 0;
SEARCH:
  setp.ge.u32 %done, %i, %adapters;
  @%done bra FOUND;
  add.u32 %x, %i, %lane;
  setp.lt.u32 %in, %x, %adapters;
  mul.wide.u32 %z, %x, 4;
  add.u64 %z, %z, %offsets;
  @%in ld.global.b32 %end, [%z];
  setp.ge.and.u32 %in, %place, %end, %in;
  vote.sync.ballot.b32 %x, %in, 0xffffffff;
  popc.b32 %x, %x;
  add.u32 %id, %id, %x;
  add.u32 %i, %i, 32;
  bra SEARCH;
FOUND:"""
"""Counts the groups that end before the token's place, which is above all where it has no adapter."""

_SHRINK = Template("""\
  .reg .b32 %first, %element<$rows>, %sum<$ranks>;
  .reg .b32 %v<$words>;
  .reg .b64 %from, %factor, %to;
  ld.param.b64 %from, [job];
  ld.param.b64 %factor, [job + 8];
  ld.param.b64 %ids, [job + 16];
  ld.param.b64 %offsets, [job + 24];
  ld.param.b64 %to, [job + 32];
  ld.param.b32 %vectors, [job + 64];
  ld.param.b32 %adapters, [job + 68];
  ld.param.b32 %rank, [job + 72];
  ld.param.b32 %parts, [job + 76];
  ld.param.b32 %step, [job + 80];
$token
  @%unused bra DONE;

  // The rows of this warp, and the first vectors of this lane.
  shr.u32 %first, %thread, 5;
  mul.lo.u32 %first, %first, $ranks;
  mad.lo.u32 %first, %part, $ranks_of_cta, %first;
  ld.param.b64 %z, [job + 40];
  mad.lo.s64 %from, %t, %z, %from;
  cvt.u64.u32 %t, %id;
  ld.param.b64 %z, [job + 48];
  mad.lo.s64 %factor, %t, %z, %factor;
  mul.wide.u32 %z, %lane, $vector;
  add.u64 %from, %from, %z;
  add.u64 %factor, %factor, %z;
$locate
$zero
  mov.b32 %i, %lane;
  mov.b32 %place, 0;
NEXT:
  setp.ge.u32 %done, %place, %vectors;
  @%done bra SUMMED;
$load
$multiply
  add.u32 %i, %i, $ahead;
  add.u32 %place, %place, $ahead;
  bra NEXT;
SUMMED:
$reduce
  mad.lo.u32 %x, %token, %rank, %first;
  mul.wide.u32 %z, %x, 4;
  add.u64 %to, %to, %z;
  setp.eq.u32 %in, %lane, 0;
  @%in st.global.v$ranks.b32 [%to], {$sums};
DONE:
  ret;
}
""")

_EXPAND = Template("""\
  .reg .b32 %scale, %sum<2>, %element, %first<2>, %h<$elements>, %v<8>;
  .reg .b64 %from, %factor, %scales, %y, %out, %row, %stride;
  ld.param.b64 %from, [job];
  ld.param.b64 %factor, [job + 8];
  ld.param.b64 %ids, [job + 16];
  ld.param.b64 %offsets, [job + 24];
  ld.param.b64 %scales, [job + 32];
  ld.param.b64 %y, [job + 40];
  ld.param.b64 %out, [job + 48];
  ld.param.b32 %vectors, [job + 96];
  ld.param.b32 %adapters, [job + 100];
  ld.param.b32 %rank, [job + 104];
  ld.param.b32 %parts, [job + 108];
  ld.param.b32 %step, [job + 112];
  ld.param.b32 %scale, [job + 116];
$token
  // The two columns of this thread.
  mad.lo.u32 %x, %part, $threads, %thread;
  setp.ge.u32 %outside, %x, %vectors;
  @%outside bra DONE;
$begin
  // Where there is no adapter, -0 is added, which changes nothing.
  selp.b32 %sum0, 0x80000000, 0, %unused;
  mov.b32 %sum1, %sum0;
  selp.b32 %scale, 0x3f800000, %scale, %unused;
  @%unused bra SUMMED;
  mul.lo.u32 %i, %token, %rank;
  mul.wide.u32 %z, %i, 4;
  add.u64 %from, %from, %z;
  cvt.u64.u32 %t, %id;
  ld.param.b64 %z, [job + 56];
  mad.lo.s64 %factor, %t, %z, %factor;
  ld.param.b64 %stride, [job + 64];
  add.u32 %i, %x, %x;
  cvt.u64.u32 %t, %i;
  mad.lo.s64 %factor, %t, %stride, %factor;
  add.u64 %row, %factor, %stride;
  mov.b32 %i, 0;
NEXT:
  setp.ge.u32 %done, %i, %rank;
  @%done bra SUMMED;
  ld.global.v4.b32 {%v0, %v1, %v2, %v3}, [%factor];
  ld.global.v4.b32 {%v4, %v5, %v6, %v7}, [%row];
  ld.global.v4.b32 {%h0, %h1, %h2, %h3}, [%from];
  ld.global.v4.b32 {%h4, %h5, %h6, %h7}, [%from + 16];
$multiply
  add.u64 %factor, %factor, $vector;
  add.u64 %row, %row, $vector;
  add.u64 %from, %from, 32;
  add.u32 %i, %i, $elements;
  bra NEXT;
SUMMED:
$store
DONE:
  ret;
}
""")


def emit_shrink(dtype: str, routed: bool) -> str:
    """The PTX of the first kernel, for sm_90 and later. Its parameters are :data:`SHRINK_JOB`; CTAs have
    :data:`THREADS` threads, and a token ``rank`` / :data:`RANKS_OF_CTA` CTAs."""
    rows = range(RANKS + 1)
    start = head(SHRINK_ENTRY, SHRINK_JOB, THREADS) + _REGISTERS
    return start + _SHRINK.substitute(
        token=_token(routed),
        rows=RANKS + 1,
        ranks=RANKS,
        words=4 * (RANKS + 1) * _AHEAD,
        ranks_of_cta=RANKS_OF_CTA,
        vector=_VECTOR,
        ahead=32 * _AHEAD,
        locate=lines(_locate_rows()),
        zero=lines(f"mov.b32 %sum{i}, 0;" for i in range(RANKS)),
        load=lines(line for ahead in range(_AHEAD) for row in rows for line in _load(ahead, row)),
        multiply=lines(line for ahead in range(_AHEAD) for line in _multiply_vectors(dtype, ahead)),
        reduce=lines(line for i in range(RANKS) for line in _reduce(i)),
        sums=", ".join(f"%sum{i}" for i in range(RANKS)),
    )


def emit_expand(kind: Adaptation) -> str:
    """The PTX of the second kernel, for sm_90 and later. Its parameters are :data:`EXPAND_JOB`; CTAs have
    :data:`THREADS` threads."""
    start = head(EXPAND_ENTRY, EXPAND_JOB, THREADS) + _REGISTERS
    return start + _EXPAND.substitute(
        token=_token(kind.routed),
        threads=THREADS,
        elements=_ELEMENTS,
        vector=_VECTOR,
        begin=lines(_begin(kind)),
        multiply=lines(_multiply_rows(kind.dtype)),
        store=lines(_store(kind)),
    )


def _token(routed: bool) -> str:
    return _TOKEN.substitute(search=_SEARCH if routed else "")


def _locate_rows() -> Iterator[str]:
    """Yield the code that gives each of a warp's rows an address: ``%row1`` on; ``%row0`` is the token's."""
    yield f".reg .b64 %row<{RANKS + 1}>;"
    yield "mov.b64 %row0, %from;"
    yield "ld.param.b64 %z, [job + 56];"
    yield "cvt.u64.u32 %t, %first;"
    yield "mad.lo.s64 %row1, %t, %z, %factor;"
    for i in range(2, RANKS + 1):
        yield f"add.u64 %row{i}, %row{i - 1}, %z;"


def _words(ahead: int, row: int) -> list[str]:
    first = 4 * (ahead * (RANKS + 1) + row)
    return [f"%v{first + i}" for i in range(4)]


def _load(ahead: int, row: int) -> Iterator[str]:
    """Yield the code that loads a vector of a row; zeros beyond its end."""
    words = _words(ahead, row)
    if row == 0:
        yield f"add.u32 %x, %i, {32 * ahead};"
        yield "setp.lt.u32 %in, %x, %vectors;"
    yield from (f"mov.b32 {word}, 0;" for word in words)
    yield f"@%in ld.global.v4.b32 {{{', '.join(words)}}}, [%row{row} + {32 * _VECTOR * ahead}];"
    if ahead == _AHEAD - 1:
        yield f"add.u64 %row{row}, %row{row}, {32 * _VECTOR * _AHEAD};"


def _multiply_vectors(dtype: str, ahead: int) -> Iterator[str]:
    """Yield the code that adds the products of a lane's vectors."""
    for e in range(_ELEMENTS):
        for row in range(RANKS + 1):
            yield from half_to_f32(dtype, _words(ahead, row)[e // 2], e % 2, f"%element{row}")
        for i in range(RANKS):
            yield f"fma.rn.f32 %sum{i}, %element0, %element{i + 1}, %sum{i};"


def _reduce(i: int) -> Iterator[str]:
    """Yield the code that adds the sums of all lanes."""
    for distance in (16, 8, 4, 2, 1):
        yield f"shfl.sync.bfly.b32 %x, %sum{i}, {distance}, 31, 0xffffffff;"
        yield f"add.rn.f32 %sum{i}, %sum{i}, %x;"


def _multiply_rows(dtype: str) -> Iterator[str]:
    """Yield the code that adds the products of a thread's two rows."""
    for e in range(_ELEMENTS):
        for row in range(2):
            yield from half_to_f32(dtype, f"%v{4 * row + e // 2}", e % 2, "%element")
            yield f"fma.rn.f32 %sum{row}, %h{e}, %element, %sum{row};"


def _begin(kind: Adaptation) -> Iterator[str]:
    """Yield the code that moves addresses to this token, and loads its scale and what the sums are added to."""
    if kind.scale:
        size = BITS[kind.scale] // 8
        yield "ld.param.b64 %z, [job + 72];"
        yield "mad.lo.s64 %scales, %t, %z, %scales;"
        if size == 2:
            yield "ld.global.b16 %half0, [%scales];"
            yield f"cvt.f32.{kind.scale} %scale, %half0;"
        else:
            yield "ld.global.b32 %scale, [%scales];"
    for name, dtype, stride in (("y", kind.y, 80), ("out", kind.out, 88)):
        if dtype:
            yield f"ld.param.b64 %z, [job + {stride}];"
            yield f"mad.lo.s64 %{name}, %t, %z, %{name};"
            yield f"mul.wide.u32 %z, %x, {BITS[dtype] // 4};"
            yield f"add.u64 %{name}, %{name}, %z;"
    if kind.y and BITS[kind.y] == 16:
        yield "ld.global.b32 %element, [%y];"
        for i in range(2):
            yield from half_to_f32(kind.y, "%element", i, f"%first{i}")
    elif kind.y:
        yield "ld.global.v2.b32 {%first0, %first1}, [%y];"
    else:
        yield from (f"mov.b32 %first{i}, 0;" for i in range(2))


def _store(kind: Adaptation) -> Iterator[str]:
    """Yield the code that scales the sums, adds them, rounds the results and stores them."""
    for i in range(2):
        yield f"fma.rn.f32 %sum{i}, %scale, %sum{i}, %first{i};"
    if BITS[kind.out] == 16:
        yield f"cvt.rn.{kind.out}x2.f32 %element, %sum1, %sum0;"
        yield "st.global.b32 [%out], %element;"
    else:
        yield "st.global.v2.b32 [%out], {%sum0, %sum1};"
