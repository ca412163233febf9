"""PyTorch's own operators on our kernels: each against the original, by how far both are from float64."""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

import gemmill.torch  # noqa: E402
from gemmill.runtime.api import caches  # noqa: E402
from gemmill.runtime.torch.takeover import overrides  # noqa: E402
from gemmill.runtime.torch.takeover.aten import Arguments, Call, Unserved  # noqa: E402
from gemmill.runtime.torch.takeover.kernel_backend import gemm_call  # noqa: E402

BF16, F16, F32, FP8 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn
M, N, K = 64, 96, 128


def rand(*shape: int, dtype: Any = BF16) -> Any:
    generator = torch.Generator("cuda").manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, device="cuda").to(dtype)


def laid(rows: int, columns: int, layout: str, dtype: Any = BF16) -> Any:
    """A matrix whose rows ("n") or columns ("t") are contiguous."""
    return rand(rows, columns, dtype=dtype) if layout == "n" else rand(columns, rows, dtype=dtype).mT


def positive(*shape: int) -> Any:
    return rand(*shape, dtype=F32).abs() + 0.5


def ends(*values: int) -> Any:
    return torch.tensor(values, dtype=torch.int32, device="cuda")


def x() -> Any:
    return rand(M, K)


def w() -> Any:
    return rand(N, K)


def v() -> Any:
    return rand(N)


def batch() -> tuple[Any, Any]:
    return rand(3, M, K), rand(3, N, K).mT


def fp8() -> tuple[Any, Any]:
    return rand(M, 256, dtype=FP8), rand(N, 256, dtype=FP8).mT


linear = torch.nn.functional.linear


def product(of_a: str, of_b: str) -> Any:
    return torch.mm(laid(M, K, of_a), laid(K, N, of_b))


SERVED: dict[str, tuple[str, Callable[[], Any]]] = {
    **{f"mm {i}{j}": ("mm", functools.partial(product, i, j)) for i in "nt" for j in "nt"},
    "mm f16": ("mm", lambda: torch.mm(laid(M, K, "n", F16), laid(K, N, "t", F16))),
    "mm of one row": ("mm", lambda: torch.mm(rand(1, K), w().mT)),
    "mm of a strided view": ("mm", lambda: torch.mm(rand(M, 2 * K)[:, :K], w().mT)),
    "mm.out": ("mm.out", lambda: torch.mm(x(), w().mT, out=torch.empty(M, N, device="cuda", dtype=BF16))),
    "mm.dtype": ("mm.dtype", lambda: torch.mm(x(), w().mT, out_dtype=F32)),
    "mm.dtype_out": (
        "mm.dtype_out",
        lambda: torch.mm(x(), w().mT, out_dtype=F32, out=torch.empty(M, N, device="cuda", dtype=F32)),
    ),
    "addmm": ("addmm", lambda: torch.addmm(v(), x(), w().mT)),
    "addmm by factors": ("addmm", lambda: torch.addmm(v(), x(), w().mT, beta=0.5, alpha=2)),
    "addmm of an expanded vector": ("addmm", lambda: torch.addmm(v().expand(M, N), x(), w().mT)),
    "addmm of a matrix": ("addmm", lambda: torch.addmm(rand(M, N), x(), w().mT, beta=2)),
    "addmm_": ("addmm_", lambda: rand(M, N).addmm_(x(), w().mT, beta=2)),
    "bmm": ("bmm", lambda: torch.bmm(*batch())),
    "baddbmm": ("baddbmm", lambda: torch.baddbmm(rand(3, M, N), *batch())),
    "linear": ("mm", lambda: linear(rand(2, M, K), w())),
    "linear with a bias": ("addmm", lambda: linear(rand(2, M, K), w(), v())),
    "linear with a bias, f16": (
        "addmm",
        lambda: linear(rand(M, K, dtype=F16), rand(N, K, dtype=F16), rand(N, dtype=F16)),
    ),
    "attention": ("bmm", lambda: rand(2, 64, 4, 32).transpose(1, 2) @ rand(2, 64, 4, 32).transpose(1, 2).mT),
    "groups of rows": ("_grouped_mm", lambda: torch._grouped_mm(rand(M, K), rand(3, N, K).mT, offs=ends(16, 16, M))),
    "groups along K": ("_grouped_mm", lambda: torch._grouped_mm(rand(K, M).mT, rand(K, N), offs=ends(32, 64, K))),
    "a batch of groups": ("_grouped_mm", lambda: torch._grouped_mm(*batch())),
}
"""Calls that kernels are made for: the operator that serves them, and the call."""


