"""Finds memory that a call would write twice, or write while it reads it: outputs that share bytes with other
tensors."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from gemmill.library.errors import OperandError
from gemmill.runtime.operands.call import GemmCall
from gemmill.runtime.operands.gemm import Addresses
from gemmill.runtime.operands.tensors import LEAST_ADDRESS, TensorView, reach, without_memory

_MAX_WORK = 100_000
"""Limit of NumPy's search for a common byte, some milliseconds of work; beyond it, gemmill refuses the call."""


class Footprint(NamedTuple):
    """The bytes of a tensor that has elements, relative to its address."""

    name: str
    """The caller's name for it."""
    place: int
    """Its index in the addresses of a call."""
    bytes_before: int
    """Bytes that it spans before its address."""
    bytes_behind: int
    """Bytes from its address to its end."""
    extents: tuple[tuple[int, int], ...]
    """Extents, and bytes between neighbours along them."""

    @classmethod
    def of(cls, name: str, place: int, tensor: TensorView) -> Footprint:
        """Return the footprint of a tensor."""
        extents = tensor.byte_extents
        return cls(name, place, *reach(extents), extents)

    def shares(self, address: int, other: Footprint, others: int) -> bool:
        """Whether the two share a byte at these addresses."""
        import numpy as np  # importing it takes longer than loading a pack, and few calls come here

        most: Any = _MAX_WORK
        try:
            return np.shares_memory(
                np.asarray(self._bytes_at(address)), np.asarray(other._bytes_at(others)), max_work=most
            )
        except np.exceptions.TooHardError:
            return True

    def _bytes_at(self, address: int) -> _Bytes:
        return _Bytes(address, *zip(*self.extents, strict=True))


class _Bytes:
    """Bytes in the form of a NumPy array, whose elements nobody reads."""

    def __init__(self, address: int, shape: Sequence[int], strides: Sequence[int]) -> None:
        data = address, True
        self.__array_interface__ = {"data": data, "shape": shape, "strides": strides, "typestr": "|u1", "version": 3}


class MemoryCheck:
    """Refuses a call whose outputs overlap other tensors of the call, or whose tensors have no memory.

    C, and a matrix that the epilogue reads, may be D, since the thread that writes an element also reads it. The
    addresses of an array of matrices are only on the GPU, so only their table is checked.
    """

    def __init__(
        self,
        tensors: Mapping[str, TensorView],
        places: Mapping[str, int],
        written: Collection[str],
        in_place: Collection[str] = (),
    ) -> None:
        """``places`` are the indices of tensors in the addresses; those ``in_place`` may be ``out``."""
        footprints = [Footprint.of(name, places[name], x) for name, x in tensors.items() if 0 not in x.shape]
        footprints.sort(key=lambda x: x.name not in written)
        self._footprints = tuple(footprints)
        self._pairs = tuple(
            (one, other, other.name not in written, one.name == "out" and other.name in in_place)
            for one, other in combinations(footprints, 2)
            if one.name in written
        )

    @classmethod
    def of(cls, call: GemmCall) -> MemoryCheck:
        """Return the check of a call, which takes the addresses of :attr:`GemmCall.places`."""
        values = {name: x for name, x in call.arguments.values.items() if isinstance(x, TensorView)}
        tensors = {**call.tensors, **values}
        if "addresses" in tensors:
            tensors = {"addresses": tensors["addresses"]}
        out, written = call.tensors["out"], {"out", *call.arguments.outputs}
        if 0 in out.shape:  # nothing is read
            tensors = {name: x for name, x in tensors.items() if name in written}
        places = {name: place for place, name in enumerate(call.places)}
        matrices = {o.name for o in call.arguments.epilogue.operands if o.kind == "matrix"}
        in_place = {x for x in ("c", *matrices) if x in tensors and tensors[x].same_layout(out)}
        return cls(tensors, places, written, in_place)

    def __call__(self, addresses: Addresses) -> None:
        """Check the addresses; OperandError names the tensors that overlap."""
        for one in self._footprints:
            if addresses[one.place] < LEAST_ADDRESS:
                raise without_memory(one.name)
        for one, other, is_read, may_be_equal in self._pairs:
            x, y = addresses[one.place], addresses[other.place]
            disjoint = x + one.bytes_behind <= y - other.bytes_before or y + other.bytes_behind <= x - one.bytes_before
            if not disjoint and not (may_be_equal and x == y) and one.shares(x, other, y):
                raise _overlap_error(one, x, other, y, is_read)


def _overlap_error(one: Footprint, x: int, other: Footprint, y: int, is_read: bool) -> OperandError:
    ranges = " and ".join(
        f"{n.name} from {address - n.bytes_before:#x} to {address + n.bytes_behind - 1:#x}"
        for n, address in ((one, x), (other, y))
    )
    why = f"{one.name} is written while {other.name} is read" if is_read else "both are written"
    advice = f"pass other memory for {one.name}" if is_read else "pass other memory for one of them"
    return OperandError(f"{one.name} and {other.name} overlap in memory ({ranges}), and {why}: {advice}")
