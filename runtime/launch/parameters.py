"""Parameters of a kernel: their memory, the values that do not depend on an operand's address, and TMA descriptors,
with the L2 fetch size of each and the operand that it follows."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from gemmill.library.dtypes import DTYPES
from gemmill.library.launch import NESTED_EXTENTS, LaunchSpec, TmaBox
from gemmill.library.problem import GemmProblem
from gemmill.runtime.launch import tma
from gemmill.runtime.launch.kernel import Kernel
from gemmill.runtime.operands.bound_arguments import BoundArgument
from gemmill.runtime.operands.call_keywords import PLACES
from gemmill.runtime.operands.gemm import Gemm

_UNALIGNED_D = 31
"""The bit of ``batched`` for it (kernel/params.cuh)."""

_SCALARS = {layout: struct.Struct("<" + layout) for layout in "iIqQfd"}
"""Memory formats of parameters, by their characters in :mod:`struct`."""

_STRIDED = (
    ("pointer", "Q", "ptr"),
    ("row_stride", "q", "row_stride"),
    ("column_stride", "q", "column_stride"),
    ("batch_stride", "q", "batch_stride"),
)
"""Parameters of an operand that is read through plain addresses: member, format, attribute of the operand."""


class EncodedDescriptor(NamedTuple):
    """A descriptor that follows an operand."""

    place: int
    """Index of the operand in :data:`~gemmill.runtime.operands.gemm.Addresses`."""
    address: int
    """Address of the descriptor."""
    shift: int
    """Offset of its start from the operand's address, in bytes."""


