"""``gemmill.prepare``: an operand in the form that kernels load, made once for many products."""

from __future__ import annotations

from dataclasses import replace

from gemmill.library.dtypes import DTYPES, SPLIT
from gemmill.library.errors import CaptureError, OperandError
from gemmill.library.legality.quantities import align_up
from gemmill.runtime import driver
from gemmill.runtime.api.streams import Stream, allocate, handle_of
from gemmill.runtime.launch import realign, split, tma
from gemmill.runtime.launch.conversion import BEGIN, ConversionKernel, ConversionLaunch, ConvertedOperand
from gemmill.runtime.operands.call_keywords import IEEE, check_precision
from gemmill.runtime.operands.matrices import Operand, matrices, operand
from gemmill.runtime.operands.tensors import PreparedOperand, Tensor, TensorView, view
from gemmill.runtime.torch_dispatch import refuse_dispatched

_Steps = list[tuple[ConversionKernel, ConvertedOperand]]
"""The kernels that convert an operand, with what each makes of it."""


def prepare(b: Tensor, *, precision: str = IEEE, stream: Stream | None = None) -> PreparedOperand:
    """Convert a weight once, instead of in each call: pass the result as ``b`` of :func:`matmul` or :func:`plan`.

    With a ``precision`` that splits f32, such as ``"bf16x6"`` or ``"f16x3"``, it holds the components of ``b``, 6 or 4
    bytes for each element. Calls then need no ``precision``, and give the bits of the same kernel on the tensor.
    Otherwise it holds a copy that is aligned for TMA, or refers to ``b`` where that is.

    Calls with a prepared operand record no gradients and are not compiled by ``torch.compile``.

    Args:
        b: (K, N), such as ``w.T``, with one contiguous extent. It may be freed afterwards.
        precision: as in :func:`matmul`.
        stream: the stream of the conversion. Default: PyTorch's current stream.

    Example:
        >>> w = gemmill.prepare(weight.T, precision="f16x3")
        >>> d = gemmill.matmul(x, w)

    Raises:
        OperandError: ``b`` does not fit.
        CaptureError: the stream is being captured into a CUDA graph.
    """
    check_precision("precision", precision)
    refuse_dispatched("prepare", {"b": b}, instead="")
    handle = handle_of(b, stream)
    tensor = view(b, "b", handle)
    x = _read(tensor, precision)
    if driver.is_capturing(tensor.device, handle):
        raise CaptureError("gemmill.prepare allocates memory, but the stream is captured: call it before the capture")
    if precision not in SPLIT and x.align == tma.ALIGNMENT:
        return _prepared(tensor)
    steps, seen = _split(x, tensor, precision) if precision in SPLIT else _realigned(x, tensor)
    size = max(converted.end for _, converted in steps)
    memory = allocate(b, (size + BEGIN,), "u8", tensor.device, stream)
    address = align_up(view(memory, "b").ptr, BEGIN)
    for kernel, converted in steps:
        launch = ConversionLaunch(tensor.device, kernel, {0: converted}, {})
        launch.move(address)
        launch.launch(handle, (tensor.ptr,))
    return _prepared(replace(seen, ptr=address, owner=memory))


def _read(tensor: TensorView, precision: str) -> Operand:
    """Return a tensor as B of a GEMM; OperandError for one that cannot be prepared."""
    if len(tensor.shape) != 2 or min(tensor.shape) < 2:
        raise OperandError(f"b has shape {tensor.shape}; it must be (K, N), with at least 2 rows and columns")
    if tensor.imaginary:
        raise OperandError(f"b is {tensor.element}; only real tensors can be prepared: pass it as it is")
    if isinstance(tensor, PreparedOperand):
        raise OperandError("b is prepared already: pass the tensor that it was made from")
    if precision != IEEE and tensor.dtype != "f32":
        raise OperandError(f"b is {tensor.dtype}; precision {precision!r} is for f32: leave precision out")
    read = operand(matrices("b", tensor, (), *tensor.shape, True, True), (1,), "mn", "k", "k")
    if read.major == "any":
        raise OperandError(f"b has strides {tensor.strides}; one extent must be contiguous: pass b.contiguous()")
    return read


def _split(x: Operand, tensor: TensorView, precision: str) -> tuple[_Steps, TensorView]:
    """Return the conversions that split f32, and how calls see the result: with the layout of the tensor, and strides
    that span two components of the memory."""
    row, (columns, rows) = DTYPES[precision], tensor.shape if x.major == "k" else tensor.shape[::-1]
    part = split.operand_of("b", x, row, (columns, rows), 1, 0)
    converted: list[ConvertedOperand] = [part] if part.magnitudes is None else [part.magnitudes, part]
    steps = [*zip(split.kernels_of(row.name), converted, strict=True)]
    return steps, replace(tensor, dtype=row.name, strides=_strides(x, 2 * part.row_bytes // row.bytes))


def _realigned(x: Operand, tensor: TensorView) -> tuple[_Steps, TensorView]:
    """Return the conversion that copies an operand into aligned memory, and how calls see the copy."""
    size = DTYPES[x.dtype].bytes
    columns, rows = tensor.shape if x.major == "k" else tensor.shape[::-1]
    copy = realign.RealignedOperand("b", 1, 0, rows, columns * size, x.stride * size, 0)
    steps: _Steps = [(realign.kernel_of(tensor.device), copy)]
    return steps, replace(tensor, strides=_strides(x, copy.realigned_stride // size))


def _strides(x: Operand, step: int) -> tuple[int, int]:
    """Return the strides of a matrix of the major of an operand whose rows are some elements apart."""
    return (1, step) if x.major == "k" else (step, 1)


def _prepared(x: TensorView) -> PreparedOperand:
    return PreparedOperand(x.ptr, x.shape, x.strides, x.dtype, x.device, writable=False, owner=x.owner)
