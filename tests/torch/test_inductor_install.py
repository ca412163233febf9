"""What puts the pass and the choice into Inductor, with Inductor's own code generation, caches and packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from torch._dynamo.utils import counters  # noqa: E402
from torch._inductor import config  # noqa: E402
from torch._inductor.custom_graph_pass import CustomGraphPass  # noqa: E402
from torch._inductor.utils import run_and_get_code  # noqa: E402

import gemmill  # noqa: E402
from gemmill.runtime.torch.inductor.installation import GemmillPass, install, passes, remove  # noqa: E402
from gemmill.runtime.torch.takeover.blocks import ENABLED  # noqa: E402

functional = torch.nn.functional
needs_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="no C++ compiler")


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    assert config.post_grad_custom_pre_pass is None
    assert config.external_matmul == []


class Counting(CustomGraphPass):  # type: ignore[misc]
    """A pass of somebody else."""

    def __init__(self, identity: str | None = "counting") -> None:
        self.graphs = 0
        self.identity = identity

    def __call__(self, graph: Any) -> None:
        self.graphs += 1

    def uuid(self) -> Any:
        return self.identity


def layer(x: Any, w: Any) -> Any:
    return functional.gelu(x @ w) + 1


def operands(dtype: Any = torch.bfloat16) -> tuple[Any, Any]:
    torch.manual_seed(0)
    return torch.randn(16, 32).to(dtype), torch.randn(32, 64).to(dtype)


def test_passes_before_run_too_and_come_back() -> None:
    theirs = Counting()
    config.post_grad_custom_pre_pass = theirs
    try:
        with passes(), passes():
            ours = config.post_grad_custom_pre_pass
            assert isinstance(ours, GemmillPass)
            ours(torch.fx.Graph())
        assert theirs.graphs == 1
        assert config.post_grad_custom_pre_pass is theirs
    finally:
        config.post_grad_custom_pre_pass = None
    remove()  # once too often: nothing happens


def test_a_pass_that_somebody_put_around_ours_stays() -> None:
    install()
    ours = config.post_grad_custom_pre_pass
    config.post_grad_custom_pre_pass = around = GemmillPass([ours, Counting()])
    try:
        remove()
        assert config.post_grad_custom_pre_pass is around
        assert not ours.is_on
    finally:
        config.post_grad_custom_pre_pass = None


@pytest.mark.slow
def test_the_identity_says_what_graphs_depend_on() -> None:
    plain = GemmillPass(None).uuid()
    assert plain == GemmillPass(None).uuid()
    assert GemmillPass(Counting("one")).uuid() != GemmillPass(Counting("two")).uuid() != plain
    assert GemmillPass(Counting(None)).uuid() is None  # so nothing is cached
    assert GemmillPass([lambda graph: None]).uuid() is None
    with ENABLED.within("invariant"):
        assert GemmillPass(None).uuid() != plain
    off = GemmillPass(None)
    off.is_on = False
    assert off.uuid() != plain
    code = (
        "import gemmill.torch; from gemmill.runtime.torch.inductor.installation import GemmillPass; "
        "gemmill.torch.run_on_cpu(); print(GemmillPass(None).uuid())"
    )
    other = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert other.stdout.strip() == str(plain)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("autograd_cache", [False, True])
def test_inductor_calls_the_operator_and_its_caches_know_it(autograd_cache: bool) -> None:
    """With the pass and without, and again both ways, from the cache: programs are told apart."""
    x, w = operands()
    with config.patch(fx_graph_cache=True), torch._functorch.config.patch(enable_autograd_cache=autograd_cache):
        for again in (False, True):
            for on in (True, False):
                torch.compiler.reset()
                counters.clear()
                with passes() if on else nullcontext():
                    found, codes = run_and_get_code(torch.compile(layer), x, w)
                torch.testing.assert_close(found, layer(x, w), rtol=2**-6, atol=2**-6)
                hits = counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]
                assert hits >= again
                for code in codes:
                    assert ("d = gelu(acc) + 1" in code) == on


def grouped(x: Any, w: Any) -> Any:
    return gemmill.grouped_matmul(x, w.expand(3, -1, -1), torch.tensor([2, 2, 16], dtype=torch.int32))


def scaled(x: Any, w: Any) -> Any:
    narrow = [y.to(torch.float8_e4m3fn) for y in (x, w.mT.contiguous().mT)]
    scales = {"a_scale": x[:, :1].float(), "b_scale": torch.ones(1, 64)}
    return gemmill.matmul(*narrow, **scales, out_dtype=torch.bfloat16, fast_accumulation=True)


CALLS: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "plain": (lambda x, w: gemmill.matmul(x, w), ".matmul(arg1_1, arg0_1, "),  # B is read first
    "C": (lambda x, w: gemmill.matmul(x, w, c=x[:, :1] * w[:1], alpha=2.0, beta=0.5), "alpha=2.0, beta=0.5, out="),
    "batch": (lambda x, w: gemmill.matmul(x.view(2, 8, 32), w.expand(2, -1, -1)), ".matmul("),
    "epilogue": (lambda x, w: gemmill.matmul(x, w, epilogue="d = acc * s", s=2.0), "epilogue='d = acc * s', s=2.0"),
    "gated": (lambda x, w: gemmill.matmul(x, w, epilogue="d = silu(gate) * up"), "d = silu(gate) * up"),
    "scaled": (scaled, "a_scale="),
    "grouped": (grouped, ".grouped_matmul("),
}


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("name", CALLS)
def test_code_of_inductor_is_the_call_of_a_user(name: str) -> None:
    """No operator of the dispatcher is in it, and D is memory that Inductor plans."""
    call, part = CALLS[name]
    x, w = operands()
    found, (code,) = run_and_get_code(torch.compile(call, fullgraph=True), x, w)
    assert part in code
    assert "torch.ops.gemmill" not in code
    wanted = torch.compile(call, backend="aot_eager")(x, w)
    torch.testing.assert_close(found, wanted, rtol=2**-6, atol=2**-6)


OPERATOR_ALONE = """
import torch, gemmill.torch
from torch._inductor.utils import run_and_get_code
gemmill.torch.run_on_cpu()
x, w = torch.randn(16, 32).bfloat16(), torch.randn(64, 32).bfloat16()
_, (code,) = run_and_get_code(torch.compile(lambda x, w: torch.ops.gemmill.mm(x, w.t()).relu()), x, w)
print(code)
"""


@pytest.mark.slow
@needs_compiler
def test_operators_that_a_program_calls_are_lowered_in_a_process_without_a_pass() -> None:
    """As in an engine whose layers call the operators: Inductor is loaded, and nothing else of gemmill is on."""
    done = subprocess.run([sys.executable, "-c", OPERATOR_ALONE], check=True, capture_output=True, text=True)
    assert ".matmul(" in done.stdout
    assert "= torch.ops.gemmill" not in done.stdout


@pytest.mark.slow
@needs_compiler
def test_a_number_that_is_no_literal_goes_by_the_operator() -> None:
    x, w = operands()
    call = torch.compile(lambda x, w: gemmill.matmul(x, w, alpha=float("inf")))
    found, (code,) = run_and_get_code(call, x, w)
    assert "torch.ops.gemmill.mm.default(" in code
    assert not found.isfinite().any()


@pytest.mark.slow
@needs_compiler
def test_what_is_written_beside_d_comes_by_the_operator() -> None:
    def both(x: Any, w: Any) -> Any:
        aux = x.new_zeros((16, 64))
        return gemmill.matmul(x, w, epilogue="aux.bf16[m, n] = acc; d = relu(acc)", aux=aux), aux

    x, w = operands()
    (d, aux), (code,) = run_and_get_code(torch.compile(both, fullgraph=True), x, w)
    assert "torch.ops.gemmill.epilogue_out" in code
    torch.testing.assert_close(aux, x @ w, rtol=2**-6, atol=2**-6)
    torch.testing.assert_close(d, torch.relu(aux))


@pytest.mark.slow
@needs_compiler
def test_inductor_compiles_gradients_and_rows_that_vary() -> None:
    def loss(x: Any, w: Any, v: Any) -> Any:
        return (torch.tanh(x @ w) @ v + x).square().sum()

    with passes():
        compiled = torch.compile(loss, dynamic=True)
        for rows in (6, 9):
            leaves = [torch.randn(shape, dtype=torch.bfloat16) for shape in ((2, rows, 32), (32, 64), (64, 32))]
            grads = []
            for call in (compiled, loss):
                own = [(x / 4).requires_grad_() for x in leaves]
                call(*own).backward()
                grads.append([x.grad for x in own])
            for mine, theirs in zip(*grads, strict=True):
                torch.testing.assert_close(mine, theirs, rtol=2**-5, atol=float(theirs.abs().max()) * 2**-6)


def products(x: Any, w: Any) -> Any:
    batch = x[None], w[None]
    return torch.mm(x, w), torch.addmm(w[0], x, w), torch.bmm(*batch), torch.baddbmm(torch.bmm(*batch), *batch)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("tunes", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.bfloat16])
def test_inductor_times_nothing_that_it_does_not_time_without_gemmill(dtype: Any, tunes: bool, capfd: Any) -> None:
    """Of products that gemmill leaves alone, the code is also the same. ``mm`` in bf16 is timed by max_autotune only.
    ``ATEN`` alone leaves Inductor one choice, so that it times no product of its own accord."""
    x, w = operands(dtype)
    codes, timed = [], []
    for on in (False, True):
        torch.compiler.reset()
        counters.clear()
        options = {"max_autotune": tunes, "max_autotune_gemm_backends": "ATEN"}
        with (
            passes() if on else nullcontext(),
            config.patch(fx_graph_cache=False, autotune_local_cache=False, **options),
        ):
            _, (code,) = run_and_get_code(torch.compile(products), x, w)
        codes.append(code.partition("\n")[2])  # the first line has the number of the compilation
        timed.append(counters["inductor"]["select_algorithm_autotune"])
    taken = dtype == torch.bfloat16
    assert (codes[0] == codes[1]) != taken
    assert timed == [0, int(tunes and taken)]
    assert ("AUTOTUNE" in capfd.readouterr().err) == (tunes and taken)


@pytest.mark.slow
@needs_compiler
def test_programs_of_a_cache_call_the_choice_in_a_process_that_compiles_nothing(tmp_path: Path) -> None:
    code = """if True:
        import torch, gemmill.torch
        from torch._inductor import config
        from torch._dynamo.utils import counters
        gemmill.torch.run_on_cpu()
        x, w = torch.ones(16, 32, dtype=torch.bfloat16), torch.ones(32, 64, dtype=torch.bfloat16)
        with gemmill.torch.enabled(), config.patch(max_autotune=True, max_autotune_gemm_backends=""):
            assert (torch.compile(torch.mm)(x, w) == 32).all()
        print(counters["inductor"]["fxgraph_cache_hit"])
    """
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "TORCHINDUCTOR_FX_GRAPH_CACHE": "1"}
    for hits in ("0", "1"):
        found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        assert found.stdout.strip() == hits, found.stderr


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_max_autotune_times_the_operator(dtype: Any, capfd: Any) -> None:
    """A plain product is left to it, if gemmill supports it; one with something behind is not."""
    x, w = operands(dtype)
    with passes(), config.patch(max_autotune=True, fx_graph_cache=False, autotune_local_cache=False):
        found, _ = run_and_get_code(torch.compile(lambda x, w: torch.mm(x, w)), x, w)
        torch.testing.assert_close(found, x @ w, rtol=2**-6, atol=2**-6)
        assert ("gemmill_mm" in capfd.readouterr().err) == (dtype == torch.bfloat16)
        _, (code,) = run_and_get_code(torch.compile(layer), x, w)
        assert ("d = gelu(acc) + 1" in code) == (dtype == torch.bfloat16)


@pytest.mark.slow
@needs_compiler
def test_the_choice_is_taken_where_it_is_the_fastest() -> None:
    """As it is where there is no other."""
    x, w = operands()
    with passes(), config.patch(max_autotune=True, max_autotune_gemm_backends="", fx_graph_cache=False):
        found, (code,) = run_and_get_code(torch.compile(lambda x, w: torch.mm(x, w)), x, w)
    assert "gemmill_mm" in code
    torch.testing.assert_close(found, x @ w, rtol=2**-6, atol=2**-6)


PACKAGE = """
import sys, torch
if sys.argv[2] == "with":
    import gemmill.torch
    gemmill.torch.run_on_cpu()
