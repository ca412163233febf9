"""TMA descriptors (``CUtensorMap``), encoded directly into the caller's memory.

Descriptors from ``cuda.bindings`` may not be 64-byte aligned, so this module calls the driver through ctypes.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from gemmill.library.arch import L2_LINE, L2_SECTOR, TMA_MAX_STRIDE
from gemmill.library.dtypes import DTYPES
from gemmill.library.errors import DeviceError, OperandError
from gemmill.library.launch import TmaBox
from gemmill.library.legality.quantities import TMA_ALIGN
from gemmill.runtime import driver

ALIGNMENT = TMA_ALIGN
"""Required alignment of the address and strides of a tensor, in bytes."""
DESCRIPTOR_ALIGNMENT = 64
"""Required alignment of a descriptor's address, in bytes."""
MAX_STRIDE = TMA_MAX_STRIDE
"""Upper bound of strides in bytes, exclusive."""
MAX_EXTENT = 1 << 32
"""Largest extent."""
HALF_BOX = 8, 2
"""Extents of a box with halves: rows of a run, and halves."""
ANYWHERE = 1 << 31, 1 << 13
"""Extents that reach every address below 2^48: steps of 16 bytes, as many as a coordinate can count, and the rest."""

_DATA_TYPES = {"UINT8": 0, "INT32": 3, "FLOAT16": 6, "FLOAT32": 7, "FLOAT64": 8, "BFLOAT16": 9, "TFLOAT32": 11}
"""``CUtensorMapDataType`` (cuda.h) for the names in :data:`~gemmill.library.dtypes.DTYPES`."""
_SWIZZLES = {16: 0, 32: 1, 64: 2, 128: 3}
"""``CUtensorMapSwizzle`` by span in bytes; 16 means none."""
_INVALID_CONTEXT = 201
"""``CUDA_ERROR_INVALID_CONTEXT``."""
LINE, SECTOR = L2_LINE, L2_SECTOR
"""Bytes of an L2 line, and of its sectors."""
_PROMOTIONS = {LINE: 2, 2 * LINE: 3}
"""``CUtensorMapL2promotion`` by bytes."""


