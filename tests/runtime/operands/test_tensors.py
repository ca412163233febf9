"""Tensors of other libraries, read without a GPU: the exporters here are real DLPack and CUDA array interface data."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from tests.cases.exporter import CPU, FLOAT, INT, Exporter

from gemmill.library.errors import OperandError
from gemmill.runtime.operands.tensors import from_cuda_array_interface, view


@pytest.mark.parametrize("version", [None, (1, 0), (1, 1)])
def test_dlpack_gives_address_shape_strides_and_device(version: tuple[int, int] | None) -> None:
    seen = view(Exporter((4, 8), (32, 1), offset=64, version=version), "a")
    assert (seen.ptr, seen.shape, seen.strides) == (0x7F0000000000 + 64, (4, 8), (32, 1))
    assert (seen.dtype, seen.device, seen.writable) == ("bf16", 3, True)


def test_dlpack_without_strides_is_row_major() -> None:
    assert view(Exporter((2, 3, 5)), "a").strides == (15, 5, 1)


@pytest.mark.parametrize(("given", "told"), [(0, 1), (2, 2), (0x5500, 0x5500)])
def test_dlpack_producers_are_told_the_stream(given: int, told: int) -> None:
    exporter = Exporter()
    view(exporter, "a", given)
    assert exporter.streams[-1] == told, "DLPack writes the legacy default stream as 1; 0 is not allowed"


def test_view_keeps_the_tensor_alive() -> None:
    exporter = Exporter()
    before = sys.getrefcount(exporter)
    seen = view(exporter, "a")
    assert sys.getrefcount(exporter) > before
    del seen
    assert sys.getrefcount(exporter) == before


def test_read_only_dlpack_is_not_writable() -> None:
    assert not view(Exporter(flags=1), "a").writable


@pytest.mark.parametrize(
    ("exporter", "says"),
    [
        (Exporter(code=FLOAT, bits=128), "has dtype float128; supported dtypes are .*: convert it first"),
        (Exporter(code=INT, bits=16), "has dtype int16"),
        (Exporter(lanes=4), "in vectors of 4"),
        (Exporter(version=(2, 0)), "DLPack 2.0"),
        (Exporter(device=CPU), "it must be in GPU memory"),
        (np.zeros((4, 4), np.float16), "it must be in GPU memory"),
        ([[1.0]], r"builtins\.list"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(exporter: object, says: str) -> None:
    with pytest.raises(OperandError, match=rf"^weights .*{says}|^weights: .*{says}"):
        view(exporter, "weights")


def interface(**changes: Any) -> dict[str, Any]:
    return {"shape": (4, 8), "typestr": "<f2", "data": (4096, False), "strides": None, "version": 3} | changes


def test_cuda_array_interface_strides_are_bytes() -> None:
    seen = from_cuda_array_interface(interface(strides=(64, 2)), "a", 1, None)
    assert (seen.ptr, seen.shape, seen.strides, seen.dtype, seen.device) == (4096, (4, 8), (32, 1), "f16", 1)
    assert from_cuda_array_interface(interface(), "a", 1, None).strides == (8, 1)
    assert not from_cuda_array_interface(interface(data=(4096, True)), "a", 1, None).writable


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"typestr": "<c32"}, "<c32"),
        ({"strides": (63, 2)}, "63"),
        ({"mask": object()}, "masked"),
        ({"typestr": "|V2"}, "bf16"),
    ],
)
def test_cuda_array_interface_refusals(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(OperandError, match=says):
        from_cuda_array_interface(interface(**changes), "a", 0, None)


def test_layouts_differ_only_where_strides_are_followed() -> None:
    base = view(Exporter((1, 8), (8, 1)), "a")
    assert base.same_layout(view(Exporter((1, 8), (999, 1), offset=16), "a"))
    assert not base.same_layout(view(Exporter((1, 8), (8, 2)), "a"))
    assert not base.same_layout(view(Exporter((1, 8), (8, 1), code=FLOAT), "a"))
