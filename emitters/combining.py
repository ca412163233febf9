"""The kernel that adds up the rows of each token, as PTX, which the driver compiles like copies.py.

The sum of a token starts from 0 or from its row of ``add``, and adds the product of each slot's weight and row by one
fused multiply-add in f32, slot after slot; only the sum is rounded to the dtype of ``out``. It so depends on nothing
but the rows of the token's own slots and their weights.

A CTA has a part of one token's elements, and a thread a vector of consecutive ones. It loads the vectors of several
slots before it adds them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from string import Template

from gemmill.emitters.ptx import BITS, half_to_f32, head, lines

ENTRY = "gemmill_combining"
"""Symbol of the kernel."""
JOB = struct.Struct("<QQQQQqqqqqqqIIII")
"""The parameters: addresses of y, the places, the weights, ``add`` and ``out``; bytes between rows of y; between
tokens and between slots of the places, and of the weights; between rows of ``add`` and of ``out``; rows of y; slots of
a token; vectors of a row; CTAs of a token."""
THREADS = 128
"""Threads of a CTA."""
SLOTS = 8
"""Most rows of y that a thread loads at once."""
VECTOR = 16
"""Most bytes of an instruction that loads or stores."""


@dataclass(frozen=True, slots=True)
class Combination:
    """What a kernel is made for."""

    y: str
    out: str
    add: str | None
    """Dtype of ``add``; None for sums that start from 0."""
    weights: str | None
    """Dtype of the weights; None for plain sums."""
    slots: int
    """Rows of y that a thread loads at once, 1 to :data:`SLOTS`."""
    elements: int
    """Elements of a vector: a power of two, at most :data:`VECTOR` bytes of y."""

    def vector_bytes(self, dtype: str) -> int:
        """Bytes to which rows of this dtype must be aligned."""
        return min(VECTOR, self.elements * BITS[dtype] // 8)


_KERNEL = Template("""\
  .reg .pred %outside, %done, %has<$slots>, %use<$slots>;
  .reg .b16 %half<2>;
  .reg .b32 %rows, %slots, %vectors, %parts, %token, %vector, %slot, %x;
  .reg .b32 %place<$slots>, %weight<$slots>, %sum<$elements>, %element;
  .reg .b64 %y, %places, %weights, %add, %out, %row, %stride, %place_step, %weight_step, %t, %z;
$registers
  ld.param.b64 %y, [job];
  ld.param.b64 %places, [job + 8];
  ld.param.b64 %weights, [job + 16];
  ld.param.b64 %add, [job + 24];
  ld.param.b64 %out, [job + 32];
  ld.param.b64 %stride, [job + 40];
  ld.param.b64 %place_step, [job + 56];
  ld.param.b64 %weight_step, [job + 72];
  ld.param.b32 %rows, [job + 96];
  ld.param.b32 %slots, [job + 100];
  ld.param.b32 %vectors, [job + 104];
  ld.param.b32 %parts, [job + 108];

  // The next kernel may be set up meanwhile; the one before writes y.
  griddepcontrol.launch_dependents;
  griddepcontrol.wait;

  // The token of this CTA, and the vector of this thread.
  mov.b32 %x, %ctaid.x;
  div.u32 %token, %x, %parts;
  mul.lo.u32 %vector, %token, %parts;
  sub.u32 %vector, %x, %vector;
  mov.b32 %x, %tid.x;
  mad.lo.u32 %vector, %vector, $threads, %x;
  setp.ge.u32 %outside, %vector, %vectors;
  @%outside bra DONE;
  cvt.u64.u32 %t, %token;
$locate
$begin
  mov.b32 %slot, 0;
NEXT:
  setp.ge.u32 %done, %slot, %slots;
  @%done bra SUMMED;
$places
$load
$accumulate
  add.u32 %slot, %slot, $slots;
  bra NEXT;
