"""The memory that kernels' parameters are passed in."""

from __future__ import annotations

import ctypes
import struct
from typing import NamedTuple

from gemmill.runtime.launch import tma


class Described(NamedTuple):
    """An encoded descriptor that follows an operand."""

    place: int
    """The operand's, in :data:`~gemmill.runtime.launch.plan.OPERANDS`, or of what is passed to the epilogue after
    these."""
    address: int
    """The descriptor's."""
    shift: int
    """How far from the operand's address it begins."""


class ParameterBlock:
    """A kernel's parameter struct in host memory, aligned for the descriptors it holds."""

    def __init__(self, size: int) -> None:
        alignment = tma.DESCRIPTOR_ALIGNMENT
        self._memory = ctypes.create_string_buffer(size + alignment)
        self.address = -(-ctypes.addressof(self._memory) // alignment) * alignment
        self._pointers = (ctypes.c_void_p * 1)(self.address)
        self._size = size

    @property
    def arguments(self) -> int:
        """Address of the ``void*`` that a launch takes as ``kernelParams``."""
        return ctypes.addressof(self._pointers)

    def write(self, offset: int, layout: str, value: float) -> None:
        """Write one scalar; ``layout`` is its character in :mod:`struct`."""
        self.put(offset, struct.pack("<" + layout, value))

    def put(self, offset: int, data: bytes) -> None:
        """Write some bytes."""
        if not 0 <= offset <= self._size - len(data):
            raise ValueError(f"offset {offset} is outside the {self._size} bytes of the parameters")
        ctypes.memmove(self.address + offset, data, len(data))

    def integer(self, offset: int) -> ctypes.c_uint64:
        """The 64 bits at an offset, to be written again and again."""
        return ctypes.c_uint64.from_address(self.address + offset)

    def read(self) -> bytes:
        """The struct's bytes."""
        return ctypes.string_at(self.address, self._size)
