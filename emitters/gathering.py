"""The kernels that copy rows of tokens, and scales of their blocks, into the order of an index, as PTX, which the
driver compiles like copies.py.

Layers whose first product does not gather rows itself launch them. Of rows, a CTA copies a part of one, a vector in
each thread. Of scales, a thread copies a row; the copies are contiguous along the rows, as kernels read scales fastest.
"""

from __future__ import annotations

import struct
from string import Template

ROWS_ENTRY, SCALES_ENTRY = "gemmill_gathering_rows", "gemmill_gathering_scales"
"""Symbols of the kernels."""
ROWS_JOB = struct.Struct("<QQQqqII")
"""Parameters for rows: addresses of the rows, the index and the copies; bytes between rows and between copies; vectors
of a row; CTAs of a row."""
SCALES_JOB = struct.Struct("<QQQqqqII")
"""Parameters for scales: addresses of the scales, the index and the copies; bytes between rows, between the scales of a
row, and between columns of the copies; copied rows; scales of a row."""
THREADS = 128
"""Threads of a CTA."""
WIDTHS = (16, 8, 4, 2, 1)
"""Bytes that a vector may have."""

_HEAD = Template("""\
.version 7.8
.target sm_90
.address_size 64

.visible .entry $entry(.param .align 8 .b8 job[$bytes])
.maxntid $threads
{
  .reg .pred %outside, %done;
  .reg .b16 %half<1>;
  .reg .b32 %x, %row, %index, %vector, %count, %parts, %scale, %word<4>;
  .reg .b64 %from, %rows, %to, %from_step, %element_step, %to_step, %t, %z;
  ld.param.b64 %from, [job];
  ld.param.b64 %rows, [job + 8];
  ld.param.b64 %to, [job + 16];
  ld.param.b64 %from_step, [job + 24];
""")

_ROWS = Template("""\
  ld.param.b64 %to_step, [job + 32];
  ld.param.b32 %count, [job + 40];
  ld.param.b32 %parts, [job + 44];

  // The next kernel may be set up meanwhile; the one before writes the index.
  griddepcontrol.launch_dependents;
  griddepcontrol.wait;

  // The row of this CTA, and the vector of this thread.
  mov.b32 %x, %ctaid.x;
  div.u32 %row, %x, %parts;
  mul.lo.u32 %vector, %row, %parts;
  sub.u32 %vector, %x, %vector;
  mov.b32 %x, %tid.x;
  mad.lo.u32 %vector, %vector, $threads, %x;
  setp.ge.u32 %outside, %vector, %count;
  @%outside bra DONE;
  mul.wide.u32 %z, %row, 4;
  add.u64 %rows, %rows, %z;
  ld.global.b32 %index, [%rows];
  cvt.u64.u32 %t, %index;
  mad.lo.s64 %from, %t, %from_step, %from;
  cvt.u64.u32 %t, %row;
  mad.lo.s64 %to, %t, %to_step, %to;
  mul.wide.u32 %z, %vector, $width;
  add.u64 %from, %from, %z;
  add.u64 %to, %to, %z;
  ld.global$type $registers, [%from];
  st.global$type [%to], $registers;
DONE:
  ret;
}
""")

_SCALES = Template("""\
  ld.param.b64 %element_step, [job + 32];
  ld.param.b64 %to_step, [job + 40];
  ld.param.b32 %count, [job + 48];
  ld.param.b32 %parts, [job + 52];
  griddepcontrol.launch_dependents;
  griddepcontrol.wait;

  // The row of this thread.
  mov.b32 %x, %ctaid.x;
  mov.b32 %row, %tid.x;
  mad.lo.u32 %row, %x, $threads, %row;
  setp.ge.u32 %outside, %row, %count;
  @%outside bra DONE;
  mul.wide.u32 %z, %row, 4;
  add.u64 %rows, %rows, %z;
  add.u64 %to, %to, %z;
  ld.global.b32 %index, [%rows];
  cvt.u64.u32 %t, %index;
  mad.lo.s64 %from, %t, %from_step, %from;
  mov.b32 %x, 0;
NEXT:
  setp.ge.u32 %done, %x, %parts;
  @%done bra DONE;
  ld.global.b32 %scale, [%from];
  st.global.b32 [%to], %scale;
  add.s64 %from, %from, %element_step;
  add.s64 %to, %to, %to_step;
  add.u32 %x, %x, 1;
  bra NEXT;
DONE:
  ret;
}
""")


def emit_gathering_rows(width: int) -> str:
    """The PTX of the kernel that copies rows in vectors of ``width`` bytes, for sm_90 and later. Its parameters are
    :data:`ROWS_JOB`; it has ``parts`` CTAs for each row."""
    words = width // 4
    registers = ", ".join(f"%word{i}" for i in range(words))
    kind = f".v{words}.b32" if words > 1 else f".b{8 * width}"
    operands = "%half0" if width < 4 else f"{{{registers}}}" if words > 1 else registers
    head = _HEAD.substitute(entry=ROWS_ENTRY, bytes=ROWS_JOB.size, threads=THREADS)
    return head + _ROWS.substitute(threads=THREADS, width=width, type=kind, registers=operands)


def emit_gathering_scales() -> str:
    """The PTX of the kernel that copies scales. Its parameters are :data:`SCALES_JOB`; a thread copies a row."""
    head = _HEAD.substitute(entry=SCALES_ENTRY, bytes=SCALES_JOB.size, threads=THREADS)
    return head + _SCALES.substitute(threads=THREADS)
