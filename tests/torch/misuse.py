"""What should not be done with products, by the name of what is wrong: a way of multiplying either refuses it or gives
what PyTorch gives, and in either case the next call is right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

import gemmill  # noqa: E402

Multiply = Callable[..., Any]
"""Of A and B, or with ``out``."""

REFUSALS = (gemmill.GemmillError, RuntimeError, TypeError, ValueError, AttributeError, AssertionError)
"""What may be raised: what a program can catch and go on. PyTorch asserts that tensors are fake where they should."""


def operands(device: str, *, m: int = 64, k: int = 64, n: int = 64) -> tuple[Any, Any]:
    """Small integers in bf16, so that all sums are exact."""
    draw = torch.Generator().manual_seed(m + k + n)
    a, b = (torch.randint(-2, 3, shape, generator=draw).to(device, torch.bfloat16) for shape in ((m, k), (k, n)))
    return a, b


def check_alive(multiply: Multiply, device: str) -> None:
    """A sound call gives what it should: of operands new to it, and of ones it knows."""
    for m in (64, 80):
        a, b = operands(device, m=m)
        assert torch.equal(multiply(a, b).double(), a.double() @ b.double())


class Wrapper(torch.Tensor):  # type: ignore[misc]
    """A tensor without memory that stands for another."""

    @staticmethod
    def __new__(cls, inner: Any) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = torch.utils._pytree.tree_map(lambda x: x.inner if isinstance(x, Wrapper) else x, (args, kwargs))
        return func(*args, **(kwargs or {}))


def _no_storage(multiply: Multiply, a: Any, b: Any) -> Any:
    a.untyped_storage().resize_(0)  # as FSDP leaves parameters between uses
    multiply(a, b)
    pytest.fail("what a freed tensor holds was multiplied")


def _fake(multiply: Multiply, a: Any, b: Any) -> Any:
    with FakeTensorMode() as mode:
        made = multiply(mode.from_tensor(a), mode.from_tensor(b))
    if not isinstance(made, torch._subclasses.FakeTensor):
        pytest.fail("of fake tensors came a real one")


def _fake_and_real(multiply: Multiply, a: Any, b: Any) -> Any:
    multiply(FakeTensorMode().from_tensor(a), b)


def _meta(multiply: Multiply, a: Any, b: Any) -> Any:
    if not multiply(a.to("meta"), b.to("meta")).is_meta:
        pytest.fail("of meta tensors came a real one")


def _functional(multiply: Multiply, a: Any, b: Any) -> Any:
    made = multiply(torch._to_functional_tensor(a), torch._to_functional_tensor(b))
    return torch._from_functional_tensor(made), a @ b


def _leaked(multiply: Multiply, a: Any, b: Any) -> Any:
    kept: list[Any] = []

    def leak(x: Any) -> Any:
        kept.append(x)
        return x

    torch.vmap(leak)(torch.stack([a, a]))
    multiply(kept[0], b)


def _overlapping(multiply: Multiply, a: Any, b: Any) -> Any:
    wanted = a @ b
    return multiply(a, b, out=a), wanted


def _partly_overlapping(multiply: Multiply, a: Any, b: Any) -> Any:
    memory = torch.cat([a, a])
    wanted = memory[:64] @ b
    return multiply(memory[:64], b, out=memory[32:96]), wanted


def _out_of_one_column(multiply: Multiply, a: Any, b: Any) -> Any:
    multiply(a, b, out=torch.zeros(64, 1, device=a.device, dtype=a.dtype).expand(64, 64))


def _wrong_out(multiply: Multiply, a: Any, b: Any) -> Any:
    multiply(a, b, out=torch.zeros(8, 8, device=a.device, dtype=torch.int32))


def _learning_out(multiply: Multiply, a: Any, b: Any) -> Any:
    multiply(a, b, out=torch.zeros_like(a).requires_grad_())


def _inference(multiply: Multiply, a: Any, b: Any) -> Any:
    with torch.inference_mode():
        fixed = b.clone()
    multiply(a.requires_grad_(), fixed).sum().backward()


def _saved_and_changed(multiply: Multiply, a: Any, b: Any) -> Any:
    made = multiply(a.requires_grad_(), b)
    b.add_(1)
    made.sum().backward()
    pytest.fail("the gradient is of other values")


def _backward_twice(multiply: Multiply, a: Any, b: Any) -> Any:
    made = multiply(a.requires_grad_(), b).sum()
    made.backward()
    made.backward()


def _in_a_broken_compile(multiply: Multiply, a: Any, b: Any) -> Any:
    torch.compiler.reset()
    torch.compile(lambda a, b: multiply(a, b[:32]), backend="aot_eager", fullgraph=True)(a, b)


def _too_large(multiply: Multiply, a: Any, b: Any) -> Any:
    multiply(a[:, :1].expand(1 << 20, 1), b[:1, :1].expand(1, 1 << 26))  # a D of 128 TB


def _negated(multiply: Multiply, a: Any, b: Any) -> Any:
    return multiply(torch._neg_view(a), b), -a @ b


def _quantised(multiply: Multiply, a: Any, b: Any) -> Any:
    multiply(torch.quantize_per_tensor(a.float(), 1.0, 0, torch.qint8), b)


MISUSES: Mapping[str, Callable[[Multiply, Any, Any], Any]] = {
    "storage that is freed": _no_storage,
    "fake tensors": _fake,
    "a fake tensor outside its mode": _fake_and_real,
    "meta tensors": _meta,
    "functional tensors": _functional,
    "a tensor of a vmap that is over": _leaked,
    "a wrapper around tensors": lambda multiply, a, b: (multiply(Wrapper(a), b), a @ b),
    "A elsewhere": lambda multiply, a, b: multiply(a.to("cpu" if a.is_cuda else "meta"), b),
    "out is A": _overlapping,
    "out overlaps A": _partly_overlapping,
    "out has one column": _out_of_one_column,
    "out of another shape and type": _wrong_out,
    "out that learns": _learning_out,
    "other K": lambda multiply, a, b: multiply(a, b[:32]),
    "other type": lambda multiply, a, b: multiply(a, b.to(torch.float64)),
    "complex numbers": lambda multiply, a, b: multiply(a.to(torch.complex64), b.to(torch.complex64)),
    "booleans": lambda multiply, a, b: multiply(a > 0, b > 0),
    "64-bit integers": lambda multiply, a, b: multiply(a.long(), b.long()),
    "a sparse tensor": lambda multiply, a, b: (multiply(a.to_sparse(), b), a @ b),
    "a nested tensor": lambda multiply, a, b: multiply(torch.nested.nested_tensor([a, a[:8]]), b),
    "a quantised tensor": _quantised,
    "no tensor": lambda multiply, a, b: multiply(a, 3.0),
    "nothing": lambda multiply, a, b: multiply(a, None),
    "a scalar": lambda multiply, a, b: multiply(a[0, 0], b),
    "a parameter that has no data yet": lambda multiply, a, b: multiply(torch.nn.UninitializedParameter(), b),
    "a tensor that is made for inference": _inference,
    "saved operands that change": _saved_and_changed,
    "a backward pass too many": _backward_twice,
    "a compiled product of other K": _in_a_broken_compile,
    "a D that no memory holds": _too_large,
    "a negated view": _negated,
}
"""Each takes a way of multiplying and sound operands, and returns nothing, or what it found and what it should."""


def check_misuse(name: str, multiply: Multiply, device: str) -> None:
    """What is misused is refused or right, and what follows is right."""
    check_alive(multiply, device)
    made = None
    with suppress(*REFUSALS):
        made = MISUSES[name](multiply, *operands(device))
    if isinstance(made, tuple):
        found, wanted = (x.detach().double() for x in made)
        torch.testing.assert_close(found, wanted)
    check_alive(multiply, device)
