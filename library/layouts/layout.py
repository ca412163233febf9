"""Functions from coordinates to indices: layouts, swizzles, and layouts with a swizzle."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from gemmill.library.errors import LayoutError
from gemmill.library.layouts import tuples
from gemmill.library.layouts.tuples import IntTuple

MOST_CELLS = 32_768
"""Most coordinates of a layout that are enumerated or drawn."""
_BYTE_BITS = 8


class _Modes:
    """Common properties of layouts with and without a swizzle."""

    shape: IntTuple

    @property
    def rank(self) -> int:
        """The number of modes."""
        return tuples.rank(self.shape)

    @property
    def size(self) -> int:
        """The number of coordinates."""
        return tuples.product(self.shape)

    @property
    def depth(self) -> int:
        """The nesting depth of its shape."""
        return tuples.depth(self.shape)

    def refuse_many(self, what: str) -> None:
        """Raise LayoutError if it has more than :data:`MOST_CELLS` coordinates."""
        if self.size > MOST_CELLS:
            raise LayoutError(
                f"{what} of {self} has {self.size:,} cells; the limit is {MOST_CELLS:,}. Use a slice such as L(_,0), "
                "or a part such as zipped_divide(L, (64,64))((_,0))"
            )


@dataclass(frozen=True)
class Layout(_Modes):
    """A function from coordinates to indices: the inner product of a natural coordinate with the strides.

    Raises:
        LayoutError: shape and stride are not congruent, an extent is below 1, or a stride below 0.
    """

    shape: IntTuple
    stride: IntTuple

    def __post_init__(self) -> None:
        if not tuples.congruent(self.shape, self.stride):
            raise LayoutError(
                f"shape {tuples.text(self.shape)} and stride {tuples.text(self.stride)} have different nesting; "
                "pass one stride for each extent"
            )
        if min(tuples.flat(self.shape), default=1) < 1:
            raise LayoutError(f"shape {tuples.text(self.shape)} has an extent below 1; extents must be at least 1")
        if min(tuples.flat(self.stride), default=0) < 0:
            raise LayoutError(f"stride {tuples.text(self.stride)} is negative; strides must be at least 0")

    def __str__(self) -> str:
        return f"{tuples.text(self.shape)}:{tuples.text(self.stride)}"

    def __call__(self, coordinate: IntTuple) -> int:
        """The index of a coordinate; see :func:`tuples.crd2idx`."""
        return tuples.crd2idx(coordinate, self.shape, self.stride)

    def __getitem__(self, mode: int) -> Layout:
        """A mode as a layout."""
        return Layout(tuples.modes(self.shape)[mode], tuples.modes(self.stride)[mode])

    @cached_property
    def modes(self) -> tuple[Layout, ...]:
        """All modes as layouts."""
        return tuple(self[mode] for mode in range(self.rank))

    @property
    def leaves(self) -> list[tuple[int, int]]:
        """Extent and stride of each integer, in order."""
        return [*zip(tuples.flat(self.shape), tuples.flat(self.stride), strict=True)]

    @property
    def cosize(self) -> int:
        """One more than the largest index."""
        return sum((extent - 1) * stride for extent, stride in self.leaves) + 1


@dataclass(frozen=True)
class Swizzle:
    """``Sw<B,M,S>``: XORs B bits of an index, starting at bit M, with the B bits that are S bits higher.

    Raises:
        LayoutError: the two groups of bits overlap, or exceed 32 bits.
    """

    bits: int
    base: int
    shift: int

    def __post_init__(self) -> None:
        if abs(self.shift) < self.bits:
            raise LayoutError(f"{self}: |S| must be at least B, so that the two groups of bits do not overlap")
        if self.bits + self.base + abs(self.shift) > 32:
            raise LayoutError(f"{self}: B + M + |S| must be at most 32, the bits of an index")

    def __str__(self) -> str:
        return f"Sw<{self.bits},{self.base},{self.shift}>"

    def __call__(self, index: int) -> int:
        """The swizzled index. The swizzle is its own inverse."""
        low = self.base + max(-self.shift, 0)
        high = self.base + max(self.shift, 0)
        mask = (1 << self.bits) - 1
        # For positive S, bits at M + S change those at M; for negative S, the other way round.
        source, target = (high, self.base) if self.shift >= 0 else (self.base, low)
        return index ^ ((index >> source & mask) << target)

    def in_bytes(self, element_bits: int) -> Swizzle | None:
        """The swizzle of byte addresses that moves elements as this one does; None if there is none.

        Args:
            element_bits: size of an element, a power of two. Swizzles of smaller elements can move parts of bytes.
        """
        base = self.base + element_bits.bit_length() - _BYTE_BITS.bit_length()
        try:
            return Swizzle(self.bits, base, self.shift) if base >= 0 else None
        except LayoutError:
            return None

    @property
    def size(self) -> int:
        """The smallest range of indices from 0 that the swizzle permutes."""
        return 1 << (self.bits + self.base + abs(self.shift))


@dataclass(frozen=True)
class Composed(_Modes):
    """``Sw<B,M,S> o offset o layout``: the index of a layout, plus an offset, swizzled."""

    swizzle: Swizzle
    offset: int
    inner: Layout

    def __str__(self) -> str:
        return f"{self.swizzle} o {self.offset} o {self.inner}"

    def __call__(self, coordinate: IntTuple) -> int:
        """The index of a coordinate."""
        return self.swizzle(self.offset + self.inner(coordinate))

    @property
    def shape(self) -> IntTuple:  # type: ignore[override]
        """The shape of the inner layout."""
        return self.inner.shape

    @property
    def cosize(self) -> int:
        """One more than the largest index; LayoutError if there are too many coordinates to enumerate."""
        self.refuse_many("the codomain")
        return max(map(self, range(self.size))) + 1


AnyLayout = Layout | Composed


def join(layouts: Iterable[Layout]) -> Layout:
    """The layout with these modes (``make_layout``)."""
    modes = [*layouts]
    return Layout(tuple(layout.shape for layout in modes), tuple(layout.stride for layout in modes))


def column_major(shape: IntTuple) -> Layout:
    """The compact column-major layout of a shape: the leftmost integer varies fastest."""
    return Layout(shape, tuples.compact(shape))
