"""The pass over Inductor's graphs: which operators it puts in, with which expressions, and what they give."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from tests.torch.graphs import Graphs, assert_as_exact, called, listed  # noqa: E402
from tests.torch.random_modules import random_module  # noqa: E402
from torch._inductor import config  # noqa: E402

from gemmill.runtime.torch.inductor.choices import TIMED  # noqa: E402
from gemmill.runtime.torch.takeover.blocks import ENABLED  # noqa: E402

functional = torch.nn.functional
BF16, F32, FP8 = torch.bfloat16, torch.float32, torch.float8_e4m3fn


@pytest.fixture(autouse=True)
def tf32() -> Iterator[None]:
    """Products of f32 are the operators' where PyTorch may round to tf32; and nothing that other tests compiled."""
    torch.compiler.reset()
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    yield
    torch.backends.cuda.matmul.fp32_precision = before


def drawn(*shape: int, dtype: Any = BF16, seed: int = 0) -> Any:
    made = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape) + seed))
    return made.to(dtype)


X = drawn(2, 8, 32)
W, W2, V = drawn(32, 64, seed=1) / 4, drawn(32, 64, seed=2) / 4, drawn(64, 32, seed=3) / 4
BIAS, ROW = drawn(64), drawn(2, 8, 1)
Q = drawn(2, 3, 8, 16)
MASK = drawn(8, 8)


def linear(x: Any, bias: Any = BIAS) -> Any:
    return functional.linear(x, W.mT, bias)


Case = tuple[Callable[[Any], Any], Any, list[str]]
CASES: dict[str, Case] = {
    "linear": (linear, X, ["d = acc + x1[n]"]),
    "gelu": (lambda x: functional.gelu(linear(x)), X, ["d = gelu(acc + x1[n])"]),
    "gelu (tanh)": (lambda x: functional.gelu(linear(x), approximate="tanh"), X, ["d = gelu_tanh(acc + x1[n])"]),
    "silu": (lambda x: functional.silu(x @ W), X, ["d = silu(acc)"]),
    "sigmoid": (lambda x: x @ W * (x @ W).sigmoid(), X, ["mm", "d = x1[m, n] * sigmoid(acc)"]),
    "a row of something else": (
        lambda x: torch.relu(linear(x)) / (1 + (-x[..., :1]).exp()),
        X,
        ["d = relu(acc + x1[n]) / x2[m]"],
    ),
    "gated": (
        lambda x: functional.silu(x @ W) * (x @ W2) @ V,
        X,
        ["mm", "d = silu(x1[m, n]) * acc", "mm"],
    ),
    "residual": (lambda x: x + functional.linear(linear(x), V.mT), X, ["d = acc + x1[n]", "addmm"]),
    "residual and bias": (lambda x: functional.linear(x, V[:32].mT, BIAS[:32]) + x, X, ["d = acc + x1[n] + x2[m, n]"]),
    "scale and cast": (lambda x: (x @ W * 0.125).float(), X, ["mm(alpha=0.125, out_dtype=float32)"]),
    "a row and a vector": (lambda x: (x @ W) * ROW * BIAS, X, ["d = acc * x1[m] * x2[n]"]),
    "a scalar": (lambda x: torch.relu(x @ W) * BIAS[3], X, ["d = relu(acc) * x1"]),
    "where": (lambda x: torch.where(x @ W > BIAS, x @ W, 0.25), X, ["mm", "d = where(x1[m, n] > x2[n], acc, 0.25)"]),
    "leaky": (
        lambda x: functional.leaky_relu(linear(x)),
        X,
        ["t1 = acc + x1[n]; d = where(t1 > 0, t1, t1 * 0.01)"],
    ),
    "squared": (lambda x: torch.relu(x @ W).square(), X, ["t1 = relu(acc); d = t1 * t1"]),
    "clamp": (lambda x: (x @ W).clamp(-1, 1), X, ["d = clamp(acc, -1, 1)"]),
    "factors": (
        lambda x: torch.addmm(BIAS, x[0], W, beta=0.5, alpha=2).relu(),
        X,
        ["d = relu(2 * acc + 0.5 * x1[n])"],
    ),
    "factors alone": (
        lambda x: torch.addmm(BIAS, x[0], W, beta=0.5, alpha=2),
        X,
        ["d = 2 * acc + 0.5 * x1[n]"],
    ),
    "a batch": (lambda x: torch.baddbmm(MASK, x, x.mT, alpha=0.5), X, ["baddbmm(alpha=0.5)"]),
    "attention": (
        lambda q: torch.softmax(q @ q.mT * 0.25 + MASK, -1) @ q,
        Q,
        ["baddbmm(alpha=0.25)", "bmm"],
    ),
    "scores": (lambda q: torch.tanh(q @ q.mT / 8) * 8, Q, ["d = tanh(acc / 8) * 8"]),
    "of the batch": (lambda q: (q @ q.mT) * q[:, :, :1, :1] + q[..., :1], Q, ["d = acc * x1[batch] + x2[m]"]),
    "a result that is read twice": (lambda x: (y := x @ W, y.relu()), X, ["mm"]),
    "what kernels have not": (lambda x: functional.softplus(x @ W), X, ["mm"]),
    "three matrices": (
        lambda x: torch.relu(x @ W + x.sum() * W[:16].view(2, 8, 64) + W2[16:].view(2, 8, 64)) * W[16:].view(2, 8, 64),
        X,
        ["d = relu(acc + x1 * x2[m, n] + x3[m, n])"],
    ),
    "scales": (
        lambda x: torch._scaled_mm(
            x[0].to(FP8), W.mT.to(FP8).contiguous().mT, *[torch.tensor(0.5)] * 2, out_dtype=BF16
        ),
        X.new_ones(1, 16, 32),
        ["scaled_mm"],
    ),
    "groups": (
        lambda x: torch._grouped_mm(x[0], W.expand(3, 32, 64), torch.tensor([2, 2, 8], dtype=torch.int32)).relu(),
        X,
        ["d = relu(acc)"],
    ),
    "float32": (lambda x: torch.relu(x.float() @ W.float()), X, ["d = relu(acc)"]),
    "float64": (lambda x: torch.relu(x.double() @ W.double()), X, ["mm"]),
}
"""What is compiled, its input, and the operators that it is to be."""


