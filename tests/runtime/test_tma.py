"""TMA descriptors up to the driver call: what is passed, and which rule is named where one is broken."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmill.library.errors import OperandError
from gemmill.library.launch import TmaBox
from gemmill.runtime.tma import describe

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
