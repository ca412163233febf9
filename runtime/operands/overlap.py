"""Memory that would be written twice: elements of an output that share an address, and outputs that share memory."""

from __future__ import annotations

from itertools import combinations

from gemmill.library.dtypes import DTYPES
from gemmill.library.errors import OperandError
from gemmill.runtime.operands.arguments import EpilogueArguments, Value
from gemmill.runtime.operands.strided import Matrices
from gemmill.runtime.operands.tensors import TensorView


def refuse_overlap(x: Matrices, batch: int) -> None:
    """Elements of D, or of another output, that share an address would be written by several CTAs."""
    extents = ((x.rows, x.row_stride), (x.columns, x.column_stride), (batch, x.batch_stride))
    if 0 in (x.rows, x.columns, batch):
        return
    reach = 0
    for stride, extent in sorted((abs(stride), extent) for extent, stride in extents if extent > 1):
        if stride <= reach:
            raise OperandError(
                f"{x.name} has strides {x.tensor.strides} for shape {x.tensor.shape}: its elements overlap"
            )
        reach += (extent - 1) * stride


def refuse_shared_memory(out: TensorView, arguments: EpilogueArguments) -> None:
    """OperandError where an end of D or of an output lies in another: CTAs would write there in any order.

    Views that only interleave, as columns of one matrix do, pass; so do those that meet elsewhere than at an end.
    """
    if not arguments.values:  # every rebinding asks
        return
    written: list[tuple[str, Value]] = [
        ("out", out),
        *((o.name, arguments.values[o.name]) for o in arguments.epilogue.outputs),
    ]
    tensors = ((name, x) for name, x in written if isinstance(x, TensorView) and 0 not in x.shape)
    for (one, x), (other, y) in combinations(tensors, 2):
        if any(_holds(x, end) for end in _ends(y)) or any(_holds(y, end) for end in _ends(x)):
            lies = " and ".join(f"{n} from {_ends(t)[0]:#x} to {_ends(t)[1]:#x}" for n, t in ((one, x), (other, y)))
            raise OperandError(
                f"{one} and {other} share memory, {lies}, and both are written: pass other memory for one"
            )


def _ends(x: TensorView) -> tuple[int, int]:
    """Addresses of the first and the last byte of a tensor that has elements."""
    before, behind = x.reach
    return x.ptr - before, x.ptr + behind - 1


def _holds(x: TensorView, address: int) -> bool:
    """Whether a byte belongs to an element. Where each stride reaches beyond all shorter ones, as D's must, no byte is
    missed: along the longest stride first, one index alone can reach it."""
    first, last = _ends(x)
    if not first <= address <= last:
        return False
    size = DTYPES[x.dtype].bytes
    steps = [(1, size), *((abs(stride) * size, extent) for extent, stride in zip(x.shape, x.strides, strict=True))]
    rest = address - first
    for step, extent in sorted(steps, reverse=True):
        if step:
            rest -= min(rest // step, extent - 1) * step
    return rest == 0
