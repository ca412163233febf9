"""XLA's foreign function interface (``xla/ffi/api/c_api.h``): reads call frames, creates errors, registers the target.

Every exception of a handler becomes an error of XLA, because an exception that leaves a C function would end the
process. XLA keeps the addresses of handlers forever, so this module keeps the handlers.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

import jax.ffi

from gemmill.library.dtypes import DTYPES
from gemmill.library.errors import GemmillError

TARGET = "gemmill_gemm"
"""The name of the target, which all calls share."""
ATTRIBUTE = "call"
"""The name of its only attribute: the text of a :class:`~gemmill.runtime.jax.description.Description`."""

S64, U32 = 5, 8
"""``XLA_FFI_DataType`` of the dtypes that only offsets and counts may have."""
DTYPE_CODES = {t.xla: t.name for t in DTYPES.values() if t.xla is not None}
"""gemmill's dtype for each ``XLA_FFI_DataType``."""

INSTANTIATE, EXECUTE = 0, 3
"""Stages (``XLA_FFI_ExecutionStage``): when XLA creates or loads a program, without arrays; and when it runs."""
_STAGES = ("instantiate", "execute")

API_FUNCTIONS = {"XLA_FFI_Error_Create": 48, "XLA_FFI_Stream_Get": 80, "XLA_FFI_DeviceOrdinal_Get": 184}
"""Offsets of functions in ``XLA_FFI_Api``, in bytes. XLA only appends to this struct, so they never change."""

_INVALID_ARGUMENT, _INTERNAL = 3, 13
_COMMAND_BUFFER_COMPATIBLE = 1
_METADATA = 1  # the type of an extension
# struct_size, extension, api, ctx, stage; then arguments, results (each struct_size, extension, size, types, values)
# and attributes (with names before the values).
_FRAME = struct.Struct("=QQQQi4xQQqQQQQqQQQQqQQQ")
_BUFFER = struct.Struct("=QQi4xQqQ")  # struct_size, extension, dtype, data, rank, dims
_SPAN = struct.Struct("=QQ")  # address, length
_EXTENSION = struct.Struct("=Qi4xQQ")  # struct_size, type, next; of metadata: where to write it
_POINTER_BYTES = 8
_STRING = 4  # the type of an attribute


class Buffer(NamedTuple):
    """An argument or a result of a call."""

    address: int
    dtype: int
    """``XLA_FFI_DataType``."""
    dims: bytes
    """The extents, as bytes of int64."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the array."""
        return struct.unpack(f"={len(self.dims) // 8}q", self.dims)


class Frame(NamedTuple):
    """A call frame: the values that XLA passes to a handler."""

    api: int
    context: int
    stage: int
    text: bytes
    """The value of the attribute: the text of a description."""
    buffers: list[Buffer]
    """Arguments, then results."""

    @property
    def stream(self) -> int:
        """Handle of the CUDA stream of the call."""
        return _query(self, "XLA_FFI_Stream_Get", ctypes.c_uint64)

    @property
    def device(self) -> int:
        """Ordinal of the GPU of the call."""
        return _query(self, "XLA_FFI_DeviceOrdinal_Get", ctypes.c_int32)


class FrameError(GemmillError):
    """A call frame does not match this target, for example because another version of gemmill wrote the program."""


class _ErrorArguments(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("message", ctypes.c_char_p),
        ("code", ctypes.c_int),
    )


@lru_cache(8)
def _function(api: int, name: str) -> Callable[[ctypes.c_void_p], int | None]:
    """A function of XLA's table, which takes the address of its arguments. Raises FrameError if XLA lacks it."""
    offset = API_FUNCTIONS[name]
    size, address = (ctypes.c_uint64.from_address(api + at).value for at in (0, offset))
    if size < offset + _POINTER_BYTES or not address:
        raise FrameError(f"this version of XLA lacks {name}; gemmill.jax needs JAX 0.8 or newer: upgrade jax")
    return ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(address)


def _query(frame: Frame, name: str, kind: type[ctypes.c_uint64] | type[ctypes.c_int32]) -> int:
    """Call a function of XLA's with the frame's context, and return the value that it writes."""
    memory = (ctypes.c_uint64 * 4)(32, 0, frame.context, 0)
    if _function(frame.api, name)(ctypes.cast(memory, ctypes.c_void_p)):
        raise FrameError(f"{name} failed; gemmill_gemm must run on a GPU")
    return kind.from_buffer(memory, 24).value