@pytest.mark.parametrize("name", CASES)
def test_what_is_folded(name: str) -> None:
    function, x, wanted = CASES[name]
    graphs = Graphs()
    found = torch.compile(function, backend=graphs, fullgraph=True)(x)
    eager = function(x)
    for got, had in zip(listed(found), listed(eager), strict=True):
        assert (got.shape, got.stride(), got.dtype) == (had.shape, had.stride(), had.dtype)
        rounds = 2**-3 if had.dtype == FP8 else 2**-5
        torch.testing.assert_close(got.double(), had.double(), rtol=rounds, atol=rounds)
    assert not graphs.left()
    assert graphs.calls == [wanted]


def test_rows_that_vary_compile_once_and_are_folded() -> None:
    w, w2, v, bias = (x.float() for x in (W, W2, V, BIAS))

    def block(x: Any) -> Any:
        return x + functional.linear(functional.silu(x @ w) * functional.linear(x, w2.mT, bias), v.mT)

    graphs = Graphs()
    compiled = torch.compile(block, backend=graphs, fullgraph=True)
    for batch, rows in ((2, 8), (3, 5), (4, 33)):
        x = drawn(batch, rows, 32, dtype=F32)
        for axis in (0, 1):
            torch._dynamo.mark_dynamic(x, axis)
        torch.testing.assert_close(compiled(x), block(x))
    assert graphs.calls == [["mm", "d = silu(x2[m, n]) * (acc + x1[n])", "addmm"]]


def test_all_extents_of_a_batch_may_vary() -> None:
    def scores(q: Any, bias: Any) -> Any:
        return torch.relu(q @ q.mT * 0.25 + bias)

    graphs = Graphs()
    compiled = torch.compile(scores, backend=graphs, fullgraph=True, dynamic=True)
    for shape in ((2, 8, 16), (3, 9, 24), (5, 4, 40)):
        q, bias = drawn(*shape, dtype=F32), drawn(shape[0], shape[1], 1, dtype=F32)
        torch.testing.assert_close(compiled(q, bias), scores(q, bias))
    assert graphs.calls == [["d = relu(acc * 0.25 + x1[m])"]]


TRAINED: dict[str, tuple[Callable[..., Any], list[list[str]]]] = {
    "gelu": (
        lambda x, w, v: functional.gelu(x @ w) @ v,
        [
            ["mm", "mm"],
            [
                "mm",
                "d = acc * ((erf(x1[m, n] * 0.7071067811865476) + 1) * 0.5 + "
                "x1[m, n] * (exp(x1[m, n] * x1[m, n] * -0.5) * 0.3989422804014327))",
                "mm",
                "mm",
            ],
        ],
    ),
    "relu": (lambda x, w, v: torch.relu(x @ w) @ v, [["d = relu(acc)", "mm"], ["mm", "mm", "mm", "mm"]]),
    "tanh": (
        lambda x, w, v: torch.tanh(x @ w) @ v,
        [["d = tanh(acc)", "mm"], ["mm", "d = acc * (1 - x1[m, n] * x1[m, n])", "mm", "mm"]],
    ),
    "gated": (lambda x, w, v: (functional.silu(x @ w) * (x @ w)) @ v + x, []),
    "residual": (lambda x, w, v: torch.tanh(x @ w) @ v + x, []),
}


@pytest.mark.parametrize("name", TRAINED)
def test_gradients_are_products_too(name: str) -> None:
    function, wanted = TRAINED[name]
    graphs = Graphs()
    results = []
    for call, dtype in (
        (torch.compile(function, backend=graphs, fullgraph=True), BF16),
        (function, BF16),
        (function, torch.float64),
    ):
        leaves = [x.detach().to(dtype, copy=True).requires_grad_() for x in (X, W, V)]
        y = call(*leaves)
        y.backward(drawn(2, 8, 32, seed=7).to(dtype))
        results.append([y.detach(), *(x.grad for x in leaves)])
    mine, eager, exact = results
    assert_as_exact(mine, eager, exact)
    assert not graphs.left()
    if wanted:
        assert graphs.calls == wanted


