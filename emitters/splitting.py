"""The kernels that split f32 operands into components of 16 bits, as PTX.

An element is the sum of its components. Of bf16, the first holds its upper 8 bits, the next the 8 bits that follow, and
the last one the rest, rounded. Three components hold all 24 bits, except those below 2^-133.

Products with an infinity would be NaN if the other factor were 0. A component of bf16 that would be 0 is therefore
2^-133 with the sign of the element, unless the element is 0; and so are all components of an infinity or NaN except the
first.

f16 has less range. Each row of A, and each column of B, is first multiplied by an even power of 2 that brings its
largest magnitude (emitters/magnitudes.py) to 2^13 or more, but below 2^15. The first component is the element,
rounded to f16, and the second the rest, rounded: together they hold 23 bits, except those below 2^-24. Kernels multiply
the sums of products by the inverse powers (emitters/include/gemmill/mma/unscale.cuh).

The components of f16 may have different signs, so an infinity or NaN is the second component, and the first is 1 with
its sign. Of two infinities, each meets the 1 of the other. A first component that would be 0 is 2^-24 with the sign of
the element, unless that is 0; the second component makes up for it.

A thread splits two vectors of eight elements. It loads a whole vector at a multiple of 16 bytes by two instructions,
and others by one for each element. The last vector of a row ends with zeros; rows of a component are whole lines.

A launch splits up to :data:`JOBS` operands, each with its own CTAs, as described by :data:`JOB`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from string import Template

from gemmill.emitters.ptx import FIRST_VECTOR, choose_job, half_to_f32, head, lines
from gemmill.library.dtypes import DType

JOBS = 2
"""Most operands of a launch: A and B."""
JOB = struct.Struct("<QQqQqqqIIIIII")
"""The parameters of an operand: its address and that of its components; bytes between its rows and between those of a
component; bytes between its matrices; for f16, bytes from its components to its magnitudes, and between those of
matrices, of rows and of elements of a row; total number of rows, rows of a matrix, elements of a row; index of its
first CTA. An operand without rows has no CTAs."""
JOBS_LAYOUT = struct.Struct(f"<{JOBS * JOB.size}s")
"""The parameter of the kernel."""
THREADS = 128
"""Threads of a CTA."""
LEAST = 0x00010000
"""The bits of 2^-133, the least bf16, as f32."""
LEAST_F16 = 0x33800000
"""The bits of 2^-24, the least f16, as f32."""
ROUNDED_TO_0 = 0x33000000
"""The bits of 2^-25, the largest f32 that is 0 as f16."""
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
$choose
  ld.param.b64 %from, [%job];
  ld.param.b64 %to, [%job + 8];
  ld.param.b64 %stride, [%job + 16];
  ld.param.b64 %copied, [%job + 24];
  ld.param.b64 %matrix, [%job + 32];
  ld.param.b32 %all, [%job + 64];
  ld.param.b32 %rows, [%job + 68];
  ld.param.b32 %columns, [%job + 72];
  ld.param.b32 %begin, [%job + 76];$parameters
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
  .reg .b64 %at$i, %into$i;$scaled""")

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
  sub.u32 %row$i, %row$i, %left;$scaled
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

_SCALED_REGISTERS = Template("""
  .reg .b32 %held$i;
  .reg .b64 %of$i;""")

_SCALED_PARAMETERS = """
  .reg .b16 %half0, %half1;
  .reg .b32 %of_row, %of_element;
  .reg .b64 %magnitudes, %apart;
  ld.param.b64 %magnitudes, [%job + 40];
  ld.param.b64 %apart, [%job + 48];
  ld.param.b32 %of_row, [%job + 56];
  ld.param.b32 %of_element, [%job + 60];
  add.u64 %magnitudes, %magnitudes, %to;"""

_LOCATE_MAGNITUDES = Template("""
  cvt.u64.u32 %y, %x;
  mad.lo.u64 %of$i, %y, %apart, %magnitudes;
  mad.wide.u32 %of$i, %row$i, %of_row, %of$i;
  mul.lo.u32 %left, %vector$i, $count;
  mad.wide.u32 %of$i, %left, %of_element, %of$i;
  sub.u32 %held$i, %columns, %left;
  selp.b32 %held$i, %held$i, 0, %inside$i;""")


def entry(split: DType) -> str:
    """The symbol of the kernel for a split type."""
    return f"gemmill_split_{split.component}x{split.components}"


