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
    """Shifts and masks of a word give pairs of bf16 that are the numbers times 2^-126 (mma/upconvert.cuh)."""
    words = in_fragment_order(np.array(codes, "int32"), np).astype("u1").view("<u4")
    mask = 0x81C081C0
    for quad, word in enumerate(int(x) for x in words):
        turned = word >> 4 | word << 28
        last = word << 2 & 0x80C080C0 | word >> 6 & 0x01000100
        for i, pair in enumerate((word & mask, word << 6 & mask, turned & mask, last)):
            for half in range(2):
                bits, code = pair >> 16 * half & 0xFFFF, codes[8 * i + 2 * quad + half]
                assert bits == (code & 7) << 6 | code >> 3 << 15


@given(st.lists(st.integers(1, 3), max_size=3), st.integers(0, 4), st.integers(0, 99))
def test_the_order_is_undone(batch: list[int], blocks: int, seed: int) -> None:
    packed = np.random.default_rng(seed).integers(0, 256, (*batch, 16 * blocks), dtype="int32")
    codes = from_fragment_order(packed, np)
    assert codes.shape == (*batch, 32 * blocks)
    assert np.array_equal(in_fragment_order(codes, np), packed)