def scaled(form: str, bias: Any = None, dtype: Any = BF16) -> Any:
    a, b = fp8()
    scales = {
        "all": lambda: (positive(1).reshape(()), positive(1).reshape(())),
        "rows": lambda: (positive(M, 1), positive(1, N)),
        "blocks": lambda: (positive(2, M).mT, positive(1, 2).mT),
    }[form]()
    return torch._scaled_mm(a, b, *scales, bias=bias, out_dtype=dtype)


SCALED: dict[str, Callable[[], Any]] = {
    "of all": lambda: scaled("all"),
    "of all, f32": lambda: scaled("all", dtype=F32),
    "of all, with a bias": lambda: scaled("all", v()),
    "of rows and columns": lambda: scaled("rows"),
    "of rows and columns, with a bias": lambda: scaled("rows", v()),
    "of blocks": lambda: scaled("blocks"),
}
ODD: dict[str, Callable[[], Any]] = {
    "odd extents": lambda: torch.mm(rand(33, 127), rand(127, 65)),
    "odd extents and a bias": lambda: linear(rand(33, 127), rand(65, 127), rand(65)),
    "an odd address": lambda: torch.mm(rand(M * K + 1)[1:].view(M, K), w().mT),
    "a stride along both": lambda: torch.mm(rand(M, 2 * K)[:, ::2], w().mT),
    "expanded": lambda: torch.mm(rand(1, K).expand(M, K), w().mT),
    "odd batch": lambda: torch.bmm(rand(5, 7, 33), rand(5, 33, 9)),
    "no rows": lambda: torch.mm(rand(0, K), w().mT),
    "no K": lambda: torch.addmm(v(), rand(M, 0), rand(0, N)),
    "groups along N": lambda: torch._grouped_mm(rand(3, M, K), rand(N, K).mT, offs=ends(32, 32, N)),
    "f32": lambda: torch.mm(rand(M, K, dtype=F32), rand(K, N, dtype=F32)),
    "f64": lambda: torch.mm(rand(M, K).double(), rand(K, N).double()),
    "complex": lambda: torch.mm(rand(M, K).to(torch.complex64), rand(K, N).to(torch.complex64)),
    "C along N": lambda: torch.addmm(rand(M, 1), x(), w().mT),
    "out that grows": lambda: torch.mm(x(), w().mT, out=torch.empty(0, device="cuda", dtype=BF16)),
}
"""Calls that may or may not be served, and are right all the same."""


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """All kernels, in parallel. By the takeover of `enabled()`: another's would lie over it, if threads of other tests
    have kept both in the dispatcher, and pass all calls on."""
    problems = []

    def collect(call: Call, given: Arguments, names: list[str]) -> Any:
        out = (
            given[call.out]
            if call.out
            else torch.empty_strided(call.shape, call.strides, dtype=call.dtype, device="cuda")
        )
        problems.append(gemm_call(call, given, out).problem)
        raise Unserved("collected", always=False)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overrides._CUDA, "backend", collect)
        with overrides._CUDA.within():
            for _, call in SERVED.values():
                call()
            for call in (*SCALED.values(), *ODD.values()):
                attempt(call)
            model_step()
    caches.default_registry().warm(problems)


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    gemmill.torch.reset_stats()
    yield
    torch.cuda.synchronize()  # the context lives


def served() -> dict[str, int]:
    found = gemmill.torch.stats().served
    return {name: sum(line.calls for line in lines.values()) for name, lines in found.items()}


def same_layout(found: Any, wanted: Any) -> bool:
    of_each = [(y.shape, y.stride(), y.dtype, y.device) for y in (found, wanted)]
    return bool(of_each[0] == of_each[1])


def close(found: Any, wanted: Any) -> None:
    """Both round float32 sums to the same dtype: elements differ by a last bit at most, or where sums cancel."""
    most = wanted.abs().max().item() if wanted.numel() else 1.0
    tolerance = 2.0**-7 if wanted.dtype == BF16 else 2.0**-10
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance * most / 8)


