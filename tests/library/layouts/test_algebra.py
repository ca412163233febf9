"""The algebra as CuTe has it: held against what its operations mean, pycute, and tensor-layouts where it is there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gemmill.library.errors import LayoutError
from gemmill.library.layouts import algebra
from gemmill.library.layouts.atoms import TYPE_BITS
from gemmill.library.layouts.layout import Layout, Swizzle, column_major, join
from gemmill.library.layouts.tuples import flat

pycute = pytest.importorskip("pycute", reason="pycute comes with nvidia-cutlass, of gemmill's extras cu12 and cu13")

EXTENTS = st.lists(st.sampled_from([1, 2, 3, 4, 6, 8]), min_size=1, max_size=3)


@st.composite
def layouts(draw: st.DrawFn, gaps: bool = True) -> Layout:
    """Layouts whose indices are all different: extents in any order, with gaps between."""
    extents = draw(EXTENTS)
    strides, reached = [0] * len(extents), draw(st.sampled_from([1, 1, 2])) if gaps else 1
    for mode in draw(st.permutations(range(len(extents)))):
        strides[mode] = reached
        reached *= extents[mode] * (draw(st.sampled_from([1, 1, 2])) if gaps else 1)
    return Layout(tuple(extents), tuple(strides)) if len(extents) > 1 else Layout(extents[0], strides[0])


def theirs(layout: Layout) -> Any:
    return pycute.Layout(layout.shape, layout.stride)


def result(work: Callable[[], Layout]) -> Layout | None:
    try:
        return work()
    except LayoutError:
        return None


@given(layouts(), layouts())
def test_results_are_those_of_pycute_where_it_has_them(a: Layout, b: Layout) -> None:
    cases: list[tuple[Callable[[], Layout], Callable[[], Any]]] = [
        (lambda: algebra.coalesce(a), lambda: pycute.coalesce(theirs(a))),
        (lambda: algebra.composition(a, b), lambda: pycute.composition(theirs(a), theirs(b))),
        (lambda: algebra.complement(a, 96), lambda: pycute.complement(theirs(a), 96)),
        (lambda: algebra.right_inverse(a), lambda: pycute.right_inverse(theirs(a))),
        (lambda: algebra.logical_divide(a, b), lambda: pycute.logical_divide(theirs(a), theirs(b))),
        (lambda: algebra.logical_product(a, b), lambda: pycute.logical_product(theirs(a), theirs(b))),
    ]
    compared: list[tuple[str, str]] = []
    for ours, other in cases:
        if (found := result(ours)) is not None:
            with suppress(AssertionError):  # it refuses more, as 1:6 of an extent of 4
                others = str(other()).replace(" ", "")
                compared.append((str(found), others))
    assert all(ours == others for ours, others in compared), compared


@given(layouts(), layouts(gaps=False))
def test_a_composition_is_one_of_functions(a: Layout, b: Layout) -> None:
    for mode in b.modes:
        found = result(partial(algebra.composition, a, mode))
        for index in range(mode.size if found else 0):
            if mode(index) < a.size:
                assert found is not None
                assert found(index) == a(mode(index))


def test_a_composition_that_no_layout_is_is_refused_where_pycute_loses_cells() -> None:
    a, b = Layout((4, 3), (1, 10)), Layout(6, 1)
    assert pycute.composition(theirs(a), theirs(b)).size() == 4
    with pytest.raises(LayoutError, match="4 does not divide 6"):
        algebra.composition(a, b)


@given(layouts())
def test_inverses_undo(layout: Layout) -> None:
    right = algebra.right_inverse(layout)
    assert [layout(right(index)) for index in range(right.size)] == [*range(right.size)]
    if (left := result(lambda: algebra.left_inverse(layout))) is not None:
        assert [left(layout(index)) for index in range(layout.size)] == [*range(layout.size)]


@given(layouts())
def test_a_complement_completes(layout: Layout) -> None:
    both = join([layout, algebra.complement(layout, 2 * layout.cosize)])
    indices = {both(index) for index in range(both.size)}
    assert len(indices) == both.size, "nothing twice"
    assert {*range(layout.cosize)} <= indices, "nothing left out"


@given(layouts(gaps=False), layouts())  # into a block's gaps, as CuTe 4.2 and pycute, it puts no copies
def test_products_and_inverses_are_those_of_tensor_layouts(a: Layout, b: Layout) -> None:
    other = pytest.importorskip("tensor_layouts", reason="an oracle beside pycute; pip install tensor-layouts")

    def of(layout: Layout) -> Any:
        return other.Layout(layout.shape, layout.stride)

    assert str(algebra.right_inverse(a)) == str(other.right_inverse(of(a))).replace(" ", "")
    if (left := result(lambda: algebra.left_inverse(a))) is not None:
        assert str(left) == str(other.left_inverse(of(a))).replace(" ", "")
    for ours, name in ((algebra.blocked_product, "blocked_product"), (algebra.raked_product, "raked_product")):
        if a.rank == b.rank > 1 and a.size * b.size < 1000 and (found := result(partial(ours, a, b))) is not None:
            theirs = getattr(other, name)(of(a), of(b))
            assert [found(index) for index in range(found.size)] == [theirs(index) for index in range(found.size)]


DIVIDED = Layout((9, (4, 8)), (59, (13, 1)))
TILER = (Layout(3, 3), Layout((2, 4), (1, 8)))


def test_divides_are_the_same_cells_nested_otherwise() -> None:
    """The example of CuTe's page on the algebra, by mode."""
    split = algebra.logical_divide
    assert str(split(DIVIDED, TILER)) == "((3,3),((2,4),(2,2))):((177,59),((13,2),(26,1)))"
    assert str(algebra.zipped(split, DIVIDED, TILER)) == "((3,(2,4)),(3,(2,2))):((177,(13,2)),(59,(26,1)))"
    assert str(algebra.tiled(split, DIVIDED, TILER)) == "((3,(2,4)),3,(2,2)):((177,(13,2)),59,(26,1))"
    assert str(algebra.flat(split, DIVIDED, TILER)) == "(3,(2,4),3,(2,2)):(177,(13,2),59,(26,1))"


