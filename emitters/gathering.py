"""The kernels that copy rows of tokens, and scales of their blocks, into the order of an index, as PTX, which the
driver compiles like copies.py.

Layers whose first product does not gather rows itself launch them. Of rows, a CTA copies the same part of several, a
vector of each in each thread, so that all are in flight at once. Of scales, a thread copies a row; the copies are
contiguous along the rows, as kernels read scales fastest.
"""

from __future__ import annotations

import struct
from string import Template

from gemmill.emitters.ptx import head

ROWS_ENTRY, SCALES_ENTRY = "gemmill_gathering_rows", "gemmill_gathering_scales"
"""Symbols of the kernels."""
ROWS_JOB = struct.Struct("<QQQqqIIII")
"""Parameters for rows: addresses of the rows, the index and the copies; bytes between rows and between copies; vectors
of a row; CTAs of a row; copied rows; 0."""
SCALES_JOB = struct.Struct("<QQQqqqII")
"""Parameters for scales: addresses of the scales, the index and the copies; bytes between rows, between the scales of a
row, and between columns of the copies; copied rows; scales of a row."""
THREADS = 128
"""Threads of a CTA."""
ROWS = 4
"""Rows of which a CTA copies a part."""
WIDTHS = (16, 8, 4, 2, 1)
"""Bytes that a vector may have."""

_REGISTERS = Template("""\
  .reg .pred %outside, %done, %has<$rows>;
  .reg .b16 %half<$rows>;
  .reg .b32 %x, %row, %index, %index<$rows>, %vector, %count, %parts, %last, %scale, %word<$words>;
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
  ld.param.b32 %last, [job + 48];

  // The next kernel may be set up meanwhile; the one before writes the index.
  griddepcontrol.launch_dependents;
  griddepcontrol.wait;

  // The first row of this CTA, and the vector of this thread.
  mov.b32 %x, %ctaid.x;
  div.u32 %row, %x, %parts;
  mul.lo.u32 %vector, %row, %parts;
  sub.u32 %vector, %x, %vector;
  mov.b32 %x, %tid.x;
  mad.lo.u32 %vector, %vector, $threads, %x;
  setp.ge.u32 %outside, %vector, %count;
  @%outside bra DONE;
  mul.lo.u32 %row, %row, $rows;
  mul.wide.u32 %z, %row, 4;
  add.u64 %rows, %rows, %z;
  cvt.u64.u32 %t, %row;
  mad.lo.s64 %to, %t, %to_step, %to;
  mul.wide.u32 %z, %vector, $width;
  add.u64 %from, %from, %z;
  add.u64 %to, %to, %z;
$indices$loads$stores
DONE:
  ret;
}
""")

_INDEX = Template("""
  add.u32 %x, %row, $i;
  setp.lt.u32 %has$i, %x, %last;
  @%has$i ld.global.b32 %index$i, [%rows + $at];""")
_LOAD = Template("""
  cvt.u64.u32 %t, %index$i;
  mad.lo.s64 %t, %t, %from_step, %from;
  @%has$i ld.global$type $registers, [%t];""")
_STORE = Template("""
  @%has$i st.global$type [%to], $registers;
  add.s64 %to, %to, %to_step;""")

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
  mul.wide.u32 %z, %row, $size;
  add.u64 %to, %to, %z;
  ld.global.b32 %index, [%rows];
  cvt.u64.u32 %t, %index;
  mad.lo.s64 %from, %t, %from_step, %from;
  mov.b32 %x, 0;
NEXT:
  setp.ge.u32 %done, %x, %parts;
  @%done bra DONE;
  ld.global.b$bits %scale, [%from];
  st.global.b$bits [%to], %scale;
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
    :data:`ROWS_JOB`; it has ``parts`` CTAs for each :data:`ROWS` rows."""
    words = width // 4
    kind = f".v{words}.b32" if words > 1 else f".b{8 * width}"

    def registers(i: int) -> str:
        names = ", ".join(f"%word{i * words + j}" for j in range(words))
        return f"%half{i}" if width < 4 else f"{{{names}}}" if words > 1 else names

    of_rows = [{"i": i, "at": 4 * i, "type": kind, "registers": registers(i)} for i in range(ROWS)]
    indices, loads, stores = ("".join(map(form.substitute, of_rows)) for form in (_INDEX, _LOAD, _STORE))
    return _head(ROWS_ENTRY, ROWS_JOB, words) + _ROWS.substitute(
        threads=THREADS, width=width, rows=ROWS, indices=indices, loads=loads, stores=stores
    )


def emit_gathering_scales(size: int) -> str:
    """The PTX of the kernel that copies scales of ``size`` bytes, 4 or 1. Its parameters are :data:`SCALES_JOB`; a
    thread copies a row."""
    return _head(SCALES_ENTRY, SCALES_JOB) + _SCALES.substitute(threads=THREADS, size=size, bits=8 * size)


def _head(entry: str, job: struct.Struct, words: int = 0) -> str:
    return head(entry, job, THREADS) + _REGISTERS.substitute(rows=ROWS, words=max(1, ROWS * words))