def emit_splitting(split: DType) -> str:
    """The PTX of the kernel for a split type, for sm_90 and later. Its parameter is :data:`JOBS` times :data:`JOB`.

    CTAs have :data:`THREADS` threads and split :data:`BLOCK` vectors. The kernel uses programmatic dependent launch: it
    can start before the previous kernel of the stream ends.
    """
    scaled = split.scales_rows

    def per_vector(template: Template, beside: Template) -> str:
        sizes = {"count": VECTOR, "elements": 4 * VECTOR, "narrow": 2 * VECTOR, "components": split.components}

        def text(i: str, ahead: int) -> str:
            also = beside.substitute(sizes, i=i) if scaled else ""
            return template.substitute(sizes, i=i, ahead=ahead, scaled=also)

        return "\n".join(text(i, place * THREADS) for place, i in enumerate(_VECTORS))

    return head(entry(split), JOBS_LAYOUT, THREADS) + _BODY.substitute(
        round=VECTOR - 1,
        shift=VECTOR.bit_length() - 1,
        registers=per_vector(_REGISTERS, _SCALED_REGISTERS),
        choose=choose_job(JOB, JOBS),
        parameters=_SCALED_PARAMETERS if scaled else "",
        first=FIRST_VECTOR.substitute(block=BLOCK),
        locate=per_vector(_LOCATE, _LOCATE_MAGNITUDES),
        load="\n".join(lines(_load(i)) for i in _VECTORS),
        split="\n".join(lines(_split_scaled(i) if scaled else _split(i, split.components)) for i in _VECTORS),
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


def _split_scaled(i: str) -> Iterator[str]:
    """Yield the code that scales the elements of a vector and stores their two components of f16."""
    for element in range(VECTOR):
        yield from _scale(f"%x{i}{element}", f"%t{i}{element}", f"%p{i}{element}", i, element)
    for component in "pt":
        for pair in range(VECTOR // 2):
            first, second = (f"%{component}{i}{2 * pair + half}" for half in (0, 1))
            yield f"cvt.rn.f16x2.f32 %p{i}{pair}, {second}, {first};"
            for half in (0, 1) if component == "p" else ():
                yield from half_to_f32("f16", f"%p{i}{pair}", half, f"%word{i}")
                yield from _rest(f"%x{i}{2 * pair + half}", f"%t{i}{2 * pair + half}", i)
        words = ", ".join(f"%p{i}{word}" for word in range(VECTOR // 2))
        yield f"@%inside{i} st.global.v4.b32 [%into{i}], {{{words}}};"
        if component == "p":
            yield f"add.u64 %into{i}, %into{i}, %component;"


def _rest(value: str, scaled: str, i: str) -> Iterator[str]:
    """Yield the code that subtracts the first component, ``%word``, from a scaled element; an infinity or NaN is left
    whole."""
    yield f"sub.rn.f32 {scaled}, {scaled}, %word{i};"
    yield f"and.b32 %size{i}, {value}, 0x7fffffff;"
    yield f"setp.ge.u32 %huge{i}, %size{i}, 0x7f800000;"
    yield f"selp.b32 {scaled}, {value}, {scaled}, %huge{i};"


def _scale(value: str, scaled: str, first: str, i: str, element: int) -> Iterator[str]:
    """Yield the code that multiplies an element by a power of 2, and finds what is rounded to its first component."""
    yield f"setp.gt.u32 %has{i}, %held{i}, {element};"
    yield f"mov.b32 %word{i}, 0;"
    yield f"@%has{i} ld.global.b32 %word{i}, [%of{i}];"
    yield "cvt.u64.u32 %y, %of_element;"
    yield f"add.u64 %of{i}, %of{i}, %y;"
    # The square root of the power, from the exponent of the magnitude.
    yield f"shr.u32 %word{i}, %word{i}, 23;"
    yield f"max.u32 %word{i}, %word{i}, 1;"
    yield f"sub.u32 %word{i}, 395, %word{i};"
    yield f"shr.u32 %word{i}, %word{i}, 1;"
    yield f"shl.b32 %word{i}, %word{i}, 23;"
    yield f"mul.rn.f32 {scaled}, {value}, %word{i};"
    yield f"mul.rn.f32 {scaled}, {scaled}, %word{i};"
    # If that would be 0, but the element is not, the least f16 with its sign; 1 with the sign of an infinity or NaN.
    yield f"and.b32 %size{i}, {value}, 0x7fffffff;"
    yield f"setp.gt.u32 %small{i}, %size{i}, 0;"
    yield f"and.b32 %word{i}, {scaled}, 0x7fffffff;"
    yield f"setp.lt.and.u32 %small{i}, %word{i}, {ROUNDED_TO_0 + 1:#010x}, %small{i};"
    yield f"setp.ge.u32 %huge{i}, %size{i}, 0x7f800000;"
    yield f"and.b32 {first}, {value}, 0x80000000;"
    yield f"xor.b32 %word{i}, {first}, {LEAST_F16:#010x};"
    yield f"selp.b32 %word{i}, %word{i}, {scaled}, %small{i};"
    yield f"xor.b32 {first}, {first}, 0x3f800000;"
    yield f"selp.b32 {first}, {first}, %word{i}, %huge{i};"