def test_products_place_blocks() -> None:
    block, tiler = Layout((2, 5), (5, 1)), Layout((3, 4), (1, 3))
    assert str(algebra.blocked_product(block, tiler)) == "((2,3),(5,4)):((5,10),(1,30))"
    assert str(algebra.raked_product(block, tiler)) == "((3,2),(4,5)):((10,5),(30,1))"
    assert str(algebra.tile_to_shape(Layout((8, 64), (64, 1)), (128, 64))) == "((8,16),(64,1)):((64,512),(1,0))"
    along = algebra.tile_to_shape(column_major((2, 2)), (4, 4), (1, 0))
    assert [along(index) for index in range(4)] == [0, 1, 8, 9], "the second mode first"


@pytest.mark.parametrize(
    ("work", "says"),
    [
        (lambda: Layout((2, 3), 1), "different nesting"),
        (lambda: algebra.complement(Layout((4, 2), (2, 3)), 24), "stride 3 is not a multiple of 8"),
        (lambda: algebra.left_inverse(Layout((2, 3), (1, 1))), "the inverse is not a layout"),
        (lambda: algebra.upcast(Layout((4, 8), (1, 6)), 4), "do not divide one another"),
        (lambda: algebra.tile_to_shape(column_major((3, 2)), (8, 8)), "extent 3 of .* does not divide 8"),
        (lambda: algebra.coalesce(Layout(8, 1), (1, 1)), "has 1 modes, but 2 were passed"),
        (lambda: column_major((4, 2))((4, 0)), "it must be from 0 to 3"),
        (lambda: column_major((4, 2))((1, (0, 0))), "shape 2 has no nested modes"),
        (lambda: Swizzle(3, 4, 2), "must be at least B"),
        (lambda: Swizzle(16, 1, 16), "must be at most 32"),
        (lambda: column_major((10_000, 1_000)).refuse_many("a table"), "10,000,000 cells"),
    ],
)
def test_what_has_no_result_says_why(work: Callable[[], object], says: str) -> None:
    with pytest.raises(LayoutError, match=says):
        work()


@given(st.integers(0, 4), st.integers(0, 4), st.integers(-6, 6), st.integers(0, 1 << 16))
def test_a_swizzle_is_pycute_s_and_its_own_inverse(bits: int, base: int, shift: int, index: int) -> None:
    if abs(shift) < bits:
        return
    swizzle = Swizzle(bits, base, shift)
    if shift:  # without, pycute recurses for ever
        assert swizzle(index) == pycute.Swizzle(bits, base, shift)(index)
    assert swizzle(swizzle(index)) == index


@given(
    st.integers(0, 4), st.integers(0, 4), st.integers(-6, 6), st.sampled_from(sorted({*TYPE_BITS.values()})), st.data()
)
def test_a_swizzle_in_bytes_moves_every_bit_of_every_element(
    bits: int, base: int, shift: int, width: int, data: st.DataObject
) -> None:
    assume(abs(shift) >= bits)
    swizzle = Swizzle(bits, base, shift)
    in_bytes = swizzle.in_bytes(width)
    assume(in_bytes)
    assert in_bytes
    place = data.draw(st.integers(0, swizzle.size * width - 1))
    index, within = divmod(place, width)
    assert swizzle(index) * width + within == in_bytes(place // 8) * 8 + place % 8


def test_upcast_counts_in_elements() -> None:
    assert str(algebra.upcast(Layout((8, 1024), (1024, 1)), 16)) == "(8,64):(64,1)"
    assert flat(algebra.upcast(Layout((32, (32, 4)), (32, (1, 1024))), 16).stride) == (2, 1, 64)
