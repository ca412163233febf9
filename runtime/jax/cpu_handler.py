"""The handler on the CPU, which computes with NumPy, for tests and machines without a GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from gemmill.library.errors import OperandError
from gemmill.runtime.api.prepare import check
from gemmill.runtime.jax import ffi
from gemmill.runtime.jax.description import abstract_call, read, results
from gemmill.runtime.jax.gpu_handler import arrays_of
from gemmill.runtime.jax.reference import expression, operands_in_full, stored
from gemmill.runtime.operands.binding import groups_kind
from gemmill.runtime.operands.call import GemmCall

_runs = False


def run_on_cpu() -> None:
    """Let calls also run on CPU devices, with NumPy and float64 sums.

    Use it for tests, or to try a program on a machine without a GPU. It is slow, and applies to the whole process.
    """
    global _runs
    _runs = True


def launch(frame: ffi.Frame) -> None:
    """Compute the call of a frame. Raises OperandError unless :func:`run_on_cpu` was called."""
    if not _runs:
        raise OperandError(
            "the device is a CPU; gemmill.jax needs an NVIDIA GPU: move the arrays to a GPU, or call "
            "gemmill.jax.run_on_cpu() to compute slowly with NumPy"
        )
    description = read(frame.text)
    if frame.stage == ffi.INSTANTIATE:
        return
    arrays = arrays_of(description, frame.buffers)
    call = abstract_call(description, arrays)
    check(call)
    call.bound  # noqa: B018 - it raises an error for what does not fit, as on a GPU
    memory = [_array(buffer, x.dtype) for buffer, x in zip(frame.buffers, arrays, strict=False)]
    named = {name: _turned(x, name in description.turned) for name, x in zip(description.operands, memory, strict=True)}
    with np.errstate(all="ignore"):
        a, b = (x.astype(np.float64) for x in operands_in_full(call, named, np))
        outputs = expression(call, _sums(call, a, b, named), named, np)
    wanted = results(description, arrays)
    for buffer, x, value in zip(frame.buffers[len(arrays) :], wanted, outputs, strict=False):
        _array(buffer, x.numpy)[...] = stored(value, x.dtype, np)


def _sums(call: GemmCall, a: Any, b: Any, named: Mapping[str, Any]) -> Any:
    """The sums of the product; 0 outside of all groups."""
    kind = groups_kind(call.tensors)
    if not kind:
        return np.matmul(a, b)
    ends = np.maximum.accumulate(named[kind]) if kind == "offsets" else named[kind]
    ends = np.clip(ends, 0, a.shape[-1 if b.ndim == 2 else -2])
    if kind == "counts":
        inside = np.arange(a.shape[1]) < ends[:, None]
        return np.matmul(np.where(inside[..., None], a, 0), b)
    spans = [*zip((0, *ends), ends, strict=False)]
    if b.ndim == 2:
        return np.stack([a[:, start:end] @ b[start:end] for start, end in spans])
    sums = np.zeros((a.shape[0], b.shape[-1]))
    for group, (start, end) in enumerate(spans):
        sums[start:end] = a[start:end] @ b[group]
    return sums


def _array(buffer: ffi.Buffer, dtype: str) -> Any:
    """A NumPy array of a buffer's memory."""
    kind, shape = jax.numpy.dtype(dtype), buffer.shape
    if 0 in shape:
        return np.empty(shape, kind)
    count = int(np.prod(shape)) * kind.itemsize
    return np.frombuffer((ctypes.c_uint8 * count).from_address(buffer.address), dtype=kind).reshape(shape)


def _turned(array: Any, is_turned: bool) -> Any:
    """An array whose last two extents XLA stores transposed, if ``is_turned``."""
    if not is_turned:
        return array
    *batch, rows, columns = array.shape
    return array.reshape(*batch, columns, rows).swapaxes(-1, -2)
