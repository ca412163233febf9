"""The order of e2m1 numbers in memory."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gemmill.library.e2m1 import VALUES, from_fragment_order, in_fragment_order


def test_values_are_those_of_the_format() -> None:
    for code, value in enumerate(VALUES):
        sign, exponent, fraction = code >> 3, code >> 1 & 3, code & 1
        magnitude = fraction / 2 if exponent == 0 else 2.0 ** (exponent - 1) * (1 + fraction / 2)
        assert (value, np.signbit(value)) == (-magnitude if sign else magnitude, bool(sign))


@given(st.lists(st.integers(0, 15), min_size=32, max_size=32))
def test_words_hold_what_a_lane_looks_for(codes: list[int]) -> None:
    """By their definition, a number at a time."""
    words = in_fragment_order(np.array(codes, "int32"), np).astype("u1").view("<u4")
    for quad, word in enumerate(int(x) for x in words):
        for i in range(4):
            for half in range(2):
                code = codes[8 * i + 2 * quad + half]
                bits = word >> 16 * half
                assert (bits >> 3 * i & 7, bits >> 12 + (i ^ 1) & 1) == (code & 7, code >> 3)


@given(st.lists(st.integers(1, 3), max_size=3), st.integers(0, 4), st.integers(0, 99))
def test_the_order_is_undone(batch: list[int], blocks: int, seed: int) -> None:
    packed = np.random.default_rng(seed).integers(0, 256, (*batch, 16 * blocks), dtype="int32")
    codes = from_fragment_order(packed, np)
    assert codes.shape == (*batch, 32 * blocks)
    assert np.array_equal(in_fragment_order(codes, np), packed)
