"""PyTorch's samples for matrix products, each against the same in float64, forward and backward."""

from __future__ import annotations

import sys
import types
import unittest
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import cache
from importlib.util import find_spec
from typing import Any

import pytest

import gemmill.torch

torch: Any = pytest.importorskip("torch")

OPS = (
    *("mm", "addmm", "bmm", "baddbmm", "addbmm", "matmul", "__rmatmul__", "mv", "addmv", "einsum"),
    *("nn.functional.linear", "nn.functional.bilinear", "linalg.multi_dot"),
)
"""OpInfos whose functions end in products that are taken over, or look as if."""

DTYPES = ("bfloat16", "float16", "float32", "float64")

BOUNDS = {"bfloat16": 2**-7, "float16": 2**-9, "float32": 2**-18, "float64": 2**-40}
"""Distance from float64's that an outcome may have, relative to its largest element: two roundings of it, or so. The
products in float32 have all their bits: tf32 is off."""

_ops = torch.ops.gemmill


def _addmm(c: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    return _ops.addmm(c, a, b, alpha=float(alpha), beta=float(beta))


def _baddbmm(c: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    return _ops.baddbmm(c, a, b, alpha=float(alpha), beta=float(beta))


def _linear(x: Any, weight: Any, bias: Any = None) -> Any:
    rows = x.reshape(-1, x.shape[-1])
    d = _ops.mm(rows, weight.mT) if bias is None else _ops.addmm(bias, rows, weight.mT)
    return d.reshape(*x.shape[:-1], weight.shape[0])


BY_OPERATORS: dict[str, Callable[..., Any]] = {
    "mm": _ops.mm,
    "addmm": _addmm,
    "bmm": _ops.bmm,
    "baddbmm": _baddbmm,
    "nn.functional.linear": _linear,
}
"""What is written with our operators, by the OpInfo whose samples it takes."""


def samples(
    name: str, dtype: Any, device: str, learn: bool
) -> Iterator[tuple[Callable[..., Any], list[Any], dict[str, Any]]]:
    """The function of an OpInfo, and the arguments of each of its samples."""
    (info,) = [x for x in _op_db() if x.name == name and not x.variant_test_name]
    torch.manual_seed(0)
    for sample in info.sample_inputs(device, dtype, requires_grad=learn):
        yield info.op, [sample.input, *sample.args], sample.kwargs


@cache
def _op_db() -> list[Any]:
    if "expecttest" not in sys.modules and not find_spec("expecttest"):  # for cases, not samples
        sys.modules["expecttest"] = types.ModuleType("expecttest")
        sys.modules["expecttest"].TestCase = unittest.TestCase  # type: ignore[attr-defined]
    from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


def is_real(arguments: Any) -> bool:
    """Whether no tensor of the arguments is complex."""
    return not any(x.is_complex() for x in tensors(arguments))


def tensors(given: Any) -> list[Any]:
    """Tensors within arguments, in order."""
    return [x for x in torch.utils._pytree.tree_leaves(given) if isinstance(x, torch.Tensor)]


def _copied(given: Any, dtype: Any) -> Any:
    """Arguments in another dtype, with strides of their own, each a leaf."""

    def one(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or not x.is_floating_point():
            return x
        return x.detach().to(dtype).requires_grad_(x.requires_grad)

    return torch.utils._pytree.tree_map(one, given)


def _outcome(call: Callable[..., Any], arguments: Any, keywords: Any, weigh: Any, learn: bool) -> tuple[Any, list[Any]]:
    """D, and the gradients of what learns, of a weighted sum of it."""
    arguments, keywords = (torch.utils._pytree.tree_map(lambda x: x, y) for y in (arguments, keywords))
    d = call(*arguments, **keywords)
    learning = [x for x in tensors((arguments, keywords)) if x.requires_grad]
    if not (learn and learning and d.requires_grad):
        return d.detach(), []
    weights = weigh(d)
    return d.detach(), [
        x for x in torch.autograd.grad((d * weights).sum(), learning, allow_unused=True) if x is not None
    ]


def check(call: Callable[..., Any], exact: Callable[..., Any], arguments: Any, keywords: Any, context: Any) -> None:
    """A call gives what another gives in float64, and has its gradients: to a rounding, or twice as far away as the
    other gives them in the type of the call, where that is finite."""
    dtype = next(x.dtype for x in tensors(arguments) if x.is_floating_point())

    def weigh(d: Any) -> Any:
        draw = torch.Generator().manual_seed(d.numel())
        return torch.rand(d.shape, generator=draw).to(d.device, torch.bfloat16).to(d.dtype)

    with context:
        d, grads = _outcome(call, _copied(arguments, dtype), _copied(keywords, dtype), weigh, True)
    wanted_d, wanted_grads = _outcome(
        exact, _copied(arguments, torch.float64), _copied(keywords, torch.float64), weigh, True
    )
    assert d.dtype == dtype
    assert d.shape == wanted_d.shape
    assert len(grads) == len(wanted_grads)
    bound = BOUNDS[str(dtype).removeprefix("torch.")]
    for index, (found, wanted) in enumerate(zip([d, *grads], [wanted_d, *wanted_grads], strict=True)):
        if not wanted.numel():
            continue
        largest = max(1.0, float(wanted.abs().max()))
        error, allowed = (found.double() - wanted).abs(), 2 * bound * largest
        if not error.max() <= allowed:  # what is rounded on the way, or too large for the type, is so by PyTorch alone
            plain_d, plain_grads = _outcome(exact, _copied(arguments, dtype), _copied(keywords, dtype), weigh, True)
            plain = [plain_d, *plain_grads][index].double()
            error = error[plain.isfinite()]
            allowed = max(allowed, 2 * float((plain - wanted).abs()[plain.isfinite()].max()))
        assert error.max() <= allowed, (
            f"{error.max()} of {largest} in {[x.shape for x in tensors(arguments)]}, {keywords}"
        )


def check_taken_over(name: str, dtype: Any, device: str) -> None:
    """All samples of an OpInfo, run inside ``enabled()``."""
    seen = 0
    for call, arguments, keywords in samples(name, dtype, device, True):
        if is_real((arguments, keywords)):
            check(call, call, arguments, keywords, gemmill.torch.enabled())
            seen += 1
    assert seen


def check_operators(name: str, dtype: Any, device: str) -> None:
    """All samples of an OpInfo, by our operators."""
    seen = 0
    for exact, arguments, keywords in samples(name, dtype, device, True):
        if is_real((arguments, keywords)) and all(x.dim() > 1 for x in tensors(arguments[:1])):
            check(BY_OPERATORS[name], exact, arguments, keywords, nullcontext())
            seen += 1
    assert seen


def needed_kernels(dtypes: Sequence[str]) -> set[str]:
    """Kernels of all samples on a GPU, forward and backward, taken over and by operators."""
    from benchmarks.pytorch.warming import Needed, without_launches

    names: set[str] = set()
    for dtype in dtypes:
        for name in OPS:
            for call, arguments, keywords in samples(name, getattr(torch, dtype), "cuda", True):
                if not is_real((arguments, keywords)):
                    continue
                with Needed() as needed:
                    _outcome(call, arguments, keywords, torch.ones_like, True)
                names |= needed.names
                if name in BY_OPERATORS and arguments[0].dim() > 1:
                    with without_launches("cuda", names):
                        _outcome(BY_OPERATORS[name], arguments, keywords, torch.ones_like, True)
    return names
