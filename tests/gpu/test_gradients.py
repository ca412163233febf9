"""Gradients, transforms, autocast and modes on a GPU: eager calls of ``gemmill.matmul``, warm ones too."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

from tests.torch.cases import wide  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import gemmill.torch  # noqa: E402
from gemmill import grouped_matmul, matmul  # noqa: E402


def small(*shape: int, seed: int = 0) -> Any:
    """Values of bf16 whose products of 64 are about 1."""
    return (wide(*shape, seed=seed) * 0.0625).cuda()


@functools.cache
def ends(*values: int) -> Any:
    return torch.tensor(values, dtype=torch.int32, device="cuda")


@functools.cache
def weights() -> Any:
    return wide(64, 128, dtype=torch.int8).cuda().mT


ROWS, ALONG_K, COUNTS = (32, 32, 96), (64, 64, 128), (16, 64)
F = torch.nn.functional


def of_groups(a: Any, b: Any) -> Any:
    """Groups of rows, ROWS, by PyTorch."""
    return torch.cat([a[:32] @ b[0], a[32:96] @ b[2], 0 * a[96:] @ b[2]])


def along_k(a: Any, b: Any) -> Any:
    return torch.stack([a[:, :64] @ b[:64], 0 * a[:, :1] @ b[:1], a[:, 64:] @ b[64:]])


def used(d: Any) -> Any:
    """Rows of slots that are, COUNTS; others are not written."""
    return torch.cat([d[0, :16], d[1]])


Gradient = tuple[Callable[..., Any], Callable[..., Any], tuple[tuple[int, ...], ...]]
GRADIENTS: dict[str, Gradient] = {
    "a product": (matmul, torch.matmul, ((128, 64), (64, 128))),
    "a layer": (
        lambda a, b, c: matmul(a, b.mT, c=c),
        lambda a, b, c: F.linear(a, b, c),
        ((128, 64), (128, 64), (128,)),
    ),
    "a batch": (matmul, torch.matmul, ((2, 64, 64), (64, 128))),
    "scales": (
        lambda a, b, x, y: matmul(a, b, a_scale=x, b_scale=y),
        lambda a, b, x, y: a @ b * x * y,
        ((128, 64), (64, 128), (128, 1), (128,)),
    ),
    "narrow weights": (lambda a: matmul(a, weights()), lambda a: a @ weights().to(a.dtype), ((64, 128),)),
    "groups of rows": (
        lambda a, b: grouped_matmul(a, b, ends(*ROWS))[:96],
        lambda a, b: of_groups(a, b)[:96],
        ((128, 64), (3, 64, 128)),
    ),
    "groups along K": (
        lambda a, b: grouped_matmul(a.mT, b, ends(*ALONG_K)),
        lambda a, b: along_k(a.mT, b),
        ((128, 64), (128, 64)),
    ),
    "slots": (
        lambda a, b: used(grouped_matmul(a, b, counts=ends(*COUNTS))),
        lambda a, b: used(a @ b),
        ((2, 64, 64), (2, 64, 128)),
    ),
    "an epilogue": (
        lambda a, b, x: matmul(a, b, epilogue="d = gelu(acc + x[n])", x=x),
        lambda a, b, x: F.gelu(a @ b + x),
        ((128, 64), (64, 128), (128,)),
    ),
    "pairs": (
        lambda a, b: matmul(a, b, epilogue="d = silu(gate) * up"),
        lambda a, b: F.silu((a @ b)[:, 0::2]) * (a @ b)[:, 1::2],
        ((128, 64), (64, 128)),
    ),
    "an epilogue of groups": (
        lambda a, b, x: grouped_matmul(a, b, ends(*ROWS), epilogue="d = silu(acc) * x[n]", x=x)[:96],
        lambda a, b, x: (F.silu(of_groups(a, b)) * torch.cat([x[:1].expand(32, -1), x[2:].expand(96, -1)]))[:96],
        ((128, 64), (3, 64, 128), (3, 128)),
    ),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_of_eager_calls(name: str) -> None:
    """After calls without gradients, which are recognised from then on, and before others."""
    function, plain, shapes = GRADIENTS[name]
    tensors = [small(*shape, seed=i) for i, shape in enumerate(shapes)]
    for _ in range(3):
        function(*tensors)
    mine = [x.clone().requires_grad_() for x in tensors]
    theirs = [x.float().requires_grad_() for x in tensors]
    wanted = plain(*theirs)
    wanted.square().sum().backward()
    for _ in range(3):  # from the second time on recognised as calls whose gradient is recorded
        d = function(*mine)
        torch.testing.assert_close(d.float(), wanted, rtol=2**-6, atol=2**-6)
        grads = torch.autograd.grad(d.float().square().sum(), mine)
        for grad, y in zip(grads, theirs, strict=True):
            scale = y.grad.abs().max()
            torch.testing.assert_close(grad.float() / scale, y.grad / scale, rtol=2**-5, atol=2**-6)
    assert function(*tensors).grad_fn is None
    with torch.no_grad():
        assert function(*mine).grad_fn is None


def test_a_sum_has_a_gradient_of_stride_0() -> None:
    a, b = small(128, 64).requires_grad_(), small(64, 128).requires_grad_()
    matmul(a, b).sum().backward()
    torch.testing.assert_close(a.grad.float(), b.detach().float().sum(1).expand(128, 64), rtol=2**-6, atol=2**-6)


def test_transforms() -> None:
    a, b = small(4, 128, 64), small(64, 128)
    torch.testing.assert_close(torch.vmap(matmul, (0, None))(a, b), a @ b, rtol=2**-6, atol=2**-6)
    mine = torch.func.grad(lambda b: matmul(a, b).float().square().sum())(b)
    theirs = torch.func.grad(lambda b: (a.float() @ b).square().sum())(b.float())
    torch.testing.assert_close(mine.float() / theirs.abs().max(), theirs / theirs.abs().max(), rtol=2**-5, atol=2**-6)
    _, tangent = torch.func.jvp(matmul, (a[0], b), (a[0], b))
    torch.testing.assert_close(tangent, 2 * (a[0] @ b), rtol=2**-5, atol=2**-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: Any) -> None:
    a, b = small(128, 64).float(), small(64, 128).float()
    for _ in range(3):
        assert matmul(a, b).dtype == torch.float32
        with torch.autocast("cuda", dtype):
            d = matmul(a, b)
        assert d.dtype == dtype
        torch.testing.assert_close(d.float(), a @ b, rtol=2**-6, atol=2**-6)
    a.requires_grad_()
    with torch.autocast("cuda", dtype):
        matmul(a, b).float().sum().backward()
    assert a.grad.dtype == torch.float32


class Seen(TorchDispatchMode):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        self.names.append(function._schema.name)
        return function(*arguments, **(keywords or {}))


@pytest.mark.parametrize("warm", [0, 4])
def test_what_pytorch_is_to_see_is_not_launched(warm: int) -> None:
    a, b = small(128, 64), small(64, 128)
    ends(*ROWS)  # made outside of modes
    calls: list[Callable[[], Any]] = [
        lambda: matmul(a, b),
        lambda: matmul(a, b, epilogue="d = relu(acc)"),
        lambda: grouped_matmul(a, b.expand(3, 64, 128), ends(*ROWS)),
    ]
    for call, operator in zip(calls, ("mm", "epilogue", "grouped_mm"), strict=True):
        for _ in range(warm):
            call()
        with Seen() as seen:
            call()
        assert f"gemmill::{operator}" in seen.names
        graph = make_fx(call, tracing_mode="real")().graph
        assert any(str(node.target).startswith(f"gemmill.{operator}") for node in graph.nodes)
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            assert call().fake_mode is mode
    torch.testing.assert_close(matmul(a, b), a @ b, rtol=2**-6, atol=2**-6)
    torch.cuda.synchronize()


def test_a_training_step_is_captured() -> None:
    a, w = small(128, 64), small(64, 128).requires_grad_()

    def step() -> Any:
        w.grad = None
        matmul(matmul(a, w), w.mT, epilogue="d = silu(acc)").float().square().sum().backward()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    w.grad = None
    with torch.cuda.graph(graph):
        step()
    a.copy_(small(128, 64, seed=5))
    graph.replay()
    captured = w.grad.clone()
    step()
    torch.testing.assert_close(captured, w.grad)


def test_deterministic_mode_gives_the_same_bits() -> None:
    """Of a problem whose K is shared among CTAs; and sums of an epilogue, which are atomic, it refuses."""
    a, b, total = small(64, 65536), small(65536, 64), torch.empty((), device="cuda")
    torch.use_deterministic_algorithms(True)
    try:
        first = matmul(a, b)
        assert all(torch.equal(matmul(a, b), first) for _ in range(20))
        with pytest.raises(gemmill.OperandError, match="sums atomically"):
            matmul(a, b, epilogue="d = acc; total = sum(acc)", total=total)
    finally:
        torch.use_deterministic_algorithms(False)
