"""The kernel that splits f32 operands into bf16 components, as PTX.

An element is the sum of its components: the first holds its upper 8 bits, the next the 8 bits that follow, and the last
one the rest, rounded. Three components hold all 24 bits, except those below 2^-133.

Products with an infinity would be NaN if the other factor were 0. A component that would be 0 is therefore 2^-133 with
the sign of the element, unless the element is 0; and so are all components of an infinity or NaN except the first.

A thread splits two vectors of eight elements. It loads a whole vector at a multiple of 16 bytes by two instructions,
and others by one for each element. The last vector of a row ends with zeros; rows of a component are whole lines.

A launch splits up to :data:`JOBS` operands, each with its own CTAs, as described by :data:`JOB`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from string import Template

from gemmill.emitters.ptx import FIRST_VECTOR, choose_job, head, lines
from gemmill.library.dtypes import DType

JOBS = 2
"""Most operands of a launch: A and B."""
JOB = struct.Struct("<QQqQqIIII")
"""The parameters of an operand: its address and that of its components; bytes between its rows and between those of a
component; bytes between its matrices; total number of rows, rows of a matrix, elements of a row; index of its first
CTA. An operand without rows has no CTAs."""
JOBS_LAYOUT = struct.Struct(f"<{JOBS * JOB.size}s")
"""The parameter of the kernel."""
THREADS = 128
"""Threads of a CTA."""
LEAST = 0x00010000
"""The bits of 2^-133, the least bf16, as f32."""
VECTOR = 8
"""Elements of a vector."""
_VECTORS = "ab"
"""The suffixes of register names for the two vectors of a thread."""
BLOCK = THREADS * len(_VECTORS)
"""Vectors of a CTA."""

_BODY = Template("""\
  .reg .pred %later;
  .reg .b32 %block, %begin, %thread, %row, %first, %left, %x, %all, %rows, %columns, %vectors;
  .reg .b64 %job, %from, %to, %stride, %copied, %matrix, %component, %y, %z;
$registers
  // The operand that this CTA has a part in.
  mov.b32 %block, %ctaid.x;
  mov.b64 %job, job;
$choose
  ld.param.b64 %from, [%job];
  ld.param.b64 %to, [%job + 8];
  ld.param.b64 %stride, [%job + 16];
  ld.param.b64 %copied, [%job + 24];
  ld.param.b64 %matrix, [%job + 32];
  ld.param.b32 %all, [%job + 40];
  ld.param.b32 %rows, [%job + 44];
  ld.param.b32 %columns, [%job + 48];
  ld.param.b32 %begin, [%job + 52];
  cvt.u64.u32 %y, %rows;
  mul.lo.u64 %component, %copied, %y;
  add.u32 %x, %columns, $round;
  shr.u32 %vectors, %x, $shift;

$first
$locate
  // The next kernel may be set up meanwhile; what the one before writes, or reads of the components, is waited for.
  griddepcontrol.launch_dependents;
  griddepcontrol.wait;
