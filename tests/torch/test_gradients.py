"""Gradients of the operators, against finite differences in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from tests.torch.cases import wide  # noqa: E402
from tests.torch.option_texts import OptionTexts  # noqa: E402

import gemmill.torch  # noqa: E402

operators = torch.ops.gemmill


def leaf(*shape: int, dtype: Any = torch.float64) -> Any:
    return wide(*shape, dtype=dtype).requires_grad_()


PRODUCTS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "mm": (lambda a, b: operators.mm(a, b, alpha=0.5), (leaf(5, 7), leaf(7, 3))),
    "mm of transposes": (lambda a, b: operators.mm(a.mT, b.mT), (leaf(7, 5), leaf(3, 7))),
    "mm of no K": (operators.mm, (leaf(5, 0), leaf(0, 3))),
    "addmm": (lambda c, a, b: operators.addmm(c, a, b, alpha=2.0, beta=0.5), (leaf(3), leaf(5, 7), leaf(7, 3))),
    "bmm": (operators.bmm, (leaf(2, 5, 7), leaf(2, 7, 3))),
    "bmm of one weight": (operators.bmm, (leaf(2, 2, 5, 7), leaf(7, 3))),
    "bmm that broadcasts": (operators.bmm, (leaf(2, 1, 5, 7), leaf(3, 7, 2))),
    "baddbmm": (lambda c, a, b: operators.baddbmm(c, a, b, beta=2.0), (leaf(5, 1), leaf(2, 5, 7), leaf(2, 7, 3))),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_gradients_once_and_twice(name: str) -> None:
    function, operands = PRODUCTS[name]
    assert torch.autograd.gradcheck(function, operands)
    assert torch.autograd.gradgradcheck(function, operands)


def test_gradients_have_the_types_of_operands() -> None:
    """D and C in f32, as in the head of a language model."""
    c, a, b = leaf(3, dtype=torch.float32), leaf(5, 7, dtype=torch.bfloat16), leaf(7, 3, dtype=torch.bfloat16)
    operators.addmm(c, a, b, out_dtype=torch.float32).sum().backward()
    assert (c.grad.dtype, a.grad.dtype, b.grad.dtype) == (torch.float32, torch.bfloat16, torch.bfloat16)
    assert torch.equal(a.grad.float(), b.detach().float().sum(1).expand(5, 7))


@pytest.mark.parametrize("name", ["mm", "bmm", "addmm", "an input twice"])
def test_gradients_of_complex_operands(name: str) -> None:
    """Also of conjugates, and in turn of the gradients."""
    a, b, c = (leaf(*shape, dtype=torch.complex128) for shape in ((2, 5, 7), (7, 3), (3,)))
    calls = {
        "mm": lambda a, b, c: operators.mm(a[0], b.conj()),
        "bmm": lambda a, b, c: operators.bmm(a, b),
        "addmm": lambda a, b, c: operators.addmm(c, a[0], b, alpha=2.0, beta=0.5),
        "an input twice": lambda a, b, c: operators.mm(b.mH, b),
    }
    assert torch.autograd.gradcheck(calls[name], (a, b, c))
    assert torch.autograd.gradgradcheck(calls[name], (a, b, c))


OPTIONS = "precision='bf16x6';bits='invariant'"
WITH_OPTIONS: dict[str, Callable[..., Any]] = {
    "mm": lambda a, b: operators.mm(a, b, options=OPTIONS),
    "addmm": lambda a, b: operators.addmm(b[0], a, b, options=OPTIONS),
    "bmm": lambda a, b: operators.bmm(a[None], b, options=OPTIONS),
    "scaled_mm": lambda a, b: operators.scaled_mm(a, b, a[:, :1], b[:1], options=OPTIONS),
    "grouped_mm": lambda a, b: operators.grouped_mm(a, b[None], torch.tensor([5], dtype=torch.int32), options=OPTIONS),
    "epilogue": lambda a, b: operators.epilogue("d = relu(acc)", a, b, [], [], options=OPTIONS)[0],
}


@pytest.mark.parametrize("name", WITH_OPTIONS)
def test_products_of_gradients_have_the_precision_and_bits_of_the_call(name: str) -> None:
    with OptionTexts() as kept:
        WITH_OPTIONS[name](leaf(5, 7), leaf(7, 3)).sum().backward()
    assert len(kept.texts) >= 3  # forward, and the gradients of A and B
    assert {*kept.texts} == {OPTIONS}


ROWS, ALONG_K, COUNTS = (torch.tensor(x, dtype=torch.int32) for x in ([2, 2, 5], [3, 3, 7], [2, 5]))
INDEX = torch.tensor([1, 0, 1, 9, -1], dtype=torch.int32)
"""Rows of A; the last two are outside, and count as the last row."""
BYTES = torch.randint(0, 256, (4, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def groups(a: Any, b: Any, **keywords: Any) -> Any:
    tables = (keywords.pop(name, None) for name in ("offsets", "counts", "a_scale", "b_scale", "c", "rows"))
    return operators.grouped_mm(a, b, *tables, **keywords)


def written(d: Any, counts: Any) -> Any:
    """Rows of slots that are used."""
    return [x[:n] for x, n in zip(d, counts.tolist(), strict=True)]


def epilogue(text: str, *names: str, **keywords: Any) -> Callable[..., Any]:
    def of(a: Any, b: Any, *operands: Any) -> Any:
        return operators.epilogue(text, a, b, [*operands], [*names, *keywords], numbers=[*keywords.values()])[0]

    return of


def smooth(*shape: int) -> Any:
    """What no function has a corner or an end at."""
    made = torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)
    return (made + 0.3).requires_grad_()


OTHERS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "scales": (
        lambda a, b, x, y, c: operators.scaled_mm(a, b, x, y, c, alpha=0.5, beta=2.0),
        (leaf(5, 7), leaf(7, 3), leaf(5, 1), leaf(3), leaf(3)),
    ),
    "scales of a batch": (operators.scaled_mm, (leaf(2, 5, 7), leaf(7, 3), leaf(1), leaf(2, 1, 3))),
    "narrow weights": (
        lambda a, x, c: operators.mixed_mm(a, wide(7, 3, dtype=torch.int8), None, x, None, None, c, beta=0.5),
        (leaf(5, 7), leaf(3), leaf(3)),
    ),
    "narrow rows": (lambda b: operators.mixed_mm(wide(5, 7, dtype=torch.int8), b), (leaf(7, 3),)),
    "weights of 4 bits in groups": (
        lambda a: operators.mixed_mm(a, BYTES.mT, None, wide(2, 4), None, wide(2, 4), b_dtype="u4"),
        (leaf(5, 64),),
    ),
    "groups of rows": (lambda a, b: groups(a, b, offsets=ROWS, alpha=0.5), (leaf(5, 7), leaf(3, 7, 3))),
    "groups of rows and C": (
        lambda a, b, c: operators.grouped_mm(a, b, ROWS, None, None, None, c, beta=2.0),
        (leaf(5, 7), leaf(3, 7, 3), leaf(5, 3)),
    ),
    "gathered rows": (lambda a, b: groups(a, b, offsets=ROWS, rows=INDEX, alpha=0.5), (leaf(4, 7), leaf(3, 7, 3))),
    "a gate of gathered rows": (
        lambda a, b: operators.epilogue("d = silu(gate) * up", a, b, [ROWS, INDEX], ["offsets", "rows"])[0],
        (leaf(4, 7), leaf(3, 7, 4)),
    ),
    "groups along K": (lambda a, b: groups(a, b, offsets=ALONG_K), (leaf(5, 7), leaf(7, 3))),
    "slots": (lambda a, b: torch.cat(written(groups(a, b, counts=COUNTS), COUNTS)), (leaf(2, 5, 7), leaf(2, 7, 3))),
    "a layer": (
        epilogue("d = gelu(alpha * acc + x[n]) + c", "x", "c", alpha=0.5),
        (*(smooth(5, 7), smooth(7, 3)), leaf(3), leaf(5, 3)),
    ),
    "runs of eight columns": (epilogue("d = silu(gate8) * up8 * s", s=2.0), (leaf(5, 7), leaf(7, 16))),
    "runs of eight rows": (epilogue("d = silu(gate8.m) * up8.m * x[m]", "x"), (leaf(32, 7), leaf(7, 5), leaf(16))),
    "pairs": (epilogue("d = silu(gate) * up * s", s=2.0), (leaf(5, 7), leaf(7, 4))),
    "operands of all kinds": (
        epilogue("t = acc * x[m] + y[batch]; d = t * z[m, n] + s / w[n]", "x", "y", "z", "s", "w"),
        (leaf(2, 5, 7), leaf(7, 3), leaf(5), leaf(2), leaf(5, 3), smooth(1), smooth(2, 3)),
    ),
    "scales beside an expression": (
        epilogue("d = tanh(acc) + x[n]", "a_scale", "b_scale", "x"),
        (smooth(5, 7), smooth(7, 3), smooth(5, 1), smooth(1, 3), leaf(3)),
    ),
    "an expression of groups": (
        epilogue("d = acc * x[n] + y[batch] + z[m]", "x", "y", "z", "offsets"),
        (leaf(5, 7), leaf(3, 7, 3), leaf(3, 3), leaf(3), leaf(5), ROWS),
    ),
    **{
        f"{name} of sums": (epilogue(f"d = {text}", "x"), (smooth(2, 3), smooth(3, 2), smooth(2)))
        for name, text in {
            "quotients": "acc / x[n] - x[n] / acc",
            "powers": "exp(-acc) + log(acc) + sqrt(acc) + rsqrt(acc) * x[n]",
            "sigmoids": "sigmoid(acc) + tanh(acc) * erf(acc - x[n])",
            "activations": "silu(acc) + gelu(acc) * gelu_tanh(x[n] - acc)",
            "extremes": "max(acc, x[n], 0.9) + min(acc, x[n]) + relu(acc - x[n]) + abs(acc - x[n])",
            "limits": "clamp(acc, x[n], x[n] + 0.5) + where(acc > x[n] and not acc > 1, acc * acc, x[n] * acc)",
        }.items()
    },
}


@pytest.mark.parametrize("name", OTHERS)
def test_gradients_of_other_operators(name: str) -> None:
    function, operands = OTHERS[name]
    assert torch.autograd.gradcheck(function, operands)


def test_gradients_of_what_an_expression_writes_beside_d() -> None:
    """A reduction and a matrix, which are f32."""
    text = "aux[m, n] = acc * x[n]; d = relu(aux); row[m] = sum(aux); top[m] = max(d)"
    a, b, x = leaf(5, 7), leaf(7, 3), leaf(3)
    d, aux, row, top = operators.epilogue(text, a, b, [x], ["x"])
    (d.sum() + 2 * aux.double().sum() + 3 * (row.double() * a.detach()[:, 0]).sum()).backward(retain_graph=True)
    plain = [t.detach().requires_grad_() for t in (a, b, x)]
    y = plain[0] @ plain[1] * plain[2]
    (y.relu().sum() + 2 * y.sum() + 3 * (y.sum(1) * a.detach()[:, 0]).sum()).backward()
    for mine, other in zip((a, b, x), plain, strict=True):
        torch.testing.assert_close(mine.grad, other.grad)
    with pytest.raises(gemmill.OperandError, match=r"`top\[m\] = max\(d\)` has no gradient"):
        top.sum().backward()


def test_rows_of_no_group_have_no_part_in_gradients() -> None:
    """Kernels do not write them, so what is there may be no number."""
    a, b = leaf(6, 7), leaf(3, 7, 3)
    d = operators.grouped_mm(a, b, ROWS)
    g = torch.ones_like(d)
    g[5] = torch.nan
    d.backward(g)
    assert torch.equal(a.grad[5], torch.zeros(7))
    assert not a.grad.isnan().any()
    assert not b.grad.isnan().any()


def test_what_is_in_rows_of_no_group_has_no_part_in_those_of_an_epilogue() -> None:
    a, b, x = leaf(6, 7), leaf(3, 7, 3), leaf(3, 3)
    a.data[5] = torch.nan
    (d,) = operators.epilogue("d = log(acc * acc + 1) * x[n]", a, b, [x, ROWS], ["x", "offsets"])
    d.backward(torch.where(torch.arange(6)[:, None] < 5, torch.ones_like(d), torch.nan))
    assert not any(t.grad.isnan().any() for t in (a, b, x))
    a, x = leaf(2, 5, 7), leaf(2, 3)
    a.data[0, 2:] = torch.nan
    (d,) = operators.epilogue("d = exp(acc) + x[n]", a, leaf(2, 7, 3), [x, COUNTS], ["x", "counts"])
    d.backward(torch.ones_like(d))
    assert torch.equal(x.grad, COUNTS[:, None].expand(2, 3).double())
    assert not a.grad.isnan().any()


FP8 = torch.float8_e4m3fn


def test_scales_of_fp8_have_gradients() -> None:
    a, b = wide(5, 16).to(FP8), wide(16, 16).to(FP8).mT
    scales = [leaf(5, 1, dtype=torch.float32), leaf(1, 16, dtype=torch.float32)]
    operators.scaled_mm(a, b, *scales, out_dtype=torch.float32).sum().backward()
    sums = a.float() @ b.float()
    assert torch.equal(scales[0].grad, (sums * scales[1].detach()).sum(1, keepdim=True))
    assert torch.equal(scales[1].grad, (sums * scales[0].detach()).sum(0, keepdim=True))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda: operators.mm(wide(5, 16).to(FP8).requires_grad_(), wide(16, 16).to(FP8).mT),
            "a is .*8_e4m3fn and requires",
        ),
        (
            lambda: operators.scaled_mm(
                wide(5, 208).to(FP8), wide(136, 208).to(FP8).mT, leaf(5, 2, dtype=torch.float32), torch.ones(2, 2)
            ),
            "scaled_mm has no gradient of a_scale with block scales",
        ),
        (
            lambda: operators.mixed_mm(wide(5, 64), BYTES.mT, None, leaf(2, 4, dtype=torch.bfloat16), b_dtype="u4"),
            "mixed_mm has no gradient of b_scale of narrow weights",
        ),
        (
            lambda: operators.grouped_mm(leaf(5, 7), leaf(3, 7, 3), ROWS, None, torch.ones(5, 1)),
            "grouped_mm has no gradient of a, b with a_scale or b_scale",
        ),
        (
            lambda: operators.epilogue("d = acc + e4m3(acc)", leaf(5, 7), leaf(7, 3), [], [])[0],
            "because e4m3 is not differentiable",
        ),
        (
            lambda: operators.epilogue("d = round(acc)", leaf(5, 7), leaf(7, 3), [], [])[0],
            "because round is not differentiable",
        ),
    ],
)
def test_what_has_no_gradient_says_which_part(call: Callable[..., Any], says: str) -> None:
    with pytest.raises(gemmill.OperandError, match=says):
        call().float().sum().backward()


def test_what_is_written_to_tensors_of_the_caller_has_no_gradient() -> None:
    a, b, out = leaf(5, 7), leaf(7, 3), torch.empty(5, 3, dtype=torch.float64)
    with pytest.raises(gemmill.OperandError, match="writes to the caller's tensors has no gradient"):
        operators.mm_out(a, b, out)
    version = out._version
    with torch.no_grad():
        operators.mm_out(a, b, out)
    assert torch.equal(out, (a @ b).detach())
    assert out._version > version  # autograd knows that it was written to


COMPILED: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "a product": (lambda a, b, c: gemmill.matmul(a, b, c=c, alpha=0.5), ((5, 7), (7, 3), (3,))),
    "scales": (lambda a, b, x: gemmill.matmul(a, b, a_scale=x), ((5, 7), (7, 3), (5, 1))),
    "narrow weights": (lambda a: gemmill.matmul(a, torch.ones(7, 3, dtype=torch.int8)), ((5, 7),)),
    "groups of rows": (lambda a, b: gemmill.grouped_matmul(a, b, ROWS), ((5, 7), (3, 7, 3))),
    "groups along K": (lambda a, b: gemmill.grouped_matmul(a, b, ALONG_K), ((5, 7), (7, 3))),
    "an epilogue": (
        lambda a, b, x: gemmill.matmul(a, b, epilogue="d = gelu(acc) + x[n]", x=x),
        ((5, 7), (7, 3), (3,)),
    ),
    "an epilogue of groups": (
        lambda a, b, x: gemmill.grouped_matmul(a, b, ROWS, epilogue="d = acc * x[n]", x=x),
        ((5, 7), (3, 7, 3), (3, 3)),
    ),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", COMPILED)
def test_gradients_of_what_is_compiled(name: str, backend: str) -> None:
    """As those of eager calls, which other tests hold to finite differences."""
    function, shapes = COMPILED[name]
    torch.compiler.reset()
    compiled, eager = ([leaf(*shape) for shape in shapes] for _ in range(2))
    torch.compile(function, backend=backend, fullgraph=True)(*compiled).square().sum().backward()
    d = function(*eager)
    assert d.grad_fn is not None
    d.square().sum().backward()
    for x, y in zip(compiled, eager, strict=True):
        torch.testing.assert_close(x.grad, y.grad)
