"""TMA descriptors of a kernel's operands: what they describe, how L2 fetches it, which of them follow an operand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gemmill.library.launch import TmaBox
from gemmill.library.problem import GemmProblem
from gemmill.runtime.launch import tma
from gemmill.runtime.launch.kernel import Kernel
from gemmill.runtime.launch.parameters import EncodedDescriptor, ParameterBlock
from gemmill.runtime.operands.epilogue_arguments import BoundArgument
from gemmill.runtime.operands.gemm import PLACES, Gemm

FEW_ROWS = 64
"""Most rows of D that B is read for, or columns that A is, for the pace of memory to be what matters."""


def encode_descriptors(
    gemm: Gemm, kernel: Kernel, block: ParameterBlock, arguments: Mapping[str, tuple[int, BoundArgument]]
) -> Iterator[EncodedDescriptor]:
    """Writes the TMA descriptors; those that follow an operand."""
    problem = gemm.problem
    for box in kernel.spec.boxes:
        if box.operand == "partials":
            continue  # it has no address before the launch
        if box.operand in arguments:
            place, argument = arguments[box.operand]
            described = _describe_matrix(box, argument, problem, gemm.is_transposed)
            described.encode(block.address + box.offset, kernel.device)
            yield EncodedDescriptor(place, block.address + box.offset, 0)
            continue
        operand = getattr(gemm, box.operand)
        # Without a K tile A and B are not read, and may have no address.
        unread = problem.k == 0 and box.operand not in ("c", "d")
        n = problem.d_columns if box.operand in ("c", "d") else problem.n
        sizes = {"m": problem.m, "n": n, "k": problem.k}
        extents = sizes[box.contiguous], -(-sizes[box.strided] // box.group)
        if not box.rows(extents[1]) or (box.operand == "d" and problem.d_align < tma.ALIGNMENT):
            continue
        name = gemm.name(box.operand)
        batch = operand.places(problem.batch, gemm.nested)
        address = gemm.d.ptr & -tma.ALIGNMENT if unread else operand.ptr
        described = tma.describe(box, address, *extents, batch, operand.stride, operand.batch_stride, name)
        fetched = fetched_bytes(box, problem, described.strides[0])
        described.encode(block.address + box.offset, kernel.device, fetched)
        if not (unread or box.anywhere):
            yield EncodedDescriptor(PLACES[name], block.address + box.offset, described.address - address)


def _describe_matrix(box: TmaBox, matrix: BoundArgument, problem: GemmProblem, is_transposed: bool) -> tma.Descriptor:
    """The descriptor of an epilogue's matrix."""
    row, column, outer = matrix.transposed if is_transposed else matrix.strides
    sizes = {"m": problem.m, "n": problem.d_columns}
    batch = problem.batch if outer else 1
    extents = sizes[box.contiguous], sizes[box.strided]
    stride = row if box.contiguous == "n" else column
    return tma.describe(box, matrix.address, *extents, batch, stride, outer, matrix.name)


def fetched_bytes(box: TmaBox, problem: GemmProblem, stride: int) -> int:
    """Bytes by which L2 fetches an operand from memory, whose rows are ``stride`` bytes apart; "Few rows, few columns"
    in docs/kernels.md has why.

    Two lines where K is contiguous: a later stage finds the second in L2. One where the second is another tile's, where
    rows begin within sectors, and where an operand is multiplied with few rows or columns: fetching two costs memory up
    to a tenth of its pace.
    """
    met = problem.n if box.operand == "a" else problem.m
    if problem.batching == "grouped" and box.operand == "b":
        met //= problem.batch
    return 2 * tma.LINE if box.contiguous == "k" and met > FEW_ROWS and stride % tma.SECTOR == 0 else tma.LINE