@pytest.mark.parametrize("name", SERVED)
def test_served_calls_give_what_pytorch_gives(name: str) -> None:
    operator, call = SERVED[name]
    wanted = call()
    with gemmill.torch.enabled():
        for _ in range(3):
            found = call()
            assert same_layout(found, wanted)
            close(found, wanted)
    assert served() == {operator: 3}, gemmill.torch.stats()


def attempt(call: Callable[[], Any]) -> Any:
    """What PyTorch's kernel gives; None where this version has none of the form."""
    try:
        return call()
    except (RuntimeError, ValueError, NotImplementedError):
        return None


@pytest.mark.parametrize("form", SCALED)
def test_scaled_products(form: str) -> None:
    wanted = attempt(SCALED[form])
    with gemmill.torch.enabled():
        found = [SCALED[form]() for _ in range(2)]
    assert served() == {"_scaled_mm": 2}, gemmill.torch.stats()
    for each in found:
        if wanted is not None:
            assert same_layout(each, wanted)
            torch.testing.assert_close(each, wanted, rtol=2**-6, atol=2**-6 * wanted.abs().max().item())


def test_scales_of_blocks_against_float64() -> None:
    a, b, a_scale, b_scale = *fp8(), positive(2, M).mT, positive(1, 2).mT
    with gemmill.torch.enabled():
        found = torch._scaled_mm(a, b, a_scale, b_scale, out_dtype=BF16)
    of_a, of_b = a_scale.double().repeat_interleave(128, 1), b_scale.double().repeat_interleave(128, 0)
    close(found, ((a.double() * of_a) @ (b.double() * of_b)).to(BF16))


@pytest.mark.parametrize("name", ODD)
def test_odd_calls_are_right(name: str) -> None:
    wanted = ODD[name]()
    with gemmill.torch.enabled():
        for _ in range(2):
            found = ODD[name]()
            assert same_layout(found, wanted)
            close(*map(torch.view_as_real, (found, wanted)) if wanted.is_complex() else (found, wanted))


def test_float32_is_served_where_tf32_is_allowed() -> None:
    a, b = rand(M, K, dtype=F32), rand(N, K, dtype=F32).mT
    exact = a.double() @ b.double()
    before = torch.get_float32_matmul_precision()
    try:
        with gemmill.torch.enabled():
            full = torch.mm(a, b)
            assert not served()
            torch.set_float32_matmul_precision("high")
            rounded = torch.mm(a, b)
            assert served() == {"mm": 1}
    finally:
        torch.set_float32_matmul_precision(before)
    assert (full - exact).abs().max() < 2**-13 < (rounded - exact).abs().max() < 2**-3


def test_float32_has_the_precision_of_the_block() -> None:
    """Forward and backward, at odd addresses, and in compiled programs."""
    x, w, v = rand(1024, 2048, dtype=F32), rand(1024, 2048, dtype=F32), rand(1024, dtype=F32)
    odd = rand(1024 * 2048 + 1, dtype=F32)[1:].view(1024, 2048)

    def step(x: Any, w: Any, v: Any) -> list[Any]:
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        d = linear(x, w, v)
        d.square().sum().backward()
        return [d, x.grad, w.grad]

    wanted = [step(*(y.double() for y in (z, w, v))) for z in (x, odd)]
    with gemmill.torch.enabled(f32="bf16x6"):
        found = [step(z, w, v) for z in (x, odd)]
        compiled = torch.compile(lambda x: torch.nn.functional.silu(linear(x, w, v)))(x)
    assert served() == {"addmm": 2, "mm": 4}
    assert not gemmill.torch.stats().fallback
    found[0].append(compiled)
    wanted[0].append(torch.nn.functional.silu(wanted[0][0]))
    for mine, exact in zip((*found[0], *found[1]), (*wanted[0], *wanted[1]), strict=True):
        assert (mine - exact).abs().max() <= 2.0**-17 * exact.abs().max()  # those of tf32 would be 2^-11


def model_step() -> list[Any]:
    """Gradients of a model, of its input and of its parameters."""
    torch.manual_seed(0)
    layers = torch.nn.Linear(K, 2 * K), torch.nn.GELU(), torch.nn.Linear(2 * K, N, bias=False)
    model = torch.nn.Sequential(*layers).to("cuda", BF16)
    operand = rand(2, M, K).requires_grad_()
    model(operand).square().mean().backward()
    return [operand.grad, *(parameter.grad for parameter in model.parameters())]