def check_random_module(seed: int, backward: bool) -> None:
    module, x = random_module(seed)
    graphs = Graphs()
    results = []
    for backend, dtype in ((graphs, F32), (None, F32), (None, torch.float64)):
        own, mine = copy.deepcopy(module).to(dtype), x.to(dtype, copy=True).requires_grad_(backward)
        call = torch.compile(own, backend=backend, fullgraph=True) if backend else own
        with torch.set_grad_enabled(backward):
            y = call(mine)
        if backward:
            y.square().sum().backward()
        grads = [mine.grad, *(p.grad for p in own.parameters() if p.grad is not None)] if backward else []
        results.append([y.detach(), *grads])
    for mine, eager, exact in zip(*results, strict=True):
        assert (mine.shape, mine.stride(), mine.dtype) == (eager.shape, eager.stride(), eager.dtype)
        torch.testing.assert_close(mine.double(), exact, rtol=1e-4, atol=1e-5 * float(1 + exact.abs().max()))
    assert not graphs.left()


@pytest.mark.parametrize("seed", range(40))
def test_random_modules_compile(seed: int) -> None:
    check_random_module(seed, backward=seed % 4 == 0)


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(40, 240))
def test_more_random_modules_compile(seed: int) -> None:
    check_random_module(seed, backward=seed % 2 == 0)


def test_what_the_operators_do_not_serve_stays() -> None:
    """f32 that may not be rounded to tf32, integers, and what is empty."""
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    for a, b in ((X[0].float(), W.float()), (X[0].to(torch.int32), W.to(torch.int32)), (X[0][:, :0], W[:0])):
        graphs = Graphs()
        torch.testing.assert_close(torch.compile(torch.mm, backend=graphs)(a, b), a @ b)
        torch.compiler.reset()
        assert graphs.calls == [[]]


def block_with_bias(x: Any) -> Any:
    return functional.gelu(linear(x)) @ V


def test_products_have_the_bits_of_the_block() -> None:
    """Forward and backward, and f32 that may not be rounded to tf32."""
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    for call, x in ((block_with_bias, X), (lambda x: x @ W.float(), X.float())):
        graphs = Graphs()
        with ENABLED.within("invariant"):
            torch.compile(call, backend=graphs)(x.clone().requires_grad_()).sum().backward()
        nodes = [node for graph in graphs.graphs for node in graph.nodes if called(node)]
        assert not graphs.left()
        assert {node.kwargs["options"] for node in nodes} == {"bits='invariant'"}
        torch.compiler.reset()
    for autotuner in ("max_autotune", "coordinate_descent_tuning"):
        refused = pytest.raises(Exception, match="compile without them")
        with ENABLED.within("invariant"), config.patch(autotuner, True), refused:
            torch.compile(linear, backend=Graphs())(X)


def test_products_of_float32_have_the_precision_of_the_block() -> None:
    """Forward and backward, whatever PyTorch's own setting is; other types are as before."""
    for own, f32, options in (("ieee", "bf16x6", "precision='bf16x6'"), ("tf32", "bf16x9", "precision='bf16x9'")):
        torch.backends.cuda.matmul.fp32_precision = own
        graphs = Graphs()
        with ENABLED.within(f32=f32), config.patch(max_autotune=True):
            found = torch.compile(lambda x: functional.silu(x @ W.float()) @ V.float(), backend=graphs)
            found(X.float().requires_grad_()).sum().backward()
        nodes = [node for graph in graphs.graphs for node in graph.nodes if called(node)]
        assert not graphs.left()
        assert {node.kwargs["options"] for node in nodes} == {options}
        assert not any(node.meta.get(TIMED) for node in nodes)
        torch.compiler.reset()
    graphs = Graphs()
    with ENABLED.within(f32="bf16x6"):
        torch.compile(linear, backend=graphs)(X)
    assert not any("options" in node.kwargs for node in graphs.graphs[0].nodes)


def test_nothing_is_fused_where_the_roundings_of_eager_mode_are_asked_for() -> None:
    graphs = Graphs()
    with config.patch(emulate_precision_casts=True):
        found = torch.compile(block_with_bias, backend=graphs)(X)
    assert graphs.calls == [["d = acc + x1[n]", "mm"]]
    # Eager mode on a CPU may round a sum before it adds the bias.
    hidden = functional.gelu((X.float() @ W.float() + BIAS.float()).bfloat16())
    torch.testing.assert_close(found, (hidden.float() @ V.float()).bfloat16(), rtol=2**-7, atol=1e-3)


def test_nothing_is_moved_over_what_writes() -> None:
    def step(x: Any, state: Any) -> Any:
        y = x @ W
        state.add_(1)
        return torch.relu(y + state)

    graphs = Graphs()
    state, own = drawn(64), drawn(64)
    found = torch.compile(step, backend=graphs)(X, own)
    torch.testing.assert_close(found, step(X, state), rtol=2**-5, atol=2**-5)
    assert torch.equal(own, state)
