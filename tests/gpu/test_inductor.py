"""Inductor with gemmill's pass on a GPU: values, CUDA graphs and their trees, streams, threads, modules at random."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

from tests.torch.graphs import Graphs, assert_as_exact  # noqa: E402
from tests.torch.random_modules import random_module  # noqa: E402
from torch._dynamo.utils import counters  # noqa: E402
from torch._inductor import config  # noqa: E402
from torch._inductor.utils import run_and_get_code  # noqa: E402

import gemmill.torch  # noqa: E402
from gemmill.library.errors import CaptureError  # noqa: E402
from gemmill.library.problem import GemmProblem  # noqa: E402
from gemmill.runtime.api.caches import default_registry  # noqa: E402
from gemmill.runtime.api.read import Declaration  # noqa: E402
from gemmill.runtime.torch.inductor.installation import passes  # noqa: E402
from gemmill.runtime.torch.operators import OPERATORS  # noqa: E402
from gemmill.runtime.torch.option_text import read as read_options  # noqa: E402

functional = torch.nn.functional
BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    torch.compiler.reset()
    counters.clear()
    yield
    torch.cuda.synchronize()


def mlp(x: Any, gate: Any, up: Any, down: Any) -> Any:
    return x + (functional.silu(x @ gate) * (x @ up)) @ down


def weights() -> list[Any]:
    torch.manual_seed(0)
    shapes = (128, 256), (128, 256), (256, 128)
    return [torch.randn(shape, device="cuda", dtype=BF16) / shape[0] ** 0.5 for shape in shapes]


def rows(*shape: int) -> Any:
    return torch.randn(*shape, 128, device="cuda", dtype=BF16)


def check(found: Any, x: Any, given: list[Any]) -> None:
    exact = mlp(x.double(), *[w.double() for w in given])
    assert_as_exact(found, mlp(x, *given), exact, factor=1.5)


def test_code_of_inductor_calls_the_operators() -> None:
    given, x = weights(), rows(2, 24)
    with passes(), torch.no_grad():
        found, (code,) = run_and_get_code(torch.compile(mlp, fullgraph=True), x, *given)
    check(found, x, given)
    assert "d = silu(x1[m, n]) * acc" in code
    assert "gemmill.matmul(" in code
    assert "torch.ops.gemmill" not in code
    assert "extern_kernels." not in code


def test_gradients_are_those_of_torch() -> None:
    grads = []
    upstream = rows(2, 40)
    with passes():
        for call, dtype in ((torch.compile(mlp, fullgraph=True), BF16), (mlp, BF16), (mlp, torch.float64)):
            torch.manual_seed(1)
            leaves = [x.detach().to(dtype, copy=True).requires_grad_() for x in (rows(2, 40), *weights())]
            call(*leaves).backward(upstream.to(dtype))
            grads.append([x.grad for x in leaves])
    mine, eager, exact = grads
    assert_as_exact(mine, eager, exact, factor=2)


def test_trees_of_graphs_hold_two_shapes() -> None:
    """Each shape runs eagerly, is recorded, and is replayed, between those of the other."""
    given = weights()
    with passes(), torch.no_grad():
        compiled = torch.compile(mlp, mode="reduce-overhead", dynamic=False)
        for _ in range(4):
            for shape in ((2, 16), (64,)):
                x = rows(*shape)
                torch.compiler.cudagraph_mark_step_begin()
                check(compiled(x, *given).clone(), x, given)


def test_captured_streamed_and_threaded() -> None:
    """What is compiled once: captured beside an eager call, replayed on new data; on streams; in threads."""
    given, x = weights(), rows(48)
    long, wide = torch.randn(2, 64, 8192, device="cuda", dtype=BF16)  # sums of which many CTAs have a share
    with passes(), torch.no_grad():
        compiled = torch.compile(mlp, fullgraph=True)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            compiled(x, *given)
            gemmill.matmul(long, wide.mT)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found, product = compiled(x, *given), gemmill.matmul(long, wide.mT)
        for _ in range(3):
            x.copy_(rows(48))
            long.copy_(torch.randn_like(long))
            gemmill.matmul(long, wide.mT)  # whose workspace is another than the graph's
            graph.replay()
            torch.cuda.synchronize()
            check(found, x, given)
            torch.testing.assert_close(product, long @ wide.mT, rtol=2**-6, atol=2.0)

        streams = [torch.cuda.Stream() for _ in range(4)]
        inputs, results = [rows(48) for _ in range(16)], []
        torch.cuda.synchronize()
        for i, each in enumerate(inputs):
            with torch.cuda.stream(streams[i % 4]):
                results.append(compiled(each, *given))
        torch.cuda.synchronize()
        for each, result in zip(inputs, results, strict=True):
            check(result, each, given)

        of_threads: dict[int, Any] = {}

        def run(index: int) -> None:
            with torch.no_grad(), torch.cuda.stream(streams[index]):
                for _ in range(20):
                    of_threads[index] = compiled(inputs[index], *given)
                streams[index].synchronize()

        threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(of_threads) == [0, 1, 2, 3]
        for index, result in of_threads.items():
            check(result, inputs[index], given)


def test_a_kernel_that_is_first_seen_in_a_capture_is_an_error_of_its_own() -> None:
    """And the context lives, and the next call is right."""
    x, w = rows(64), weights()[0]
    expression = "d = relu(acc) * 0.37109375"  # that nothing else has

    def call() -> Any:
        return torch.ops.gemmill.epilogue(expression, x, w, [], [])[0]

    with torch.cuda.graph(torch.cuda.CUDAGraph()), pytest.raises(CaptureError, match="before the capture, call"):
        call()
    wanted = torch.relu(x @ w) * 0.37109375
    torch.testing.assert_close(call(), wanted, rtol=2**-6, atol=2**-6)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call()
    graph.replay()
    torch.testing.assert_close(captured, wanted, rtol=2**-6, atol=2**-6)


def test_rows_that_vary_are_compiled_once() -> None:
    given = weights()
    with passes(), torch.no_grad():
        compiled = torch.compile(mlp, fullgraph=True, dynamic=True)
        for m in (7, 64, 65, 300):
            x = rows(m)
            check(compiled(x, *given), x, given)
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize(("backends", "always"), [("ATEN", False), ("", True)])
def test_max_autotune_has_the_operator_among_its_choices(backends: str, always: bool) -> None:
    x, w = rows(256), weights()[0]
    with passes(), torch.no_grad(), config.patch(max_autotune_gemm=True, max_autotune_gemm_backends=backends):
        found, (code,) = run_and_get_code(torch.compile(lambda x, w: torch.mm(x, w)), x, w)
    torch.testing.assert_close(found, x @ w, rtol=2**-6, atol=2**-6)
    assert "extern_kernels.mm(" in code or "gemmill_mm(" in code
    assert "gemmill_mm(" in code or not always


def of_type(dtype: Any) -> tuple[Any, tuple[Any, ...]]:
    """Products of one type, and their operands: 2-D, with C and in a batch; for fp8 and s8 the operator of the type."""
    x, w = (torch.ones(256, 128, device="cuda").to(dtype) for _ in range(2))
    w = w.mT
    if dtype == torch.int8:
        return torch._int_mm, (x, w)
    if dtype == torch.float8_e4m3fn:
        scale = torch.ones((), device="cuda")
        return lambda x, w: torch._scaled_mm(x, w, scale, scale, out_dtype=BF16), (x, w)
    return lambda x, w: (x @ w, torch.addmm(w[0, :1], x, w), x[None] @ w[None]), (x, w)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int8, torch.float8_e4m3fn, BF16])
def test_without_max_autotune_nothing_is_timed(dtype: Any, capfd: Any) -> None:
    """Neither what gemmill takes nor what it leaves alone, such as f32 in full precision."""
    function, given = of_type(dtype)
    timed = []
    for block in (nullcontext, gemmill.torch.enabled):
        torch.compiler.reset()
        counters.clear()
        with block(), torch.no_grad(), config.patch(fx_graph_cache=False):
            torch.compile(function)(*given)
        timed.append(counters["inductor"]["select_algorithm_autotune"])
    assert timed[0] == timed[1] == 0
    assert "AUTOTUNE" not in capfd.readouterr().err


class Noting(torch.fx.Interpreter):  # type: ignore[misc]
    """Runs a graph by the operators' references, and notes the problems of their kernels."""

    def __init__(self, module: Any, problems: list[GemmProblem]) -> None:
        super().__init__(module)
        self._problems = problems

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if getattr(target, "namespace", "") != "gemmill":
            return super().call_function(target, args, kwargs)
        name = target._schema.name.removeprefix("gemmill::")
        given = dict(zip((x.name for x in target._schema.arguments), args, strict=False)) | kwargs
        given |= read_options(given.pop("options", ""))
        made = OPERATORS[name].reference(**given)
        if name == "epilogue":
            given |= dict(zip(given.pop("names"), given.pop("operands"), strict=True))
            given["epilogue"] = given.pop("expression")
        self._problems.append(Declaration.of(gemmill.matmul).read(given).problem)
        return made if name == "epilogue" else made[0]


def test_random_modules_give_what_they_give_eagerly() -> None:
    """First by the references, to know which kernels are to be compiled, all at once; then by these."""
    problems: list[GemmProblem] = []
    held: list[tuple[Any, Any, Any, Any]] = []
    for seed in range(40):
        module, x = (each.to("cuda", BF16) for each in random_module(seed))
        torch.compiler.reset()
        with torch.no_grad():
            eager, exact = module(x), copy.deepcopy(module).double()(x.double())

            def note(graph: Any, given: list[Any], eager: Any = eager, exact: Any = exact) -> Any:
                held.append((graph, given, eager, exact))
                return Noting(graph, problems).run(*given)

            torch.compile(module, backend=Graphs(note), fullgraph=True)(x)
    assert len(held) == 40
    default_registry().warm([*dict.fromkeys(problems)])
    with torch.no_grad():
        for graph, given, eager, exact in held:
            (found,) = graph(*given)
            assert_as_exact(found, eager, exact, factor=2)
