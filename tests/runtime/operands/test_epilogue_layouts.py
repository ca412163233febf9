"""What an epilogue takes at any strides; batches that are one matrix; alpha = 0."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from tests.runtime.operands.test_scales import Array, bytes_of, read

from gemmill.library.epilogues.parse import parse
from gemmill.library.errors import OperandError
from gemmill.runtime.operands.bound_arguments import BoundArgument
from gemmill.runtime.operands.call import GemmCall
from gemmill.runtime.operands.epilogue_arguments import EpilogueArguments
from gemmill.runtime.operands.tensors import TensorView

F16 = {"a_dtype": None, "b_dtype": None}


def call(*batch: int, epilogue: str, b: Any = None, m: int = 64, **operands: Any) -> GemmCall:
    """D = A (..., M, 32) by B (32, 48), of f16."""
    a, out = (Array(*batch, m, columns, dtype="f16") for columns in (32, 48))
    return read(a, b or Array(32, 48, dtype="f16"), out, epilogue=epilogue, **F16, **operands)


def passed(x: GemmCall) -> tuple[str, tuple[int, ...]]:
    """The epilogue that a kernel has, and the strides of the operand that it takes."""
    (argument,) = x.bound.arguments
    return x.problem.epilogue, argument.strides


@pytest.mark.parametrize(
    ("epilogue", "x", "served"),
    [
        ("d = acc + x[n]", Array(48), ("d = acc + x[n]", (0,))),
        ("d = acc + x[n]", Array(48, strides=(2,)), ("d = acc + x[m, n]", (0, 2, 0))),
        ("d = acc + x[n]", Array(48, strides=(0,)), ("d = acc + x", ())),
        ("d = acc + x[n]", Array(3, 48, strides=(4, 0)), ("d = acc + x[batch]", (4,))),
        ("d = acc + x[n]", Array(3, 48, strides=(0, 0)), ("d = acc + x", ())),
        ("d = acc + x[n]", Array(3, 48, strides=(0, 1)), ("d = acc + x[n]", (0,))),
        ("d = acc + x[n]", Array(3, 48, strides=(1, 3)), ("d = acc + x[m, n]", (0, 3, 1))),
        ("d = acc + x[m]", Array(64, strides=(5,)), ("d = acc + x[m, n]", (5, 0, 0))),
        ("d = acc + x[m]", Array(3, 64, strides=(64, 0)), ("d = acc + x[batch]", (64,))),
        ("d = acc + x[m, n]", Array(3, 1, 48, strides=(1, 0, 3)), ("d = acc + x[m, n]", (0, 3, 1))),
    ],
)
def test_vectors_of_any_strides(epilogue: str, x: Array, served: tuple[str, tuple[int, ...]]) -> None:
    b = Array(3, 32, 48, dtype="f16")  # so that there is a batch
    assert passed(call(3, epilogue=epilogue, x=x, b=b)) == served


def test_vectors_of_a_d_that_is_one() -> None:
    column = call(3, epilogue="d = acc + x[n]", x=Array(48, strides=(2,)), m=1)
    assert passed(column) == ("d = acc + x[m, n]", (0, 2, 0))
    of_rows = read(
        *(Array(3, 64, 32, dtype="f16"), Array(32, dtype="f16"), Array(3, 64, dtype="f16")),
        **F16,
        epilogue="d = acc + x[m]",
        x=Array(64, strides=(2,)),
    )
    assert passed(of_rows) == ("d = acc + x[m, n]", (2, 0, 0))


def test_m_decides_no_layout_of_what_does_not_depend_on_it() -> None:
    with pytest.raises(OperandError, match="x has stride 5; it must be contiguous"):
        _ = call(epilogue="d = acc + x[m]", x=Array(64, strides=(5,)), batch_invariant=True).problem


@pytest.mark.parametrize(
    ("epilogue", "operands", "rows"),
    [
        ("d = acc * s + x[n]", {"s": 1.0, "x": Array(48)}, 192),
        ("d = acc + x[n]", {"x": Array(1, 48)}, 192),
        ("d = acc + x[n]", {"x": Array(3, 48)}, 64),
        ("d = acc + x[m]", {"x": Array(3, 64)}, 192),
        ("d = acc + x[m]", {"x": Array(3, 64, strides=(65, 1))}, 64),
        ("d = acc + x[m]", {"x": Array(64)}, 64),
        ("d = acc + x[m, n]", {"x": Array(3, 64, 48)}, 192),
        ("d = acc + x[m, n]", {"x": Array(48)}, 192),
        ("d = acc + x[m, n]", {"x": Array(64, 48)}, 64),
        ("d = acc + x[batch]", {"x": Array(3)}, 64),
        ("d = acc; aux = acc", {"aux": Array(3, 64, 48)}, 192),
        ("d = acc; top[m] = max(acc)", {"top": Array(3, 64)}, 192),
        ("d = acc; top[n] = max(acc)", {"top": Array(48)}, 192),
        ("d = acc; top[n] = max(acc)", {"top": Array(3, 48)}, 64),
    ],
)
def test_a_batch_that_shares_b_is_one_matrix_where_the_epilogue_lies_so(
    epilogue: str, operands: dict[str, Any], rows: int
) -> None:
    problem = call(3, epilogue=epilogue, **operands).problem
    assert (problem.m, problem.batch) == (rows, 192 // rows)


@pytest.mark.parametrize(
    ("a_scale", "b_scale", "rows"),
    [
        (Array(3, 64, 4), Array(4, 2), 192),
        (Array(3, 64, 4, strides=(64, 1, 192)), Array(4, 2), 192),  # one block of K after the other
        (Array(3, 64, 4, strides=(256, 1, 64)), Array(4, 2), 64),
        (Array(64, 4), Array(4, 2), 64),
        (Array(3, 64, 4), Array(3, 4, 2), 64),
        (Array(3, 64, 1), Array(1, 256), 192),
        (Array(64, 1), Array(1, 256), 64),
    ],
)
def test_scaled_batches_that_share_b_are_one_matrix(a_scale: Array, b_scale: Array, rows: int) -> None:
    found = read(bytes_of(3, 64, 512), out=Array(3, 64, 256, dtype="f16"), a_scale=a_scale, b_scale=b_scale)
    assert (found.problem.m, found.problem.batch) == (rows, 192 // rows)
    if rows == 192 and (scale := found.bound.a_scale) is not None:
        assert (scale.stride, scale.batch_stride) == (4 if scale.k_stride == 1 else 1, 0)


@pytest.mark.parametrize(
    ("given", "k"),
    [
        ({"alpha": 0}, 0),
        ({"alpha": -0.0, "c": Array(64, 256, dtype="f16")}, 0),
        ({"alpha": 0, "a_scale": Array(64, 4), "b_scale": Array(4, 2)}, 0),
        ({"alpha": 0, "a_scale": Array(64, 1)}, 0),
        ({"a_scale": 0.0}, 0),
        ({"alpha": 0, "epilogue": "d = relu(acc * alpha)"}, 0),
        ({"alpha": 0, "epilogue": "d = acc + alpha * acc"}, 512),
        ({"alpha": 0, "epilogue": "d = silu(alpha * gate) * (up * alpha)", "out": Array(64, 128, dtype="f16")}, 0),
        ({"alpha": 0, "epilogue": "d = silu(alpha * gate) * up", "out": Array(64, 128, dtype="f16")}, 512),
        ({"alpha": 1e-30}, 512),
    ],
)
def test_alpha_of_0_reads_no_a_and_b(given: dict[str, Any], k: int) -> None:
    found = read(**given).problem
    assert (found.k, found.a_scale) == (k, "none")


def test_alpha_of_0_upconverts_nothing() -> None:
    scale = Array(4, 256, dtype="f16")
    found = read(
        Array(64, 512, dtype="f16"),
        bytes_of(256, 256, strides=(1, 256)),
        alpha=0,
        a_dtype=None,
        b_dtype="s4",
        b_scale=scale,
    )
    assert (found.problem.k, found.problem.a_dtype, found.problem.b_dtype) == (0, "f16", "f16")


def test_alpha_of_0_hides_no_mistake() -> None:
    with pytest.raises(OperandError, match="a has K = 512 columns, b has K = 256 rows"):
        _ = read(b=bytes_of(256, 256), alpha=0).problem


Array32 = np.ndarray[Any, np.dtype[np.float32]]


def view_of(array: Array32) -> TensorView:
    steps = tuple(step // 4 for step in array.strides)
    return TensorView(array.ctypes.data, array.shape, steps, "f32", 0, owner=array)


@st.composite
def laid_out(draw: st.DrawFn, shape: tuple[int, ...]) -> Array32:
    """Numbers of a shape or one that broadcasts to it, but along the last extent: at strides, expanded, permuted."""
    own = [extent if draw(st.booleans()) else 1 for extent in shape[:-1]] + [*shape[-1:]]
    own = own[draw(st.integers(0, max(0, len(own) - 1))) if all(e == 1 for e in own[:-1]) else 0 :]
    order = draw(st.permutations([*range(len(own))]))
    memory: Array32 = np.random.default_rng(0).integers(-4, 5, [2 * own[i] for i in order]).astype(np.float32)
    if not own:
        return np.array(memory)
    array = memory[tuple(slice(None, None, 2) if draw(st.booleans()) else slice(own[i]) for i in order)]
    array = array.transpose(np.argsort(order))
    return np.broadcast_to(array[..., :1], own) if draw(st.booleans()) else array


def loaded(argument: BoundArgument, kind: str, extents: tuple[int, int, int], memory: Array32) -> Array32:
    """What a kernel reads for each element of a batch of matrices."""
    steps: tuple[int, ...] = {
        "scalar": (0, 0, 0),
        "row": (*argument.strides, 1, 0),
        "column": (*argument.strides, 0, 1),
        "batch": (*argument.strides, 0, 0),
    }.get(kind) or (argument.strides[2], *argument.strides[:2])
    assert argument.address == memory.ctypes.data
    return np.lib.stride_tricks.as_strided(memory, extents, [4 * step for step in steps])


@given(st.data())
def test_what_a_kernel_is_told_is_what_the_call_says(data: st.DataObject) -> None:
    batch = data.draw(st.sampled_from([(), (3,), (2, 3)]))
    m, n = data.draw(st.sampled_from([1, 4])), data.draw(st.sampled_from([1, 5]))
    shares_b = data.draw(st.booleans())
    shapes = {"[m]": (*batch, m), "[n]": (*batch, n), "[m, n]": (*batch, m, n), "[batch]": batch, "": ()}
    index = {name: data.draw(st.sampled_from([*shapes])) for name in ("x", "y")}
    arrays = {name: data.draw(laid_out(shapes[index[name]])) for name in index}
    a, b, out = (view_of(np.zeros(shape, np.float32)) for shape in ((*batch, m, 2), (*batch, 2, n), (*batch, m, n)))
    b = replace(b, shape=b.shape[-2:], strides=b.strides[-2:]) if shares_b else b
    text = f"d = acc * x{index['x']} + y{index['y']}"
    passed = EpilogueArguments(parse(text), {name: view_of(x) for name, x in arrays.items()}, text)
    try:
        gemm = GemmCall({"a": a, "b": b, "out": out}, arguments=passed).bound
    except OperandError as error:
        if "must collapse to one stride" not in str(error):
            raise
        reject()
    p = gemm.problem
    kinds = {o.name: o.kind for o in parse(p.epilogue).operands}
    read = {x.name: loaded(x, kinds[x.name], (p.batch, p.m, p.n), arrays[x.name]) for x in gemm.arguments}
    ends = {"[m]": (..., None), "[n]": (..., None, slice(None)), "[batch]": (..., None, None)}
    for name, array in arrays.items():
        wanted = array[ends[index[name]]] if index[name] in ends else array
        assert np.array_equal(read[name].reshape(*batch, m, n), np.broadcast_to(wanted, (*batch, m, n)))
