"""Calls of ``gemmill.matmul`` and ``grouped_matmul`` that PyTorch compiles, exports or fakes."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from tests.torch.cases import wide  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import gemmill  # noqa: E402

matmul, grouped_matmul = gemmill.matmul, gemmill.grouped_matmul
BACKENDS = ["eager", "aot_eager", "inductor"]


@pytest.fixture(autouse=True)
def afresh() -> None:
    """Nothing that other tests compiled."""
    torch.compiler.reset()


def f32(*shape: int) -> Any:
    return wide(*shape, dtype=torch.float32)


def written_beside(a: Any, b: Any, x: Any) -> Any:
    top = torch.empty(5)
    d = matmul(a, b, epilogue="d = relu(acc * s) + x[n]; top[m] = max(d)", x=x, s=2.0, top=top)
    return d, top


def accumulated(a: Any, b: Any) -> Any:
    c = torch.ones(5, 3)
    matmul(a, b, c=c, out=c)
    return c


def relu_of(a: Any, b: Any, x: Any) -> Any:
    return (2 * (a @ b)).relu() + x


A, B, X, S = f32(5, 7), f32(7, 3), f32(3), f32(5, 1)
ENDS = torch.tensor([2, 5], dtype=torch.int32)
OPTIONS: dict[str, Any] = {"tf32": True, "accumulator": torch.float32, "deterministic": True}

Call = tuple[Callable[..., Any], tuple[Any, ...], Any, str]
CALLS: dict[str, Call] = {
    "a product": (lambda a, b: matmul(a, b).relu(), (A, B), (A @ B).relu(), "mm"),
    "a layer": (lambda a, w, c: matmul(a, w.mT, c=c), (A, B.mT.contiguous(), X), A @ B + X, "addmm"),
    "options": (lambda a, b: matmul(a, b, out_dtype="bf16", **OPTIONS), (A, B), (A @ B).bfloat16(), "mm"),
    "a batch": (lambda a, b: matmul(a, b, alpha=2.0), (f32(2, 5, 7), B), 2 * f32(2, 5, 7) @ B, "bmm"),
    "a batch and C": (
        lambda a, b, c: matmul(a, b, c=c, beta=2),
        (f32(2, 5, 7), B, X),
        f32(2, 5, 7) @ B + 2 * X,
        "baddbmm",
    ),
    "a row": (lambda a, b: matmul(a[0], b), (A, B), A[0] @ B, "mm"),
    "a column": (lambda a, b: matmul(a, b[:, 0], c=a[:, 0]), (A, B), A @ B[:, 0] + A[:, 0], "addmm"),
    "a scalar product": (lambda a, b: matmul(a[0], b[:, 0]), (A, B), A[0] @ B[:, 0], "mm"),
    "scales": (lambda a, b, s: matmul(a, b, a_scale=s, b_scale=2.0), (A, B, S), 2 * (A @ B) * S, "scaled_mm"),
    "weights": (lambda a, b: matmul(a, b.to(torch.int8)), (A.bfloat16(), B), (A @ B).bfloat16(), "mixed_mm"),
    "groups": (lambda a, b, ends: grouped_matmul(a, b, ends), (A, B.expand(2, 7, 3), ENDS), A @ B, "grouped_mm"),
    "gathered rows": (
        lambda a, b, ends, rows: grouped_matmul(a, b, ends, rows=rows),
        (A, B.expand(2, 7, 3), ENDS, torch.tensor([4, 0, 0, 3, 1])),
        (A @ B)[[4, 0, 0, 3, 1]],
        "grouped_mm",
    ),
    "slots": (
        lambda a, b, counts: grouped_matmul(a, b, counts=counts, expected_rows=3),
        (f32(2, 5, 7), f32(2, 7, 3), torch.tensor([5, 5], dtype=torch.int32)),
        f32(2, 5, 7) @ f32(2, 7, 3),
        "grouped_mm",
    ),
    "an epilogue": (
        lambda a, b, x: matmul(a, b, epilogue="d = relu(acc * s) + x[n]", x=x, s=2.0),
        (A, B, X),
        relu_of(A, B, X),
        "epilogue",
    ),
    "an epilogue that writes": (
        written_beside,
        (A, B, X),
        (relu_of(A, B, X), relu_of(A, B, X).amax(1)),
        "epilogue_out",
    ),
    "an epilogue of groups": (
        lambda a, b, ends: grouped_matmul(a, b, ends, epilogue="d = relu(acc)"),
        (A, B.expand(2, 7, 3), ENDS),
        (A @ B).relu(),
        "epilogue",
    ),
    "to out": (lambda a, b: matmul(a, b, out=a.new_empty(3, 5).mT), (A, B), A @ B, "mm_out"),
    "to C": (accumulated, (A, B), A @ B + 1, "addmm_out"),
}


def operators_of(graph: Any) -> list[str]:
    return [str(node.target).split(".")[1] for node in graph.nodes if str(node.target).startswith("gemmill.")]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CALLS)
def test_calls_compile_whole(name: str, backend: str) -> None:
    if backend == "inductor" and not shutil.which("g++"):
        pytest.skip("no C++ compiler")
    function, operands, wanted, _ = CALLS[name]
    found = torch.compile(function, fullgraph=True, backend=backend)(*operands)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_calls_export_as_one_operator(name: str, strict: bool) -> None:
    function, operands, wanted, operator = CALLS[name]

    class Module(torch.nn.Module):  # type: ignore[misc]
        def forward(self, *operands: Any) -> Any:
            return function(*operands)

    exported = torch.export.export(Module(), operands, strict=strict)
    assert operators_of(exported.graph) == [operator]
    torch.testing.assert_close(exported.module()(*operands), wanted)


def test_an_exported_program_is_loaded_and_holds_any_m(tmp_path: Any) -> None:
    class Module(torch.nn.Module):  # type: ignore[misc]
        def forward(self, a: Any, b: Any) -> Any:
            return matmul(a, b)

    rows = torch.export.Dim("rows")
    exported = torch.export.export(Module(), (A, B), dynamic_shapes=({0: rows}, None))
    torch.export.save(exported, tmp_path / "program.pt2")
    loaded = torch.export.load(tmp_path / "program.pt2").module()
    for m in (0, 2, 100):
        assert torch.equal(loaded(f32(m, 7), B), f32(m, 7) @ B)


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b, x: matmul(a, b),
        lambda a, b, x: matmul(a, b, c=x),
        lambda a, b, x: matmul(a.unflatten(0, (1, -1)), b),
        lambda a, b, x: matmul(a, b, a_scale=a[..., :1], b_scale=x),
        lambda a, b, x: grouped_matmul(a, b.expand(2, 7, 3), ENDS),
        lambda a, b, x: matmul(a, b, epilogue="d = relu(acc + x[n])", x=x),
        lambda a, b, x: matmul(a, b, out=a.new_empty(a.shape[0], 3)),
    ],
)
def test_dynamic_rows_compile_once(function: Callable[..., Any]) -> None:
    compiled = []

    def counting(graph: Any, _: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    call = torch.compile(function, fullgraph=True, backend=counting)
    for m in (5, 6, 9, 33):
        a = f32(m, 7)
        torch._dynamo.mark_dynamic(a, 0)
        assert call(a, B, X).shape[-2] == m
    assert len(compiled) == 1


def test_fakes_get_fakes_in_their_mode() -> None:
    with FakeTensorMode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's, of who asks a fake for its address
        a, b = (torch.empty(64, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        d = matmul(a, b, out_dtype="f32")
        assert (d.device.type, d.dtype, d.shape) == ("cuda", torch.float32, (64, 64))
        assert grouped_matmul(a, b, torch.empty(3, dtype=torch.int32, device="cuda")).shape == (3, 64, 64)
        assert matmul(a, b, epilogue="d = gelu(acc)").shape == (64, 64)


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx_sees_calls(mode: str) -> None:
    graph = make_fx(lambda a, b: matmul(a, b), tracing_mode=mode)(A, B).graph
    assert operators_of(graph) == ["mm"]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda a, b: matmul(a, b, stream=0), "stream is not supported in calls that PyTorch traces"),
        (lambda a, b: matmul(a, b[:, 0], a_scale=a[:, :1]), "pass matrices"),
        (
            lambda a, b: matmul(a, b, epilogue="d = acc; x = 2 * acc"),
            "writes x; 0 of these are passed: pass a tensor for each",
        ),
        (lambda a, b: matmul(a, b, out=torch.empty(5, 3), out_dtype="bf16"), "out is .* leave out out_dtype"),
        (lambda a, b: matmul(a.requires_grad_(), b, out=torch.empty(5, 3)), "requires a gradient"),
    ],
)
def test_what_operators_do_not_take_is_refused(call: Callable[..., Any], says: str) -> None:
    with pytest.raises(gemmill.OperandError, match=says):
        make_fx(call)(A.clone(), B)
    with pytest.raises(Exception, match=says):
        torch.compile(call, fullgraph=True, backend="eager")(A.clone(), B)


def test_eager_calls_on_the_cpu_are_refused_as_ever() -> None:
    with pytest.raises(gemmill.OperandError, match="a is on cpu"):
        matmul(A, B)
    with pytest.raises(gemmill.OperandError, match="a is on meta"):
        matmul(A.to("meta"), B.to("meta"))