def test_gradients_of_modules() -> None:
    wanted = model_step()
    with gemmill.torch.enabled():
        for _ in range(2):
            for mine, theirs in zip(model_step(), wanted, strict=True):
                torch.testing.assert_close(mine, theirs, rtol=2**-5, atol=2**-5 * theirs.abs().max().item())
    assert served() == {"addmm": 2, "mm": 10}, gemmill.torch.stats()


def test_compiled_programs_call_what_is_overridden() -> None:
    torch.compiler.reset()
    weight, bias = w(), v()
    compiled = torch.compile(lambda operand: linear(linear(operand, weight, bias).relu(), weight.mT), fullgraph=True)
    wanted = compiled(x())
    with gemmill.torch.enabled():
        found = [compiled(x()) for _ in range(2)]
    for each in found:
        close(each, wanted)
    assert sum(served().values()) == 4, gemmill.torch.stats()  # Inductor may take a bias out of addmm


def test_a_warm_layer_is_captured() -> None:
    weight, bias, operand = w(), v(), x()
    with gemmill.torch.enabled(), torch.no_grad():
        linear(operand, weight, bias)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = linear(operand, weight, bias)
        operand.copy_(2 * operand)
        wanted = linear(operand, weight, bias)
    for _ in range(2):
        found.zero_()
        graph.replay()
        assert torch.equal(found, wanted)
    assert served() == {"addmm": 3}


def test_what_is_first_met_in_a_capture_is_left_to_pytorch() -> None:
    """And is served afterwards."""
    a, b = rand(48, 80), rand(112, 80).mT
    wanted = torch.mm(a, b)  # which loads cuBLAS
    caches.of_registry(caches.default_registry()).kernels.clear()  # as in a process that has loaded none
    caches.forget_calls()
    graph = torch.cuda.CUDAGraph()
    with gemmill.torch.enabled():
        with torch.cuda.graph(graph):
            found = torch.mm(a, b)
        graph.replay()
        close(found, wanted)
        assert not served()
        assert "new problem during a CUDA graph capture" in gemmill.torch.stats().fallback["mm"]
        close(torch.mm(a, b), wanted)
        assert served() == {"mm": 1}


def test_streams_and_threads() -> None:
    weight, wanted = w(), linear(x(), w())
    wrong: list[int] = []

    def work() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                with gemmill.torch.enabled():
                    found = linear(x(), weight)
                    wrong.extend([1] if (found - wanted).abs().max() > 0.5 else [])

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work) for _ in range(4)]
    with gemmill.torch.enabled():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong
    assert served()


def into_itself(square: Any) -> Any:
    return torch.mm(square, square, out=square)


MISUSE: dict[str, Callable[[], Any]] = {
    "shapes": lambda: torch.mm(x(), w()),
    "dtypes": lambda: torch.mm(x(), w().mT.half()),
    "devices": lambda: torch.mm(x(), w().mT.cpu()),
    "a bias elsewhere": lambda: torch.addmm(v().cpu(), x(), w().mT),
    "ranks": lambda: torch.bmm(x(), w().mT),
    "out of another dtype": lambda: torch.mm(x(), w().mT, out=torch.empty(M, N, device="cuda")),
    "out over an operand": lambda: into_itself(rand(64, 64)),
    "scales": lambda: torch._scaled_mm(*fp8(), positive(3), positive(5), out_dtype=BF16),
    "integers": lambda: torch.mm(x().int(), w().mT.int()),
}


@pytest.mark.parametrize("name", MISUSE)
def test_after_misuse_the_context_lives(name: str) -> None:
    def complaint() -> Any:
        try:
            MISUSE[name]()
        except (RuntimeError, ValueError, IndexError) as error:
            return type(error)
        return None

    before = complaint()
    with gemmill.torch.enabled():
        assert [complaint() for _ in range(2)] == [before] * 2
        torch.cuda.synchronize()
        close(torch.mm(x(), w().mT), (x().double() @ w().mT.double()).to(BF16))