class ParameterBlock:
    """A kernel's parameter struct in host memory, aligned for the descriptors in it."""

    def __init__(self, size: int) -> None:
        alignment = tma.DESCRIPTOR_ALIGNMENT
        self._memory = ctypes.create_string_buffer(size + alignment)
        begins = ctypes.addressof(self._memory)
        self.address = -(-begins // alignment) * alignment
        self._begin = self.address - begins
        self._pointers = (ctypes.c_void_p * 1)(self.address)
        self._bytes = memoryview(self._memory).cast("B")[self._begin : self._begin + size]
        self._size = size

    @property
    def arguments(self) -> int:
        """Address of the ``void*`` that a launch takes as ``kernelParams``."""
        return ctypes.addressof(self._pointers)

    def write(self, offset: int, layout: str, value: float) -> None:
        """Write one scalar; ``layout`` is its character in :mod:`struct`."""
        scalar = _SCALARS[layout]
        self._check(offset, scalar.size)
        scalar.pack_into(self._memory, self._begin + offset, value)

    def put(self, offset: int, data: bytes) -> None:
        """Write some bytes."""
        self._check(offset, len(data))
        ctypes.memmove(self.address + offset, data, len(data))

    def _check(self, offset: int, size: int) -> None:
        if not 0 <= offset <= self._size - size:
            raise ValueError(f"offset {offset} is outside the {self._size} bytes of the parameters")

    def integer(self, offset: int) -> ctypes.c_uint64:
        """Return the 64 bits at an offset, for repeated writes."""
        return ctypes.c_uint64.from_address(self.address + offset)

    def read(self) -> bytes:
        """Return the bytes of the struct."""
        return bytes(self._bytes)

    def copy(self) -> ParameterBlock:
        """Return a block of its own with the same bytes."""
        block = ParameterBlock(self._size)
        block._bytes[:] = self.read()
        return block


def scalars(gemm: Gemm, staged: Iterable[BoundArgument]) -> Iterator[tuple[str, str, float]]:
    """Yield the parameters other than descriptors: member, format, value. A kernel has some of them. TMA moves the
    ``staged`` arguments."""
    problem, factor = gemm.problem, _factor_layout(gemm.problem)
    for extent in ("m", "n", "k", "batch"):
        yield extent, "i", getattr(problem, extent)
    batched = [bool(x and x.batch_stride) for x in (gemm.a, gemm.b, gemm.c)] + [bool(x.strides[2]) for x in staged]
    unaligned = gemm.problem.d_align < tma.ALIGNMENT
    yield "batched", "I", sum(has << i for i, has in enumerate(batched)) | unaligned << _UNALIGNED_D
    for name, value in (("alpha", gemm.alpha), ("beta", gemm.beta)):
        yield name, factor, int(value) if factor == "i" else value
        yield f"{name}64", "d", value
    for name, operand in (("a", gemm.a), ("b", gemm.b), ("c", gemm.c), ("d", gemm.d)):
        if operand is not None:
            for member, layout, attribute in _STRIDED:
                yield f"{name}_{member}", layout, getattr(operand, attribute)
            if name in "cd":
                yield f"{name}_stride", "q", operand.stride
    if gemm.groups is not None:
        yield "groups_pointer", "Q", gemm.groups.ptr
        yield "groups_stride", "i", gemm.groups.stride
    if gemm.rows is not None:
        yield "rows_pointer", "Q", gemm.rows.ptr
        yield "rows_stride", "q", gemm.rows.stride
        name, operand = ("b", gemm.b) if gemm.problem.batching == "ngrouped" else ("a", gemm.a)
        yield f"{name}_row_chunks", "q", operand.stride * DTYPES[operand.dtype].bytes // tma.ALIGNMENT
        yield f"{name}_rows", "q", gemm.rows.extent
    if gemm.nested:
        inner = gemm.nested[::-1]
        yield "inner", "i", inner[0]
        yield "middle", "i", inner[1] if len(inner) == NESTED_EXTENTS else 1
        for name, operand in (("a", gemm.a), ("b", gemm.b), ("c", gemm.c), ("d", gemm.d)):
            if operand is not None:
                *first, outermost = operand.batch_steps[::-1]
                steps = (*first, *(0,) * (NESTED_EXTENTS - len(inner)), outermost)
                yield from ((f"{name}_step_{i}", "i", step) for i, step in enumerate(steps))
    for name, operand, rows in (("a", gemm.a, problem.m), ("b", gemm.b, problem.n)):
        if operand.magnitudes is not None:
            yield f"{name}_scale_pointer", "Q", operand.ptr + operand.magnitudes
            yield f"{name}_scale_batch_stride", "q", rows if operand.batch_stride else 0
    for name, scale in (("a_scale", gemm.a_scale), ("b_scale", gemm.b_scale)):
        if scale is not None:
            yield f"{name}_pointer", "Q", scale.ptr
            yield f"{name}_stride", "q", scale.stride
            yield f"{name}_k_stride", "q", scale.k_stride
            yield f"{name}_batch_stride", "q", scale.batch_stride


def write_argument(argument: BoundArgument, problem: GemmProblem, spec: LaunchSpec, block: ParameterBlock) -> None:
    """Write an argument of the epilogue: an address, then strides or, for a scalar, its value."""
    at = spec.offsets[f"epilogue.{argument.name}"]
    block.write(at, "Q", argument.address)
    for i, stride in enumerate(argument.strides):
        block.write(at + 8 + 8 * i, "q", stride)
    if not argument.strides:
        layout = _factor_layout(problem)
        block.write(at + 8, layout, int(argument.value) if layout == "i" else argument.value)


def _factor_layout(problem: GemmProblem) -> str:
    """Return the format of alpha, beta and scalars of the epilogue."""
    return "i" if problem.d_dtype == "s32" else "d" if problem.accumulator == "f64" else "f"


_GROUPED_BESIDE = {"a": "ngrouped", "b": "grouped"}
"""Batching in which each group of rows or columns of the other operand meets another matrix of A or B."""
FEW_ROWS = 64
"""Most rows of D (for B) or columns of D (for A) for which memory bandwidth is the bound."""


def encode_descriptors(
    gemm: Gemm, kernel: Kernel, block: ParameterBlock, arguments: Mapping[str, tuple[int, BoundArgument]]
) -> Iterator[EncodedDescriptor]:
    """Write the TMA descriptors, and yield those that follow an operand."""
    problem = gemm.problem
    for box in kernel.spec.boxes:
        if box.operand == "partials":
            continue  # it has no address before the launch
        if box.operand in arguments:
            place, argument = arguments[box.operand]
            described = _describe_matrix(box, argument, problem)
            described.encode(block.address + box.offset, kernel.device)
            yield EncodedDescriptor(place, block.address + box.offset, 0)
            continue
        operand = getattr(gemm, box.operand)
        # Without a K tile, the kernel does not read A and B, and they may have no address.
        unread = problem.k == 0 and box.operand not in ("c", "d")
        of_d = box.operand in ("c", "d")
        m, n = (problem.d_rows, problem.d_columns) if of_d else (problem.m, problem.n)
        sizes = {"m": m, "n": n, "k": problem.k}
        extents = sizes[box.contiguous], -(-sizes[box.strided] // box.group)
        if not box.rows(extents[1]) or (box.operand == "d" and problem.d_align < tma.ALIGNMENT):
            continue
        outermost = operand.outermost(problem.batch, gemm.nested)
        address = gemm.d.ptr & -tma.ALIGNMENT if unread else operand.ptr
        described = tma.describe(box, address, *extents, outermost[0], operand.stride, outermost[1], operand.name)
        fetched = fetched_bytes(box, problem, described.strides[0])
        described.encode(block.address + box.offset, kernel.device, fetched)
        if not (unread or box.anywhere):
            yield EncodedDescriptor(PLACES[operand.name], block.address + box.offset, described.address - address)


def _describe_matrix(box: TmaBox, matrix: BoundArgument, problem: GemmProblem) -> tma.Descriptor:
    """Return the descriptor of an epilogue's matrix."""
    row, column, outer = matrix.strides
    sizes = {"m": problem.d_rows, "n": problem.d_columns}
    batch = problem.batch if outer else 1
    extents = sizes[box.contiguous], sizes[box.strided]
    stride = row if box.contiguous == "n" else column
    return tma.describe(box, matrix.address, *extents, batch, stride, outer, matrix.name)


def fetched_bytes(box: TmaBox, problem: GemmProblem, stride: int) -> int:
    """Return the bytes that L2 fetches at a time for an operand whose rows are ``stride`` bytes apart
    (docs/kernels.md).

    It is two lines where K is contiguous, since a later stage then finds the second line in L2. It is one line where
    the second belongs to another tile, where rows start within sectors, and where an operand meets few rows or columns.
    Fetching two lines would then cost up to a tenth of the memory bandwidth.
    """
    met = problem.n if box.operand == "a" else problem.m
    if problem.batching == _GROUPED_BESIDE.get(box.operand):
        met //= problem.batch
    return 2 * tma.LINE if box.contiguous == "k" and met > FEW_ROWS and stride % tma.SECTOR == 0 else tma.LINE
