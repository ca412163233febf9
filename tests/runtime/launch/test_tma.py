"""TMA descriptors up to the driver call: what is passed, and which rule is named where one is broken."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmill.library.errors import OperandError
from gemmill.library.launch import TmaBox
from gemmill.runtime.launch.tma import describe

BOX = TmaBox(operand="a", dtype="bf16", contiguous="k", strided="m", box=(64, 128), swizzle=128, offset=0)


def described(**changes: Any) -> Any:
    arguments: dict[str, Any] = {
        "address": 4096,
        "contiguous": 100,
        "strided": 50,
        "batch": 3,
        "stride": 104,
        "batch_stride": 104 * 50,
    }
    return describe(BOX, **(arguments | changes))


def test_strides_are_in_bytes() -> None:
    descriptor = described()
    assert descriptor.extents == (100, 50, 3)
    assert descriptor.strides == (208, 208 * 50)


@given(address=st.integers(0, (1 << 47) // 16).map(lambda chunk: chunk * 16))
def test_all_of_memory_is_within_two_coordinates(address: int) -> None:
    descriptor = describe(replace(BOX, anywhere=True), 4096, 100, 50, 1, 104, 0)
    low, high = address >> 4 & 0x7FFFFFFF, address >> 35  # as scheduler/array.cuh
    assert descriptor.address == 0
    assert descriptor.extents[:2] == (100, 50)
    assert low < descriptor.extents[2] <= 1 << 31
    assert high < descriptor.extents[3]
    assert descriptor.strides[0] == 208
    assert low * descriptor.strides[1] + high * descriptor.strides[2] == address


def test_rows_of_halves_alternate_in_runs_of_8() -> None:
    """The place in memory of each row of a box, in the order in which TMA writes rows to shared memory."""
    step, rows = 208, 96
    halves = describe(replace(BOX, halves=True, box=(64, 32)), 4096, 100, rows, 3, 104, 104 * rows)
    assert halves.extents == (100, 8, 6, rows // 16)
    for matrix, first in ((0, 0), (2, 64)):
        places = [
            j * halves.strides[0] + (2 * matrix + half) * halves.strides[1] + (first // 16 + run) * halves.strides[2]
            for run, half, j in itertools.product(range(2), range(2), range(8))
        ]
        gate = [first // 2 + row for row in range(16)]
        wanted = [*gate[:8], *(rows // 2 + x for x in gate[:8]), *gate[8:], *(rows // 2 + x for x in gate[8:])]
        assert places == [(matrix * rows + row) * step for row in wanted]
    with pytest.raises(OperandError, match=r"a: matrices are 20800 bytes apart; with gate_half and up_half they must"):
        describe(replace(BOX, halves=True, box=(64, 32)), 4096, 100, rows, 3, 104, 104 * 100)


@given(valid=st.integers(0, 64), first=st.integers(0, 49))
def test_a_window_clips_at_any_row(valid: int, first: int) -> None:
    box = replace(BOX, window=64)
    plain = described()
    window = describe(box, 4096 + 64 * 208, 100, 50, 3, 104, 104 * 50)
    assert window.extents == (100, 64, 51, 3)
    assert window.strides == (208, 208, 208 * 50)
    valid = min(valid, 50 - first)
    row, place = 64 - valid, first + valid
    for i in range(64):
        inside = row + i < window.extents[1] and place < window.extents[2]
        assert inside == (i < valid), "TMA clips along each extent by itself"
        at = window.address + (row + i) * window.strides[0] + place * window.strides[1]
        assert at == plain.address + 64 * 208 + (first + i) * plain.strides[0]


@given(rows=st.integers(1, 1000))
def test_whole_boxes_and_the_tail_are_the_operand(rows: int) -> None:
    assert described(strided=rows).rows == BOX.box[1], "boxes of no part reach beyond"
    whole, tail = replace(BOX, part="whole"), replace(BOX, part="tail")
    boxes = rows // BOX.box[1]
    assert boxes * whole.rows(rows) + tail.rows(rows) == rows
    for box in (whole, tail):
        if box.rows(rows):
            cut = describe(box, 4096, 100, rows, 3, 104, 104 * 1000)
            assert cut.rows == box.rows(rows)
            assert cut.extents == (100, rows, 3)


def test_a_window_below_address_0_is_refused() -> None:
    with pytest.raises(OperandError, match="a: 64 rows of 208 bytes start below address 0, counted back from 0x1000"):
        describe(replace(BOX, window=64), 4096, 100, 50, 3, 104, 104 * 50)


@given(
    contiguous=st.integers(0, 1 << 20),
    strided=st.integers(0, 1),
    batch=st.integers(0, 1),
    stride=st.integers(-(1 << 45), 1 << 45),
)
def test_strides_that_are_never_followed_may_be_anything(
    contiguous: int, strided: int, batch: int, stride: int
) -> None:
    descriptor = described(contiguous=contiguous, strided=strided, batch=batch, stride=stride, batch_stride=-stride)
    assert all(extent >= 1 for extent in descriptor.extents), "TMA has no empty extents"
    assert all(step > 0 and step % 16 == 0 and step < 1 << 40 for step in descriptor.strides)
    assert descriptor.strides[0] >= contiguous * 2


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"address": 4104}, "a: its first element is at 0x1008.*multiple of 16"),
        ({"address": 0}, "0x0"),
        ({"stride": 101}, "along m are 202 bytes apart.*multiple of 8 elements"),
        ({"stride": 0}, r"along m are 0 bytes apart.*a.expand\(...\).contiguous\(\)$"),
        ({"stride": -104}, "along m are -208 bytes apart"),
        ({"stride": 1 << 39}, r"below 2\^40"),
        ({"batch_stride": 5201}, "along batch are 10402 bytes"),
        ({"contiguous": (1 << 32) + 1}, r"extent k is 4294967297"),
    ],
)
def test_each_broken_rule_is_named(changes: dict[str, int], says: str) -> None:
    with pytest.raises(OperandError, match=says):
        described(**changes)
