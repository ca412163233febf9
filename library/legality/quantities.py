"""Quantities that rules and resources of all families count in: integers of fields, bytes of elements."""

from __future__ import annotations

from gemmill.library.config.fields import Fields
from gemmill.library.dtypes import DTYPES, DTypeName

SM_REGISTERS = 65536
"""Registers of an SM (CUDA Programming Guide, Compute Capabilities)."""
TMA_ALIGN = 16
"""Bytes that TMA needs base addresses and strides to be a multiple of."""


def integer(fields: Fields, name: str) -> int:
    """An integer field."""
    value = fields[name]
    assert isinstance(value, int), f"{name} is {value!r}, not an integer"
    return value


def dtype_bytes(dtype: str) -> int:
    """Bytes of one element in shared memory; 0 for an absent C's ``none``."""
    return 0 if dtype == "none" else max(8, DTYPES[dtype].bits) // 8


def element_bytes(fields: Fields, operand: str) -> int:
    """Bytes of one element of an operand in shared memory, packed ones unpacked; 0 for an absent C."""
    return dtype_bytes(str(fields[f"{operand}.dtype"]))


def align_up(value: int, multiple: int) -> int:
    """The least multiple of ``multiple`` that is not below ``value``."""
    return -(-value // multiple) * multiple


def element_bits(fields: Fields, operand: str) -> int:
    """Bits of one element of A or B in memory and in its stages."""
    return DTYPES[str(fields[f"{operand}.dtype"])].bits


def partial_dtype(fields: Fields) -> DTypeName:
    """The dtype of the partial sums of a split kernel."""
    return "s32" if fields["accumulator"] == "s32" else "f32"