class Descriptor(NamedTuple):
    """The checked arguments of ``cuTensorMapEncodeTiled``: one operand as a tensor of matrices."""

    box: TmaBox
    """Box and swizzle of the compiled kernel."""
    rows: int
    """Rows of the box, which may be fewer."""
    address: int
    """Address of the first element, or of the start of the window."""
    extents: tuple[int, ...]
    """Elements along the contiguous and the strided extent (rows of the window, and its places), and matrices in the
    batch; none is 0."""
    strides: tuple[int, ...]
    """Bytes between neighbours along all extents except the first."""

    def encode(self, destination: int, device: int, fetched: int = LINE) -> None:
        """Write the 128 bytes of the descriptor, for a GPU, to an address that is a multiple of 64.

        ``fetched`` is the number of bytes that L2 fetches from memory at a time: one line, or two.
        """
        box, rank = self.box, len(self.extents)
        extents, strides, boxes, ones = _arrays(rank)
        status = _in_context(
            device,
            _libcuda().cuTensorMapEncodeTiled,
            destination,
            _DATA_TYPES[DTYPES[box.dtype].tma],
            rank,
            self.address,
            extents(*self.extents),
            strides(*self.strides),
            boxes(*(box.box[0], *HALF_BOX, self.rows // 16) if box.halves else (box.box[0], self.rows, *ones[2:])),
            ones,
            0,  # CU_TENSOR_MAP_INTERLEAVE_NONE
            _SWIZZLES[box.swizzle],
            _PROMOTIONS[fetched],
            0,  # CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE: zeros beyond the extents
        )
        if status:
            raise DeviceError(f"cuTensorMapEncodeTiled failed for {self} with status {status}")


@functools.cache
def _arrays(rank: int) -> tuple[Any, Any, Any, Any]:
    """Return the types of extents, strides and boxes for a rank, and ones."""
    boxes = ctypes.c_uint32 * rank
    return ctypes.c_uint64 * rank, ctypes.c_uint64 * (rank - 1), boxes, boxes(*(1,) * rank)


def describe(
    box: TmaBox,
    address: int,
    contiguous: int,
    strided: int,
    batch: int,
    stride: int,
    batch_stride: int,
    name: str | None = None,
) -> Descriptor:
    """Return the descriptor of one operand.

    ``contiguous``, ``strided`` and ``batch`` are extents; ``stride`` and ``batch_stride`` are the elements between
    neighbours along the last two. A stride along an extent of 0 or 1 has no effect, so any value is valid. Packed
    elements are bytes to TMA. ``name`` is the operand's name in errors.

    Raises:
        OperandError: the operand breaks a rule of TMA; the message names it.
    """
    bits = DTYPES[box.dtype].bits
    size = max(8, bits) // 8
    extents = max(-(-contiguous * bits // (8 * size)), 1), max(strided, 1), max(batch, 1)
    row = -(-extents[0] * size // ALIGNMENT) * ALIGNMENT
    row_stride = stride * bits // 8 if strided > 1 else row
    matrix_stride = batch_stride * bits // 8 if batch > 1 else row
    name = name or ("out" if box.operand == "d" else box.operand)
    check_address(name, address)
    for along, value in ((box.strided, row_stride), ("batch", matrix_stride)):
        if value <= 0 or value % ALIGNMENT or value >= MAX_STRIDE:
            copy = f"pass {name}.expand(...).contiguous()"
            pad = f"pad the contiguous extent to a multiple of {ALIGNMENT * 8 // bits} elements"
            raise OperandError(
                f"{name}: neighbours along {along} are {value} bytes apart; TMA needs a positive multiple "
                f"of {ALIGNMENT} below 2^40: {pad if value > 0 and value % ALIGNMENT else copy}"
            )
    for along, extent in zip((box.contiguous, box.strided, "batch"), extents, strict=True):
        if extent > MAX_EXTENT:
            raise OperandError(f"{name}: extent {along} is {extent}; the limit of TMA is 2^32")
    rows = box.rows(extents[1])
    if box.anywhere:
        return Descriptor(box, rows, 0, (*extents[:2], *ANYWHERE), (row_stride, ALIGNMENT, ANYWHERE[0] * ALIGNMENT))
    if box.halves:
        if extents[2] > 1 and matrix_stride != extents[1] * row_stride:
            raise OperandError(
                f"{name}: matrices are {matrix_stride} bytes apart; with gate_half and up_half they must follow each "
                f"other: pass {name}.contiguous()"
            )
        run, half = HALF_BOX[0] * row_stride, extents[1] // 2 * row_stride
        of_halves = extents[0], HALF_BOX[0], 2 * extents[2], extents[1] // 16
        return Descriptor(box, rows, address, of_halves, (row_stride, half, run))
    if not box.window:
        return Descriptor(box, rows, address, extents, (row_stride, matrix_stride))
    start = address - box.window * row_stride
    if start <= 0:
        raise OperandError(
            f"{name}: {box.window} rows of {row_stride} bytes start below address 0, counted back from {address:#x}"
        )
    places = extents[0], box.window, extents[1] + 1, extents[2]
    return Descriptor(box, rows, start, places, (row_stride, row_stride, matrix_stride))


def check_address(name: str, address: int) -> None:
    """Raise OperandError where TMA cannot read an operand's first element."""
    if address % ALIGNMENT or address == 0:
        raise OperandError(
            f"{name}: its first element is at {address:#x}, but TMA needs a multiple of {ALIGNMENT} bytes: "
            f"start the view at an aligned element, or pass {name}.clone()"
        )


def replace_address(destination: int, address: int, device: int) -> None:
    """Point an encoded descriptor, for a GPU, at another tensor with the same extents and strides."""
    move = _libcuda().cuTensorMapReplaceAddress
    # Every launch with new addresses takes this path, so it makes no other call unless this one fails.
    status = move(destination, address) and _in_context(device, move, destination, address)
    if status:
        raise DeviceError(f"cuTensorMapReplaceAddress failed for {address:#x} with status {status}")


def _in_context(device: int, call: Callable[..., int], *arguments: Any) -> int:
    """Return the status of a call that needs a current context: a thread may have none before its first launch."""
    status = call(*arguments)
    if status == _INVALID_CONTEXT:
        with driver.current(device):
            status = call(*arguments)
    return status


@functools.cache
def _libcuda() -> ctypes.PyDLL:
    """Load libcuda such that calls keep the GIL: encoding is a microsecond of arithmetic."""
    try:
        libcuda = ctypes.PyDLL("libcuda.so.1")
    except OSError as error:
        raise DeviceError(f"the CUDA driver cannot be loaded: {error}; install NVIDIA's driver") from error
    pointer, u32, u64 = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64
    libcuda.cuTensorMapEncodeTiled.argtypes = [
        pointer,
        ctypes.c_int,
        u32,
        pointer,
        ctypes.POINTER(u64),
        ctypes.POINTER(u64),
        ctypes.POINTER(u32),
        ctypes.POINTER(u32),
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
    ]
    libcuda.cuTensorMapReplaceAddress.argtypes = [pointer, pointer]
    return libcuda
