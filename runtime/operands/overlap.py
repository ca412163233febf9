"""Memory that would be written twice, or while it is read: outputs that share bytes with other tensors of a call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from gemmill.library.errors import OperandError
from gemmill.runtime.operands.call import GemmCall
from gemmill.runtime.operands.gemm import Addresses
from gemmill.runtime.operands.tensors import LEAST_ADDRESS, TensorView, reach, without_memory

_MAX_WORK = 100_000
"""Most steps of NumPy's search for a common byte, some milliseconds; what takes more is refused."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """The bytes of a tensor that has elements, wherever its address is."""

    name: str
    """What the caller calls it."""
    place: int
    """Its place among the addresses of a call."""
    before: int
    """Bytes before its address that it reaches back to."""
    behind: int
    """Bytes from its address to its end."""
    extents: tuple[tuple[int, int], ...]
    """Extents, and bytes between neighbours along them."""

    @classmethod
    def of(cls, name: str, place: int, tensor: TensorView) -> Footprint:
        """That of a tensor."""
        extents = tensor.byte_extents
        return cls(name, place, *reach(extents), extents)

    def shares(self, address: int, other: Footprint, others: int) -> bool:
        """Whether one byte belongs to both, at these addresses."""
        import numpy as np  # which takes longer to import than a pack to load: few calls come here

        most: Any = _MAX_WORK
        try:
            return np.shares_memory(np.asarray(self._at(address)), np.asarray(other._at(others)), max_work=most)
        except np.exceptions.TooHardError:
            return True

    def _at(self, address: int) -> _Bytes:
        return _Bytes(address, *zip(*self.extents, strict=True))


class _Bytes:
    """Bytes as NumPy takes them for an array, which is never read."""

    def __init__(self, address: int, shape: Sequence[int], strides: Sequence[int]) -> None:
        data = address, True
        self.__array_interface__ = {"data": data, "shape": shape, "strides": strides, "typestr": "|u1", "version": 3}


class MemoryCheck:
    """Refuses calls like one whose outputs lie where other tensors of the call do, or whose tensors have no memory.

    C, and a matrix that the epilogue reads, may be D: each element is read by the thread that writes it. Of an array
    of matrices nobody but the GPU knows where they are: only their table is looked at.
    """

    def __init__(self, call: GemmCall) -> None:
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
        prints = [Footprint.of(name, places[name], x) for name, x in tensors.items() if 0 not in x.shape]
        prints.sort(key=lambda x: x.name not in written)
        self._prints = tuple(prints)
        self._pairs = tuple(
            (one, other, other.name not in written, one.name == "out" and other.name in in_place)
            for one, other in combinations(prints, 2)
            if one.name in written
        )

    def __call__(self, addresses: Addresses) -> None:
        """OperandError names what shares memory with what, at the addresses of :attr:`GemmCall.places`."""
        for one in self._prints:
            if addresses[one.place] < LEAST_ADDRESS:
                raise without_memory(one.name)
        for one, other, is_read, may_be_equal in self._pairs:
            x, y = addresses[one.place], addresses[other.place]
            apart = x + one.behind <= y - other.before or y + other.behind <= x - one.before
            if not apart and not (may_be_equal and x == y) and one.shares(x, other, y):
                raise _refused(one, x, other, y, is_read)


def _refused(one: Footprint, x: int, other: Footprint, y: int, is_read: bool) -> OperandError:
    lies = " and ".join(
        f"{n.name} from {address - n.before:#x} to {address + n.behind - 1:#x}" for n, address in ((one, x), (other, y))
    )
    why = f"{one.name} is written while {other.name} is read" if is_read else "both are written"
    way = f"pass other memory for {one.name}" if is_read else "pass other memory for one"
    return OperandError(f"{one.name} and {other.name} share memory, {lies}, and {why}: {way}")