def _read_frame(address: int) -> Frame | None:
    """Read a call frame. If XLA requests metadata, write it and return None."""
    fields = _FRAME.unpack(ctypes.string_at(address, _FRAME.size))
    _, extension, api, context, stage = fields[:5]
    if extension:
        _, kind, _, metadata = _EXTENSION.unpack(ctypes.string_at(extension, _EXTENSION.size))
        if kind == _METADATA:
            # struct_size; api_version: struct_size, extension, major, minor; traits
            ctypes.c_int32.from_address(metadata + 24).value = 0
            ctypes.c_int32.from_address(metadata + 28).value = 1  # the version that has everything used here
            ctypes.c_uint32.from_address(metadata + 32).value = _COMMAND_BUFFER_COMPATIBLE
            return None
    arguments, results, attributes = fields[5:10], fields[10:15], fields[15:]
    buffers = [*_read_buffers(arguments[2], arguments[4]), *_read_buffers(results[2], results[4])]
    return Frame(api, context, stage, _read_text(*attributes[2:]), buffers)


def _read_buffers(count: int, address: int) -> list[Buffer]:
    buffers = []
    for (at,) in struct.iter_unpack("=Q", ctypes.string_at(address, _POINTER_BYTES * count) if count else b""):
        _, _, dtype, data, rank, dims = _BUFFER.unpack(ctypes.string_at(at, _BUFFER.size))
        buffers.append(Buffer(data, dtype, ctypes.string_at(dims, 8 * rank) if rank else b""))
    return buffers


def _read_text(count: int, types: int, names: int, values: int) -> bytes:
    """The one attribute; FrameError where there are others."""
    attributes = [_read_span(ctypes.c_uint64.from_address(names + _POINTER_BYTES * i).value) for i in range(count)]
    if attributes != [ATTRIBUTE.encode()] or ctypes.c_int32.from_address(types).value != _STRING:
        named = ", ".join(name.decode(errors="replace") for name in attributes) or "none"
        raise FrameError(
            f"{TARGET} has the attributes {named}; expected one text attribute, {ATTRIBUTE}: call gemmill.jax.matmul, "
            "which creates it"
        )
    return _read_span(ctypes.c_uint64.from_address(values).value)


def _read_span(address: int) -> bytes:
    start, length = _SPAN.unpack(ctypes.string_at(address, _SPAN.size))
    return ctypes.string_at(start, length)


def _error(frame_address: int, error: BaseException) -> int | None:
    """Create XLA's error for an exception, which the handler returns."""
    text = str(error) if isinstance(error, GemmillError) else f"{type(error).__name__}: {error}"
    message = f"gemmill: {text}".replace("\0", " ").encode()
    code = _INVALID_ARGUMENT if isinstance(error, GemmillError) else _INTERNAL
    arguments = _ErrorArguments(ctypes.sizeof(_ErrorArguments), None, message, code)
    api = ctypes.c_uint64.from_address(frame_address + 16).value
    return _function(api, "XLA_FFI_Error_Create")(ctypes.cast(ctypes.pointer(arguments), ctypes.c_void_p))


_HANDLER = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_handlers: list[object] = []


def register(platform: str, body: Callable[[Frame], None]) -> None:
    """Register the target for a platform of XLA, ``cpu`` or ``CUDA``. Exceptions of ``body`` become errors of XLA."""

    def handle(address: int) -> int | None:
        try:
            try:
                frame = _read_frame(address)
                if frame is not None:
                    body(frame)
                return None
            except BaseException as error:  # noqa: BLE001 an interrupt would end the process too
                return _error(address, error)
        except BaseException as error:  # noqa: BLE001 an exception while the error was created
            with suppress(BaseException):
                return _error(address, error)
        return None

    function = _HANDLER(handle)
    _handlers.append(function)
    pointer = ctypes.cast(function, ctypes.c_void_p).value
    jax.ffi.register_ffi_target(TARGET, {stage: jax.ffi.pycapsule(pointer) for stage in _STAGES}, platform=platform)