$load
$split
  ret;
}
""")

_REGISTERS = Template("""\
  .reg .pred %inside$i, %aligned$i, %whole$i, %has$i, %huge$i, %nan$i, %small$i;
  .reg .b32 %row$i, %vector$i, %count$i, %x$i<8>, %p$i<8>, %t$i<8>, %size$i, %word$i;
  .reg .b64 %at$i, %into$i;""")

_LOCATE = Template("""\
  // Vector $i: where it lies, where its components go, and how many elements it has.
  add.u32 %vector$i, %first, $ahead;
  div.u32 %row$i, %vector$i, %vectors;
  mul.lo.u32 %x, %row$i, %vectors;
  sub.u32 %vector$i, %vector$i, %x;
  add.u32 %row$i, %row$i, %row;
  setp.lt.u32 %inside$i, %row$i, %all;
  div.u32 %x, %row$i, %rows;
  mul.lo.u32 %left, %x, %rows;
  sub.u32 %row$i, %row$i, %left;
  cvt.u64.u32 %y, %x;
  mad.lo.u64 %at$i, %y, %matrix, %from;
  mul.lo.u64 %y, %y, $components;
  mad.lo.u64 %into$i, %y, %component, %to;
  cvt.u64.u32 %y, %row$i;
  mad.lo.u64 %at$i, %y, %stride, %at$i;
  mad.lo.u64 %into$i, %y, %copied, %into$i;
  mul.wide.u32 %y, %vector$i, $elements;
  add.u64 %at$i, %at$i, %y;
  mul.wide.u32 %y, %vector$i, $narrow;
  add.u64 %into$i, %into$i, %y;
  mul.lo.u32 %x, %vector$i, $count;
  sub.u32 %left, %columns, %x;
  min.u32 %left, %left, $count;
  selp.b32 %count$i, %left, 0, %inside$i;
  cvt.u32.u64 %x, %at$i;
  and.b32 %x, %x, 15;
  setp.eq.u32 %aligned$i, %x, 0;
  setp.ge.and.u32 %whole$i, %count$i, $count, %aligned$i;
  selp.b32 %count$i, 0, %count$i, %whole$i;""")


def entry(split: DType) -> str:
    """The symbol of the kernel for a split type."""
    return f"gemmill_split_{split.component}x{split.components}"


def emit_splitting(split: DType) -> str:
    """The PTX of the kernel for a split type with components of bf16, for sm_90 and later. Its parameter is
    :data:`JOBS` times :data:`JOB`.

    CTAs have :data:`THREADS` threads and split :data:`BLOCK` vectors. The kernel uses programmatic dependent launch: it
    can start before the previous kernel of the stream ends.
    """
    assert split.component == "bf16"

    def per_vector(template: Template) -> str:
        sizes = {"count": VECTOR, "elements": 4 * VECTOR, "narrow": 2 * VECTOR, "components": split.components}
        return "\n".join(template.substitute(sizes, i=i, ahead=place * THREADS) for place, i in enumerate(_VECTORS))

    return head(entry(split), JOBS_LAYOUT, THREADS) + _BODY.substitute(
        round=VECTOR - 1,
        shift=VECTOR.bit_length() - 1,
        registers=per_vector(_REGISTERS),
        choose=choose_job(JOB, JOBS),
        first=FIRST_VECTOR.substitute(block=BLOCK),
        locate=per_vector(_LOCATE),
        load="\n".join(lines(_load(i)) for i in _VECTORS),
        split="\n".join(lines(_split(i, split.components)) for i in _VECTORS),
    )


def _load(i: str) -> Iterator[str]:
    """Yield the code that loads a vector; elements beyond the row are 0."""
    for element in range(VECTOR):
        yield f"setp.gt.u32 %has{i}, %count{i}, {element};"
        yield f"mov.b32 %x{i}{element}, 0;"
        yield f"@%has{i} ld.global.b32 %x{i}{element}, [%at{i} + {4 * element}];"
    for first in range(0, VECTOR, 4):
        words = ", ".join(f"%x{i}{first + word}" for word in range(4))
        yield f"@%whole{i} ld.global.v4.b32 {{{words}}}, [%at{i} + {4 * first}];"


def _split(i: str, components: int) -> Iterator[str]:
    """Yield the code that stores the components of a vector: each is subtracted from what is left of an element."""
    for element in range(VECTOR):
        yield from _least(f"%x{i}{element}", f"%t{i}{element}", i)
    for component in range(components):
        for element in range(VECTOR):
            yield from _take(f"%x{i}{element}", f"%p{i}{element}", f"%t{i}{element}", i, component, components)
        for pair in range(VECTOR // 2):
            first, second = (f"%p{i}{2 * pair + half}" for half in (0, 1))
            if component == components - 1:
                yield f"cvt.rn.bf16x2.f32 %p{i}{pair}, {second}, {first};"
            else:
                yield f"prmt.b32 %p{i}{pair}, {first}, {second}, 0x7632;"
        words = ", ".join(f"%p{i}{word}" for word in range(VECTOR // 2))
        yield f"@%inside{i} st.global.v4.b32 [%into{i}], {{{words}}};"
        if component < components - 1:
            yield f"add.u64 %into{i}, %into{i}, %component;"


def _least(value: str, least: str, i: str) -> Iterator[str]:
    """Yield the code for what takes the place of a component that would be 0: 2^-133 with the sign of the value, or a
    value that is 0 itself."""
    yield f"and.b32 %size{i}, {value}, 0x7fffffff;"
    yield f"and.b32 {least}, {value}, 0x80000000;"
    yield f"xor.b32 %word{i}, {least}, {LEAST:#010x};"
    yield f"setp.eq.u32 %small{i}, %size{i}, 0;"
    yield f"selp.b32 {least}, {least}, %word{i}, %small{i};"


def _take(value: str, taken: str, least: str, i: str, component: int, components: int) -> Iterator[str]:
    """Yield the code that takes a component from a value: the upper 8 bits, but all that is left as the last. Nothing
    is left of an infinity or NaN."""
    is_first, is_last = component == 0, component == components - 1
    if is_first:
        yield f"and.b32 %size{i}, {value}, 0x7fffffff;"
        yield f"setp.gt.u32 %nan{i}, %size{i}, 0x7f800000;"
        yield f"setp.ge.u32 %huge{i}, %size{i}, 0x7f800000;"
    yield f"and.b32 {taken}, {value}, 0xffff0000;"
    if is_first:
        yield f"selp.b32 {taken}, 0x7fff0000, {taken}, %nan{i};"
    yield f"and.b32 %size{i}, {taken}, 0x7fff0000;"
    yield f"setp.eq.u32 %small{i}, %size{i}, 0;"
    if is_last:
        yield f"selp.b32 {taken}, {least}, {value}, %small{i};"
        return
    yield f"sub.rn.f32 {value}, {value}, {taken};"
    if is_first:
        yield f"selp.b32 {value}, 0, {value}, %huge{i};"
    yield f"selp.b32 {taken}, {least}, {taken}, %small{i};"