package = torch._inductor.aoti_load_package(sys.argv[1])
torch.manual_seed(0)
x, w = torch.randn(9, 32), torch.randn(32, 64)
torch.testing.assert_close(package(x, w), (torch.relu(x @ w) + 1) @ w.mT)
print("right")
"""


@pytest.mark.heavy
@needs_compiler
def test_a_package_of_aot_inductor_runs_where_the_operators_are(tmp_path: Path) -> None:
    """Compiled ahead with the pass, for any number of rows, and loaded in another process."""

    class Module(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any, w: Any) -> Any:
            return gemmill.matmul(torch.relu(x @ w) + 1, w.mT)

    torch.backends.cuda.matmul.fp32_precision = "tf32"
    example = torch.randn(16, 32), torch.randn(32, 64)
    exported = torch.export.export(Module(), example, dynamic_shapes=({0: torch.export.Dim("rows")}, None))
    with passes():
        package = torch._inductor.aoti_compile_and_package(
            exported.run_decompositions(), package_path=str(tmp_path / "package.pt2")
        )
    torch.backends.cuda.matmul.fp32_precision = "none"
    (tmp_path / "run.py").write_text(PACKAGE)
    found = {
        way: subprocess.run([sys.executable, tmp_path / "run.py", package, way], capture_output=True, text=True)
        for way in ("with", "without")
    }
    assert found["with"].stdout.strip() == "right", found["with"].stderr
    assert "Could not find schema for gemmill::epilogue" in found["without"].stderr
