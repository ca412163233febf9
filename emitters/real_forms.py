"""The kernel that writes complex operands as real matrices, as PTX.

An element x + i y is written as two pairs, one below the other, whose signs the job says: (x, y) and (y, x). The real
product with a matrix in whose rows real and imaginary parts alternate is then the complex product, with real and
imaginary parts alternating too. If that matrix does not lie so, another job writes it as two rows instead: the real
parts, then the imaginary parts.

A launch writes up to :data:`JOBS` operands, each with its own CTAs, as described by :data:`JOB`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from string import Template

from gemmill.emitters.ptx import FIRST_VECTOR, choose_job, head, lines

JOBS = 2
"""Most operands of a launch: A and B."""
JOB = struct.Struct("<QQqqqQIIIIII")
"""The parameters of an operand: its address and that of its new form; bytes between its rows, columns and matrices;
bytes between rows of the new form; total number of rows, rows of a matrix, columns; signs; 1 for pairs, 0 for separate
rows; index of its first CTA. An operand without elements has no CTAs."""
JOBS_LAYOUT = struct.Struct(f"<{JOBS * JOB.size}s")
"""The parameter of the kernel."""
UPPER, LOWER, TURNED = 1, 2, 4
"""Signs: y is negated in the first pair, y in the second, x in the second."""
THREADS = 128
"""Threads of a CTA."""
_ELEMENTS = "abcd"
"""The suffixes of register names for the elements of a thread."""
BLOCK = THREADS * len(_ELEMENTS)
"""Elements of a CTA."""

_BODY = Template("""\
  .reg .pred %later;
  .reg .b32 %block, %begin, %thread, %row, %first, %left, %x, %all, %rows, %vectors, %signs, %sign, %pairs, %width;
  .reg .b64 %job, %from, %to, %stride, %step, %matrix, %copied, %y, %z;
  .reg .b$bits %upper, %lower, %turned;
$registers
  // The operand that this CTA has a part in.
$choose
  ld.param.b64 %from, [%job];
  ld.param.b64 %to, [%job + 8];
  ld.param.b64 %stride, [%job + 16];
  ld.param.b64 %step, [%job + 24];
  ld.param.b64 %matrix, [%job + 32];
  ld.param.b64 %copied, [%job + 40];
  ld.param.b32 %all, [%job + 48];
  ld.param.b32 %rows, [%job + 52];
  ld.param.b32 %vectors, [%job + 56];
  ld.param.b32 %signs, [%job + 60];
  ld.param.b32 %pairs, [%job + 64];
  ld.param.b32 %begin, [%job + 68];
  mul.lo.u32 %width, %pairs, $size;
  add.u32 %width, %width, $size;
$flips

$first
$locate
  // The next kernel may be set up meanwhile; what the one before writes, or reads of the new form, is waited for.
  griddepcontrol.launch_dependents;
  griddepcontrol.wait;
$load
$store
  ret;
}
""")

_REGISTERS = Template("""\
  .reg .pred %inside$i, %paired$i, %apart$i;
  .reg .b32 %row$i, %column$i;
  .reg .b64 %at$i, %into$i, %below$i;
  .reg .b$bits %re$i, %im$i, %u$i, %v$i, %w$i;""")

_LOCATE = Template("""\
  // Element $i: where it lies, and where its pairs go.
  add.u32 %column$i, %first, $ahead;
  div.u32 %row$i, %column$i, %vectors;
  mul.lo.u32 %x, %row$i, %vectors;
  sub.u32 %column$i, %column$i, %x;
  add.u32 %row$i, %row$i, %row;
  setp.lt.u32 %inside$i, %row$i, %all;
  setp.eq.and.u32 %paired$i, %pairs, 1, %inside$i;
  setp.eq.and.u32 %apart$i, %pairs, 0, %inside$i;
  cvt.u64.u32 %y, %row$i;
  mul.lo.u64 %y, %y, 2;
  mad.lo.u64 %into$i, %y, %copied, %to;
  mul.wide.u32 %y, %column$i, %width;
  add.u64 %into$i, %into$i, %y;
  add.u64 %below$i, %into$i, %copied;
  div.u32 %x, %row$i, %rows;
  mul.lo.u32 %left, %x, %rows;
  sub.u32 %row$i, %row$i, %left;
  cvt.u64.u32 %y, %x;
  mad.lo.u64 %at$i, %y, %matrix, %from;
  cvt.u64.u32 %y, %row$i;
  mad.lo.u64 %at$i, %y, %stride, %at$i;
  cvt.u64.u32 %y, %column$i;
  mad.lo.u64 %at$i, %y, %step, %at$i;""")


def entry(size: int) -> str:
    """The symbol of the kernel for parts of so many bytes."""
    return f"gemmill_real_form_f{8 * size}"


def emit_real_forms(size: int) -> str:
    """The PTX of the kernel for parts of 4 or 8 bytes, for sm_90 and later. Its parameter is :data:`JOBS` times
    :data:`JOB`.

    CTAs have :data:`THREADS` threads and write :data:`BLOCK` elements. The kernel uses programmatic dependent launch:
    it can start before the previous kernel of the stream ends.
    """
    bits = 8 * size

    def per_element(template: Template) -> str:
        return "\n".join(
            template.substitute(i=i, ahead=place * THREADS, size=size, bits=bits) for place, i in enumerate(_ELEMENTS)
        )

    return head(entry(size), JOBS_LAYOUT, THREADS) + _BODY.substitute(
        bits=bits,
        size=size,
        registers=per_element(_REGISTERS),
        choose=choose_job(JOB, JOBS),
        flips=lines(_flips(bits)),
        first=FIRST_VECTOR.substitute(block=BLOCK),
        locate=per_element(_LOCATE),
        load="\n".join(f"  @%inside{i} ld.global.v2.b{bits} {{%re{i}, %im{i}}}, [%at{i}];" for i in _ELEMENTS),
        store="\n".join(lines(_store(i, bits)) for i in _ELEMENTS),
    )


def _flips(bits: int) -> Iterator[str]:
    """Yield the code that makes a mask with the sign bit from each sign of the job."""
    for name, sign in (("upper", UPPER), ("lower", LOWER), ("turned", TURNED)):
        yield f"and.b32 %sign, %signs, {sign};"
        yield "setp.gt.u32 %later, %sign, 0;"
        yield f"selp.b{bits} %{name}, {1 << bits - 1:#x}, 0, %later;"


def _store(i: str, bits: int) -> Iterator[str]:
    """Yield the code that stores an element."""
    yield f"xor.b{bits} %u{i}, %im{i}, %upper;"
    yield f"xor.b{bits} %v{i}, %im{i}, %lower;"
    yield f"xor.b{bits} %w{i}, %re{i}, %turned;"
    yield f"@%paired{i} st.global.v2.b{bits} [%into{i}], {{%re{i}, %u{i}}};"
    yield f"@%paired{i} st.global.v2.b{bits} [%below{i}], {{%v{i}, %w{i}}};"
    yield f"@%apart{i} st.global.b{bits} [%into{i}], %re{i};"
    yield f"@%apart{i} st.global.b{bits} [%below{i}], %im{i};"