@pytest.mark.parametrize("weights", ["e4m3_rows", "e4m3_blocks", "u4_g128"])
def test_layers(weights: str) -> None:
    """Eagerly, captured, and one of them compiled."""
    torch.manual_seed(0)
    plain = torch.nn.Linear(512, 256).to("cuda", BF16)
    mine, operand = gemmill.torch.Linear.from_linear(plain, weights, "silu"), rand(3, 32, 512)
    with torch.no_grad():
        wanted = torch.nn.functional.silu(copy.deepcopy(plain).double()(operand.double()))
        found = [mine(operand)]
        if weights == "e4m3_rows":
            found.append(torch.compile(mine, fullgraph=True)(operand))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found.append(mine(operand))
        graph.replay()
    for each in found:
        assert (each.double() - wanted).norm() < {"u4_g128": 0.12}.get(weights, 0.05) * wanted.norm()


@pytest.mark.parametrize("weights", ["bf16", "e4m3_rows", "u4_g128"])
def test_converted_encoders_without_gradients(weights: str) -> None:
    """PyTorch would pass the weights to a fused operator; it must call the layers, eagerly and compiled."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(512, 8, 1024, batch_first=True, device="cuda", dtype=BF16)
    plain = torch.nn.TransformerEncoder(layer, 2).eval()
    with pytest.warns(UserWarning, match="self_attn.out_proj"):
        mine = gemmill.torch.convert(copy.deepcopy(plain), weights)
    with torch.inference_mode():
        operand = rand(2, 32, 512)
        wanted = plain(operand).double()
        for model in (mine, torch.compile(mine)):
            assert (model(operand).double() - wanted).norm() < {"u4_g128": 0.12}.get(weights, 0.05) * wanted.norm()


def test_a_quantised_weight_is_read_and_written() -> None:
    plain, operand = torch.nn.Linear(512, 256).to("cuda", BF16), rand(32, 512)
    mine = gemmill.torch.Linear.from_linear(plain, "e4m3_rows")
    with torch.no_grad():
        found = torch.nn.functional.linear(operand, mine.weight, mine.bias), gemmill.matmul(operand, mine.weight.mT)
        for each, bias in zip(found, (plain.bias, 0), strict=True):
            wanted = operand.double() @ plain.weight.double().mT + bias
            assert (each.double() - wanted).norm() < 0.05 * wanted.norm()
        mine.weight.data += plain.weight
        wanted = 2 * operand.double() @ plain.weight.double().mT + plain.bias
        assert (mine(operand).double() - wanted).norm() < 0.05 * wanted.norm()


def at_an_odd_address(a: Any) -> Any:
    made = torch.empty(a.numel() + 1, dtype=a.dtype, device="cuda")[1:].view(a.shape)
    return made.copy_(a)


@pytest.mark.parametrize("dtype", [BF16, F16, F32, torch.float64])
def test_bits_do_not_depend_on_rows_layouts_and_addresses(dtype: Any) -> None:
    """Also where PyTorch computes a call without ``bits``."""
    a, b = rand(M, K, dtype=dtype), rand(K, N, dtype=dtype)
    spread = rand(M, 2 * K, dtype=dtype)[:, ::2].copy_(a)
    with gemmill.torch.enabled(bits="invariant"):
        wanted = torch.mm(a, b)
        for rows in (1, 5):
            assert torch.equal(torch.mm(a[:rows], b), wanted[:rows])
        for other in (at_an_odd_address(a), spread, a.mT.contiguous().mT):
            assert torch.equal(torch.mm(other, b), wanted)
            assert torch.equal(torch.mm(other, at_an_odd_address(b)), wanted)
            assert torch.equal(torch.bmm(other.expand(3, M, K), b.expand(3, K, N))[1], wanted)
    assert not gemmill.torch.stats().fallback


def test_gradients_of_inputs_have_the_bits_of_their_rows() -> None:
    weight, inputs, of_d = rand(N, K), rand(M, K), rand(M, N)

    def gradient(rows: int) -> Any:
        leaf = inputs[:rows].clone().requires_grad_()
        linear(leaf, weight).backward(of_d[:rows])
        return leaf.grad

    with gemmill.torch.enabled(bits="invariant"):
        whole = gradient(M)
        for rows in (1, 7):
            assert torch.equal(gradient(rows), whole[:rows])


def test_what_gemmill_does_not_compute_is_an_error_where_bits_hold() -> None:
    with gemmill.torch.enabled(bits="invariant"):
        for call in (ODD["groups along N"], lambda: x() @ rand(K)):
            with pytest.raises(gemmill.UnsupportedProblemError, match="PyTorch may sum in another order"):
                call()
        for name in ("no rows", "no K"):
            ODD[name]()
