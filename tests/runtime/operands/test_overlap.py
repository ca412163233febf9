"""What a call writes lies nowhere else: outputs beside operands, in place, packed, and of tensors without memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmill.library.dtypes import DTypeName
from gemmill.library.epilogues.parse import parse
from gemmill.library.errors import OperandError
from gemmill.runtime.operands.call import GemmCall
from gemmill.runtime.operands.epilogue_arguments import NO_ARGUMENTS, EpilogueArguments
from gemmill.runtime.operands.overlap import MemoryCheck
from gemmill.runtime.operands.tensors import TensorView

BEGIN = 1 << 40


def at(byte: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: DTypeName = "bf16") -> TensorView:
    return TensorView(BEGIN + byte, shape, strides, dtype, 0)


def check(tensors: dict[str, TensorView], arguments: EpilogueArguments = NO_ARGUMENTS) -> None:
    far = {name: at((i + 1) << 30, (64, 64), (64, 1)) for i, name in enumerate(("a", "b", "out"))}
    call = GemmCall({**far, **tensors}, arguments=arguments)
    MemoryCheck.of(call)(call.addresses)


OUT = at(0, (64, 64), (64, 1))


@pytest.mark.parametrize("name", ["a", "b", "c", "a_scale", "offsets"])
def test_out_shares_no_byte_with_what_is_read(name: str) -> None:
    check({"out": OUT, name: at(64 * 64 * 2, (64, 64), (64, 1))})
    with pytest.raises(OperandError, match=rf"out and {name} overlap in memory .* out is written while {name} is read"):
        check({"out": OUT, name: at(64 * 64 * 2 - 2, (64, 64), (64, 1))})


def test_out_may_be_columns_between_those_of_an_operand() -> None:
    wide = (192, 1)
    check({"a": at(0, (64, 64), wide), "out": at(128, (64, 64), wide), "b": at(256, (64, 64), wide)})
    with pytest.raises(OperandError, match="out and b overlap in memory"):
        check({"a": at(0, (64, 64), wide), "out": at(130, (64, 64), wide), "b": at(256, (64, 64), wide)})


def test_only_c_and_matrices_of_the_epilogue_may_be_out_and_only_as_it_lies() -> None:
    check({"out": OUT, "c": OUT})
    adds = EpilogueArguments(parse("d = acc + r[m, n] * v[n]"), {"r": OUT, "v": at(1 << 20, (64,), (1,))}, "")
    check({"out": OUT}, adds)
    for other in (replace(OUT, strides=(1, 64)), replace(OUT, dtype="f16"), replace(OUT, strides=(0, 1))):
        with pytest.raises(OperandError, match="out and c overlap in memory"):
            check({"out": OUT, "c": other})
    with pytest.raises(OperandError, match="out and v overlap in memory"):
        check({"out": OUT}, adds._replace(values={"r": OUT, "v": at(0, (64,), (1,))}))
    with pytest.raises(OperandError, match="out and a overlap in memory"):
        check({"out": OUT, "a": OUT})


def test_two_elements_of_four_bits_lie_in_a_byte() -> None:
    weights = at(64 * 64 * 2, (64, 128), (128, 1), "u4")
    check({"out": OUT, "a": weights})
    check({"out": replace(OUT, ptr=weights.ptr + 64 * 64), "a": weights})
    with pytest.raises(OperandError, match="overlap in memory"):
        check({"out": replace(OUT, ptr=weights.ptr + 64 * 64 - 1), "a": weights})


@pytest.mark.parametrize("name", ["a", "b", "c", "out"])
def test_a_tensor_with_elements_has_an_address(name: str) -> None:
    with pytest.raises(OperandError, match=f"{name} has no memory: .* its storage was freed"):
        check({name: TensorView(0, (64, 64), (64, 1), "bf16", 0)})
    check({"c": TensorView(0, (0, 64), (64, 1), "bf16", 0)})


@given(st.data())
def test_the_verdict_is_that_of_a_set_of_bytes(data: Any) -> None:
    def drawn(name: str) -> TensorView:
        dtype: DTypeName = data.draw(st.sampled_from(["s8", "bf16", "f32"]), name)
        shape = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 4)), name)
        strides = data.draw(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), name)
        return at(data.draw(st.integers(0, 60), name), shape, strides, dtype)

    def bytes_of(x: TensorView) -> set[int]:
        size = {"s8": 1, "bf16": 2, "f32": 4}[x.dtype]
        corners = (
            x.ptr + size * (i * x.strides[0] + j * x.strides[1]) for i in range(x.shape[0]) for j in range(x.shape[1])
        )
        return {corner + byte for corner in corners for byte in range(size)}

    out, b = drawn("out"), drawn("b")
    if bytes_of(out) & bytes_of(b):
        with pytest.raises(OperandError, match="out and b overlap in memory"):
            check({"out": out, "b": b})
    else:
        check({"out": out, "b": b})
