"""Calls that TMA cannot serve: any strides, misaligned views, broadcast C, every pair of types, through matmul."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from tests.gpu.harness import torch

import gemmill

pytestmark = pytest.mark.gpu

FLOATS = ("float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
INTEGERS = ("int8", "uint8")


def integers(*shape: int, dtype: str = "bfloat16") -> Any:
    typed = getattr(torch, dtype)
    return torch.randint(-2 if typed.is_signed else 0, 3, shape, device="cuda").to(typed)


def strided(tensor: Any, *steps: int, offset: int = 0) -> Any:
    """The same values in memory with gaps: neighbours along each extent are ``steps`` times as far apart."""
    shape = [extent * step for extent, step in zip(tensor.shape, steps, strict=True)]
    memory = torch.zeros(torch.Size(shape).numel() + offset, dtype=tensor.dtype, device="cuda")
    view = memory[offset:].view(shape)[tuple(slice(None, None, step) for step in steps)]
    return view.copy_(tensor)


def exact(a: Any, b: Any, c: Any = None) -> Any:
    return a.double() @ b.double() + (0 if c is None else c.double())


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "odd rows": lambda x: strided(x, 1, 1, offset=1),
    "every second column": lambda x: strided(x, 1, 2),
    "every third row of every second column": lambda x: strided(x, 3, 2, offset=3),
    "columns first, odd": lambda x: strided(x.T.contiguous(), 1, 1, offset=1).T,
    "rows reversed": lambda x: Reversed(x),
    "one row for all": lambda x: x[:1].expand(x.shape),
    "one column for all": lambda x: x[:, :1].expand(x.shape),
}


class Reversed:
    """A matrix read from its last row to its first, which PyTorch cannot describe."""

    def __init__(self, tensor: Any) -> None:
        self._flipped = tensor.flip(0).contiguous()
        self.shape = tensor.shape

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        whole = self._flipped.view(torch.int16).__cuda_array_interface__
        rows, columns = self.shape
        return {
            "shape": (rows, columns),
            "typestr": "<f2",
            "data": (whole["data"][0] + (rows - 1) * columns * 2, False),
            "strides": (-columns * 2, 2),
            "version": 3,
        }

    def double(self) -> Any:
        return self._flipped.flip(0).double()


@pytest.mark.parametrize(("left", "right"), list(itertools.product(LAYOUTS, LAYOUTS)))
def test_any_strides_of_a_and_b(left: str, right: str) -> None:
    a, b = LAYOUTS[left](integers(75, 91, dtype="float16")), LAYOUTS[right](integers(91, 53, dtype="float16"))
    out = torch.empty(75, 53, device="cuda", dtype=torch.float16)
    assert torch.equal(gemmill.matmul(a, b, out=out).double(), exact(a, b))


@pytest.mark.parametrize("layout", ["odd rows", "every second column", "columns first, odd"])
@pytest.mark.parametrize("c", ["none", "row", "column", "one", "every second column"])
def test_any_strides_of_c_and_d(layout: str, c: str) -> None:
    a, b = integers(70, 64), integers(64, 90)
    out = LAYOUTS[layout](torch.zeros(70, 90, device="cuda", dtype=a.dtype))
    shapes = {"row": (90,), "column": (70, 1), "one": (1, 1), "every second column": (70, 90)}
    added = integers(*shapes[c]) if c in shapes else None
    if c == "every second column":
        added = strided(added, 1, 2)
    gemmill.matmul(a, b, out=out, c=added)
    assert torch.equal(out.double(), exact(a, b, added))


@pytest.mark.parametrize(("a_dtype", "b_dtype"), list(itertools.product(FLOATS + INTEGERS, repeat=2)))
def test_every_pair_of_types(a_dtype: str, b_dtype: str) -> None:
    a, b = strided(integers(33, 40, dtype=a_dtype), 1, 2), integers(40, 50, dtype=b_dtype)
    for accumulator in ("f32", *(("s32",) if {a_dtype, b_dtype} <= set(INTEGERS) else ())):
        result = gemmill.matmul(a, b, out_dtype="f32", accumulator=accumulator)
        assert torch.equal(result.double(), exact(a, b))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int8", "uint8", "float8_e4m3fn"])
@pytest.mark.parametrize("size", [(1, 1, 1), (1, 77, 33), (77, 1, 33), (129, 65, 1), (257, 131, 129)])
def test_odd_sizes_of_every_type(dtype: str, size: tuple[int, int, int]) -> None:
    m, n, k = size
    a, b = integers(m, k, dtype=dtype), integers(k, n, dtype=dtype)
    assert torch.equal(gemmill.matmul(a, b).double(), exact(a, b))


def test_sums_are_kept_at_least_as_precisely_as_asked() -> None:
    a, b = strided(integers(33, 40, dtype="float16"), 1, 2), integers(40, 50, dtype="float16")
    assert torch.equal(gemmill.matmul(a, b, accumulator="f16").double(), exact(a, b))
    narrow = a.to(torch.float8_e4m3fn), b.to(torch.float8_e5m2)
    wanted = exact(*narrow)
    assert torch.equal(gemmill.matmul(strided(narrow[0], 1, 2), narrow[1], fast_accumulation=False).double(), wanted)


def test_f32_is_not_tf32() -> None:
    a, b = torch.randn(200, 300, device="cuda"), torch.randn(300, 100, device="cuda")
    wanted = a.double() @ b.double()
    assert (gemmill.matmul(a, b).double() - wanted).abs().max() < 3e-4
    assert (gemmill.matmul(a, b[:, :99], tf32=True).double() - wanted[:, :99]).abs().max() < 0.2


def test_f64_keeps_every_bit() -> None:
    a = torch.randint(-(1 << 24), 1 << 24, (130, 70), device="cuda").double()
    b = torch.randint(-4, 5, (70, 66), device="cuda").double()
    c = torch.randint(-(1 << 40), 1 << 40, (130, 66), device="cuda").double()
    wanted = 3 * (a.cpu().long() @ b.cpu().long()) + c.cpu().long()
    assert torch.equal(gemmill.matmul(a, b, c=c, alpha=3.0).cpu().long(), wanted)


@pytest.mark.parametrize("n", [1203, 50257])
def test_an_odd_vocabulary_goes_to_wgmma(n: int) -> None:
    a, b = integers(512, 256), integers(n, 256).T
    with gemmill.plan(a, b) as launch:
        launch()
        assert launch.kernel is not None
        assert launch.kernel.family == "wgmma"
        assert torch.equal(launch.out.double(), exact(a, b))
        other = torch.empty(512 * n + 1, device="cuda", dtype=a.dtype)[1:].view(512, n)
        launch.rebind(out=other)
        launch()
        assert torch.equal(other.double(), exact(a, b))


def test_same_signature_other_alignment() -> None:
    memory = integers(2, 8192)
    for first, second in ((0, 1), (1, 0), (1, 1), (0, 0)):
        a, b = memory[0, first:][: 32 * 64].view(32, 64), memory[1, second:][: 64 * 32].view(64, 32)
        assert torch.equal(gemmill.matmul(a, b).double(), exact(a, b))


def test_a_plan_is_rebound_to_tensors_as_aligned_as_its_own() -> None:
    memory = integers(2, 8192)
    a, other = memory[0, 1:][: 32 * 64].view(32, 64), memory[1, 3:][: 32 * 64].view(32, 64)
    b = integers(64, 32)
    with gemmill.plan(a, b) as launch:
        launch()
        assert torch.equal(launch.out.double(), exact(a, b))
        launch.rebind(a=other)
        launch()
        assert torch.equal(launch.out.double(), exact(other, b))
