"""What maps coordinates to indices: a layout, a swizzle, and a layout behind a swizzle."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from gemmill.library.errors import LayoutError
from gemmill.library.layouts import tuples
from gemmill.library.layouts.tuples import IntTuple

MOST_CELLS = 32_768
"""Most coordinates of a layout that are walked or drawn, one by one."""


class _Modes:
    """What layouts with and without a swizzle have in common."""

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
        """How deep its shape is nested."""
        return tuples.depth(self.shape)

    def refuse_many(self, what: str) -> None:
        """LayoutError where it has more than :data:`MOST_CELLS` coordinates."""
        if self.size > MOST_CELLS:
            raise LayoutError(
                f"{what} of {self} has {self.size:,} cells, and at most {MOST_CELLS:,} are gone through: take a slice "
                "of it, as in L(_,0), or a part, as in zipped_divide(L, (64,64))((_,0))"
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
                f"shape {tuples.text(self.shape)} and stride {tuples.text(self.stride)} are not nested alike: "
                "each integer of the shape needs its stride"
            )
        if min(tuples.flat(self.shape), default=1) < 1:
            raise LayoutError(f"shape {tuples.text(self.shape)} has an extent below 1; extents are 1 or more")
        if min(tuples.flat(self.stride), default=0) < 0:
            raise LayoutError(f"stride {tuples.text(self.stride)} goes backwards; strides are 0 or more here")

    def __str__(self) -> str:
        return f"{tuples.text(self.shape)}:{tuples.text(self.stride)}"

    def __call__(self, coordinate: IntTuple) -> int:
        """The index of a coordinate, as :func:`tuples.crd2idx`."""
        return tuples.crd2idx(coordinate, self.shape, self.stride)

    def __getitem__(self, mode: int) -> Layout:
        """A mode, as a layout."""
        return Layout(tuples.modes(self.shape)[mode], tuples.modes(self.stride)[mode])

    @cached_property
    def modes(self) -> tuple[Layout, ...]:
        """All modes, as layouts."""
        return tuple(self[mode] for mode in range(self.rank))

    @property
    def leaves(self) -> list[tuple[int, int]]:
        """Extent and stride of each integer, in order."""
        return [*zip(tuples.flat(self.shape), tuples.flat(self.stride), strict=True)]

    @property
    def cosize(self) -> int:
        """One more than the greatest index."""
        return sum((extent - 1) * stride for extent, stride in self.leaves) + 1


@dataclass(frozen=True)
class Swizzle:
    """``Sw<B,M,S>``: an index with B bits, which begin at bit M, xored with the B bits that lie S bits above.

    Raises:
        LayoutError: the bits would overlap, or reach beyond 32.
    """

    bits: int
    base: int
    shift: int

    def __post_init__(self) -> None:
        if abs(self.shift) < self.bits:
            raise LayoutError(f"{self}: |S| is below B, so that bits would change themselves; |S| is B or more")
        if self.bits + self.base + abs(self.shift) > 32:
            raise LayoutError(f"{self}: B + M + |S| is above 32, the bits of an index")

    def __str__(self) -> str:
        return f"Sw<{self.bits},{self.base},{self.shift}>"

    def __call__(self, index: int) -> int:
        """The index that takes the place of another; each is the other's."""
        low = self.base + max(-self.shift, 0)
        high = self.base + max(self.shift, 0)
        mask = (1 << self.bits) - 1
        # Bits at M + S move those at M where S is positive, the other way round where it is negative.
        source, target = (high, self.base) if self.shift >= 0 else (self.base, low)
        return index ^ ((index >> source & mask) << target)

    @property
    def size(self) -> int:
        """The least number of indices, from 0, that it maps to themselves as a whole."""
        return 1 << (self.bits + self.base + abs(self.shift))


@dataclass(frozen=True)
class Composed(_Modes):
    """``Sw<B,M,S> o offset o layout``: what a layout says, moved, then swizzled."""

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
        """Of the layout inside."""
        return self.inner.shape

    @property
    def cosize(self) -> int:
        """One more than the greatest index; LayoutError where there are too many to look."""
        self.refuse_many("the codomain")
        return max(map(self, range(self.size))) + 1


AnyLayout = Layout | Composed


def join(layouts: Iterable[Layout]) -> Layout:
    """The layout whose modes are these (``make_layout``)."""
    found = [*layouts]
    return Layout(tuple(layout.shape for layout in found), tuple(layout.stride for layout in found))


def column_major(shape: IntTuple) -> Layout:
    """The compact layout of a shape whose leftmost integer varies fastest."""
    return Layout(shape, tuples.compact(shape))
