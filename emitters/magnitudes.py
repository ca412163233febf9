"""The kernel that finds the largest magnitudes of f32 operands, of each row of A and of each column of B, as PTX. They
are the scales of components with less range than f32 (emitters/splitting.py).

A CTA finds the magnitudes of a few rows or columns, and its threads share their K: those of a warp read a line, along K
or across it. A magnitude is kept as the bits of f32, whose order is that of integers; infinities and NaN are the
largest.

A launch reads up to :data:`JOBS` operands, each with its own CTAs, as described by :data:`JOB`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from string import Template

from gemmill.emitters.ptx import choose_job, head, lines

ENTRY = "gemmill_magnitudes"
"""Symbol of the kernel."""
JOBS = 2
"""Most operands of a launch: A and B."""
JOB = struct.Struct("<QQqqqIIII")
"""The parameters of an operand: its address and that of its magnitudes; bytes between its rows of A or columns of B,
between elements along K, and between matrices; rows of A or columns of B, which have a magnitude; K; those of a CTA;
index of its first CTA."""
JOBS_LAYOUT = struct.Struct(f"<{JOBS * JOB.size}s")
"""The parameter of the kernel."""
THREADS = 512
"""Threads of a CTA."""
ROWS = {True: 4, False: 32}
"""The magnitudes that a CTA finds, by whether elements along K follow one another."""
_LOADS = 8
"""Loads of a thread that are on their way at once."""

_BODY = Template("""\
  .shared .align 16 .b8 largest[$shared];
  .reg .pred %later, %more, %inside, %along, %leads, %has;
  .reg .b32 %block, %begin, %thread, %count, %k, %place, %blocks, %matrix, %row, %step, %of_row, %of_k, %x;
  .reg .b32 %largest, %slot, %v<$loads>;
  .reg .b64 %job, %from, %to, %stride, %k_stride, %apart, %at, %y;
  // The operand that this CTA has a part in.
$choose
  ld.param.b64 %from, [%job];
  ld.param.b64 %to, [%job + 8];
  ld.param.b64 %stride, [%job + 16];
  ld.param.b64 %k_stride, [%job + 24];
  ld.param.b64 %apart, [%job + 32];
  ld.param.b32 %count, [%job + 40];
  ld.param.b32 %k, [%job + 44];
  ld.param.b32 %row, [%job + 48];
  ld.param.b32 %begin, [%job + 52];
  setp.eq.u64 %along, %k_stride, 4;
  mov.b32 %thread, %tid.x;
  sub.u32 %block, %block, %begin;

  // This thread's row within the CTA and place along K, and the threads that share a row.
  div.u32 %step, $threads, %row;
  div.u32 %x, %thread, %row;
  mul.lo.u32 %of_row, %x, %row;
  sub.u32 %of_row, %thread, %of_row;
  div.u32 %of_k, %thread, %step;
  mul.lo.u32 %place, %of_k, %step;
  sub.u32 %place, %thread, %place;
  selp.b32 %of_row, %of_k, %of_row, %along;
  selp.b32 %of_k, %place, %x, %along;

  // Its matrix and row.
  add.u32 %blocks, %count, %row;
  sub.u32 %blocks, %blocks, 1;
  div.u32 %blocks, %blocks, %row;
  div.u32 %matrix, %block, %blocks;
  mul.lo.u32 %x, %matrix, %blocks;
  sub.u32 %block, %block, %x;
  mad.lo.u32 %row, %block, %row, %of_row;
  setp.lt.u32 %inside, %row, %count;
  cvt.u64.u32 %y, %matrix;
  mad.lo.u64 %at, %y, %apart, %from;
  cvt.u64.u32 %y, %row;
  mad.lo.u64 %at, %y, %stride, %at;
  cvt.u64.u32 %y, %of_k;
  mad.lo.u64 %at, %y, %k_stride, %at;
  cvt.u64.u32 %y, %step;
  mul.lo.u64 %k_stride, %k_stride, %y;
  mov.b32 %slot, largest;
  mad.lo.u32 %slot, %of_row, 4, %slot;
  setp.eq.u32 %leads, %of_k, 0;
  mov.b32 %largest, 0;
  @%leads st.shared.b32 [%slot], %largest;
  bar.sync 0;

  // The next kernel may be set up meanwhile; what the one before writes, or reads of the magnitudes, is waited for.
  griddepcontrol.launch_dependents;
  griddepcontrol.wait;
  mov.b32 %begin, 0;
MORE:
$load
  setp.lt.u32 %more, %begin, %k;
  @%more bra MORE;
  @%inside red.shared.max.u32 [%slot], %largest;
  bar.sync 0;
  ld.shared.b32 %largest, [%slot];
  mad.lo.u32 %x, %matrix, %count, %row;
  mul.wide.u32 %y, %x, 4;
  add.u64 %to, %to, %y;
  setp.lt.and.u32 %leads, %row, %count, %leads;
  @%leads st.global.b32 [%to], %largest;
  ret;
}
""")


def emit_magnitudes() -> str:
    """The PTX of the kernel, for sm_90 and later. Its parameter is :data:`JOBS` times :data:`JOB`.

    CTAs have :data:`THREADS` threads. The kernel uses programmatic dependent launch: it can start before the previous
    kernel of the stream ends.
    """
    return head(ENTRY, JOBS_LAYOUT, THREADS) + _BODY.substitute(
        shared=4 * max(ROWS.values()),
        loads=_LOADS,
        threads=THREADS,
        choose=choose_job(JOB, JOBS),
        load=lines(_load()),
    )


def _load() -> Iterator[str]:
    """Yield the code that loads some elements of a thread, 0 beyond K, and keeps the largest magnitude."""
    for i in range(_LOADS):
        yield "setp.lt.and.u32 %has, %of_k, %k, %inside;"
        yield f"mov.b32 %v{i}, 0;"
        yield f"@%has ld.global.b32 %v{i}, [%at];"
        yield "add.u64 %at, %at, %k_stride;"
        yield "add.u32 %of_k, %of_k, %step;"
        yield "add.u32 %begin, %begin, %step;"
    for i in range(_LOADS):
        yield f"and.b32 %v{i}, %v{i}, 0x7fffffff;"
        yield f"max.u32 %largest, %largest, %v{i};"