SUMMED:
$store
DONE:
  ret;
}
""")


def emit_combining(kind: Combination) -> str:
    """The PTX of a kernel, for sm_90 and later. Its parameters are :data:`JOB`; CTAs have :data:`THREADS` threads."""
    slots = range(kind.slots)
    return head(ENTRY, JOB, THREADS) + _KERNEL.substitute(
        threads=THREADS,
        slots=kind.slots,
        elements=kind.elements,
        registers=lines(f".reg .b32 %{name}_<{_words(kind, dtype)}>;" for name, dtype in _vectors(kind)),
        locate=lines(_locate(kind)),
        begin=lines(_begin(kind)),
        places=lines(line for i in slots for line in _place(kind, i)),
        load=lines(line for i in slots for line in _row(kind, i)),
        accumulate=lines(line for i in slots for line in _accumulate(kind, i)),
        store=lines(_store(kind)),
    )


def _vectors(kind: Combination) -> Iterator[tuple[str, str]]:
    """Yield the vectors in registers and their dtypes."""
    yield from ((f"y{i}", kind.y) for i in range(kind.slots))
    yield "out", kind.out
    if kind.add:
        yield "add", kind.add


def _words(kind: Combination, dtype: str) -> int:
    """Words of a vector; a word may hold one element of 16 bits."""
    return -(-kind.elements * BITS[dtype] // 32)


def _locate(kind: Combination) -> Iterator[str]:
    """Yield the code that moves each address to this token, and those of rows to this vector."""
    located = {"places": 48, "weights": 64 if kind.weights else 0, "add": 80 if kind.add else 0, "out": 88}
    for name, offset in located.items():
        if offset:
            yield f"ld.param.b64 %z, [job + {offset}];"
            yield f"mad.lo.s64 %{name}, %t, %z, %{name};"
    for name, dtype in (("y", kind.y), ("out", kind.out), ("add", kind.add)):
        if dtype:
            yield f"mul.wide.u32 %z, %vector, {kind.elements * BITS[dtype] // 8};"
            yield f"add.u64 %{name}, %{name}, %z;"


def _begin(kind: Combination) -> Iterator[str]:
    """Yield the code that sets the sums to ``add`` or 0."""
    if kind.add:
        yield from _move(kind, "ld", "add", kind.add, "add", "")
    for e in range(kind.elements):
        if kind.add:
            yield from _to_f32("add", kind.add, e)
        yield f"mov.b32 %sum{e}, {'%element' if kind.add else '0'};"


def _place(kind: Combination, i: int) -> Iterator[str]:
    """Yield the code that reads the place and the weight of a slot. Places out of range are skipped: they get the
    weight 0."""
    yield f"add.u32 %x, %slot, {i};"
    yield f"setp.lt.u32 %has{i}, %x, %slots;"
    yield f"mov.b32 %place{i}, -1;"
    yield f"@%has{i} ld.global.b32 %place{i}, [%places];"
    yield "add.s64 %places, %places, %place_step;"
    yield f"setp.lt.u32 %use{i}, %place{i}, %rows;"
    if kind.weights:
        if BITS[kind.weights] == 16:
            yield "mov.b16 %half0, 0;"
            yield f"@%has{i} ld.global.b16 %half0, [%weights];"
            yield f"cvt.f32.{kind.weights} %weight{i}, %half0;"
        else:
            yield f"mov.b32 %weight{i}, 0;"
            yield f"@%has{i} ld.global.b32 %weight{i}, [%weights];"
        yield f"selp.b32 %weight{i}, %weight{i}, 0, %use{i};"
        yield "add.s64 %weights, %weights, %weight_step;"


def _row(kind: Combination, i: int) -> Iterator[str]:
    """Yield the code that loads the vector of a slot.

    That of a skipped slot is -0, which changes no sum when it is added. If each addition were predicated instead, there
    would not be enough predicates for all loads to come before the first addition.
    """
    if kind.elements * BITS[kind.y] == 16:
        yield "mov.b16 %half0, 0x8000;"
    for word in range(_words(kind, kind.y)):
        yield f"mov.b32 %y{i}_{word}, {'0x80000000' if BITS[kind.y] == 32 else '0x80008000'};"
    yield f"cvt.u64.u32 %row, %place{i};"
    yield "mad.lo.s64 %row, %row, %stride, %y;"
    yield from _move(kind, "ld", f"y{i}", kind.y, "row", f"@%use{i} ")


def _accumulate(kind: Combination, i: int) -> Iterator[str]:
    """Yield the code that adds the vector of a slot to the sums."""
    for e in range(kind.elements):
        yield from _to_f32(f"y{i}", kind.y, e)
        if kind.weights:
            yield f"fma.rn.f32 %sum{e}, %weight{i}, %element, %sum{e};"
        else:
            yield f"add.rn.f32 %sum{e}, %sum{e}, %element;"


def _store(kind: Combination) -> Iterator[str]:
    """Yield the code that rounds the sums and stores them."""
    for e in range(kind.elements):
        if BITS[kind.out] == 32:
            yield f"mov.b32 %out_{e}, %sum{e};"
        elif kind.elements == 1:
            yield f"cvt.rn.{kind.out}.f32 %half0, %sum0;"
            yield "mov.b32 %out_0, {%half0, %half0};"
        elif e % 2 == 0:
            yield f"cvt.rn.{kind.out}x2.f32 %out_{e // 2}, %sum{e + 1}, %sum{e};"
    yield from _move(kind, "st", "out", kind.out, "out", "")


def _to_f32(vector: str, dtype: str, e: int) -> Iterator[str]:
    """Yield the code that leaves an element of a vector in ``%element`` as f32."""
    if BITS[dtype] == 32:
        yield f"mov.b32 %element, %{vector}_{e};"
    else:
        yield from half_to_f32(dtype, f"%{vector}_{e // 2}", e % 2, "%element")


def _move(kind: Combination, what: str, vector: str, dtype: str, address: str, predicate: str) -> Iterator[str]:
    """Yield the code that loads or stores a vector by instructions of at most :data:`VECTOR` bytes."""
    words = _words(kind, dtype)
    if kind.elements * BITS[dtype] == 16:
        moved = (f"ld.global.b16 %half0, [%{address}]", f"st.global.b16 [%{address}], %half0")
        yield predicate + moved[what == "st"] + ";"
        if what == "ld":
            yield f"mov.b32 %{vector}_0, {{%half0, %half0}};"
        return
    size = min(words, VECTOR // 4)
    for first in range(0, words, size):
        registers = ", ".join(f"%{vector}_{first + word}" for word in range(size))
        group, width = (f"{{{registers}}}", f".v{size}") if size > 1 else (registers, "")
        place = f"[%{address} + {4 * first}]"
        operands = f"{place}, {group}" if what == "st" else f"{group}, {place}"
        yield f"{predicate}{what}.global{width}.b32 {operands};"
