"""What options of a call promise, held bit for bit: bits, deterministic, autotune."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.gpu.harness import product, torch

import gemmill
from gemmill.library.errors import CaptureError
from gemmill.runtime.registry import Registry

pytestmark = pytest.mark.gpu

ROWS = (1, 7, 64, 1000)
MOST = 4096


def normal(*shape: int, dtype: str = "bfloat16") -> Any:
    return torch.randn(shape, device="cuda").to(getattr(torch, dtype))


def bits(x: Any) -> Any:
    return x.contiguous().view(torch.uint8)


def held_for_all_rows(a: Any, b: Any, **options: Any) -> None:
    """The first rows of a product have the bits of the product of the first rows, and single rows too."""
    options["bits"] = "invariant"
    whole = gemmill.matmul(a, b, **options)
    assert whole.float().isfinite().all()
    for m in ROWS:
        assert torch.equal(bits(gemmill.matmul(a[:m], b, **options)), bits(whole[:m])), f"M = {m}"
    for row in (0, 3, 1001):
        one = a[row].clone()
        assert torch.equal(bits(gemmill.matmul(one, b, **options)), bits(whole[row])), f"row {row}"
    plans = [gemmill.plan(a[:m], b, **options) for m in (*ROWS, MOST)]
    assert len({plan.choice.arithmetic for plan in plans if plan.choice}) == 1


@pytest.mark.parametrize(("n", "k"), [(512, 7168), (4096, 1024), (1000, 1001), (33, 256)])
@pytest.mark.parametrize("b_major", ["k", "n"])
def test_rows_in_bf16_do_not_depend_on_m(n: int, k: int, b_major: str) -> None:
    b = normal(n, k).T if b_major == "k" else normal(k, n)
    a = normal(MOST, k)
    held_for_all_rows(a, b)
    kernels = {gemmill.plan(a[:m], b).kernel for m in (*ROWS, MOST)}
    assert len(kernels) > 1, "without the option kernels differ: the test shows something"


@pytest.mark.parametrize("options", [{}, {"fast_accumulation": False}])
def test_rows_in_e4m3_do_not_depend_on_m(options: dict[str, Any]) -> None:
    held_for_all_rows(normal(MOST, 2048, dtype="float8_e4m3fn"), normal(768, 2048, dtype="float8_e4m3fn").T, **options)


def test_rows_in_scaled_blocks_do_not_depend_on_m() -> None:
    a, b = normal(MOST, 1024, dtype="float8_e4m3fn"), normal(512, 1024, dtype="float8_e4m3fn").T
    a_scale, b_scale = torch.rand(MOST, 8, device="cuda"), torch.rand(8, 4, device="cuda")
    options: dict[str, Any] = {"b_scale": b_scale, "bits": "invariant"}
    whole = gemmill.matmul(a, b, a_scale=a_scale, **options)
    for m in ROWS:
        rows = gemmill.matmul(a[:m], b, a_scale=a_scale[:m], **options)
        assert torch.equal(bits(rows), bits(whole[:m]))


def test_rows_with_scales_of_rows_and_columns_do_not_depend_on_m() -> None:
    """Of few rows, kernels run the transposed problem, in which rows are columns."""
    a, b = normal(MOST, 1024, dtype="float8_e4m3fn"), normal(512, 1024, dtype="float8_e4m3fn").T
    a_scale, b_scale = torch.rand(MOST, 1, device="cuda"), torch.rand(1, 512, device="cuda")
    options: dict[str, Any] = {"b_scale": b_scale, "alpha": 0.7, "out_dtype": "f32", "bits": "invariant"}
    whole = gemmill.matmul(a, b, a_scale=a_scale, **options)
    for m in ROWS:
        assert torch.equal(bits(gemmill.matmul(a[:m], b, a_scale=a_scale[:m], **options)), bits(whole[:m])), f"M = {m}"
    whole = gemmill.matmul(a, b, a_scale=a_scale[:1], **options)
    assert torch.equal(bits(gemmill.matmul(a[:1], b, a_scale=a_scale[:1], **options)), bits(whole[:1])), "one for all"


@pytest.mark.parametrize("tf32", [False, True])
def test_rows_in_f32_do_not_depend_on_m(tf32: bool) -> None:
    held_for_all_rows(normal(MOST, 1024, dtype="float32"), normal(512, 1024, dtype="float32").T, tf32=tf32)


def test_rows_times_narrow_weights_do_not_depend_on_m() -> None:
    packed, scale = (
        torch.randint(0, 256, (512, 512), device="cuda").byte(),
        torch.rand(8, 512, device="cuda").bfloat16(),
    )
    held_for_all_rows(normal(MOST, 1024), packed.T, b_dtype="u4", b_scale=scale)
    held_for_all_rows(normal(MOST, 512), packed.view(torch.int8).T)


def test_rows_with_an_epilogue_do_not_depend_on_m() -> None:
    a, b, bias = normal(MOST, 1024), normal(1024, 520), normal(520)
    residual = normal(MOST, 520)
    text = "d = gelu(acc + bias[n]) + residual[m, n]; top[m] = max(d)"

    def call(m: int) -> tuple[Any, Any]:
        top = torch.empty(m, device="cuda")
        options: dict[str, Any] = {"bias": bias, "residual": residual[:m], "top": top, "bits": "invariant"}
        return gemmill.matmul(a[:m], b, epilogue=text, **options), top

    whole, top = call(MOST)
    for m in ROWS:
        rows, tops = call(m)
        assert torch.equal(bits(rows), bits(whole[:m]))
        assert torch.equal(tops, top[:m])


def test_a_matrix_does_not_depend_on_its_batch() -> None:
    a, b, c = normal(5, 100, 1024), normal(5, 1024, 512), normal(5, 100, 512)
    options: dict[str, Any] = {"beta": 0.5, "bits": "invariant"}
    whole = gemmill.matmul(a, b, c=c, **options)
    for i in (0, 4):
        assert torch.equal(bits(gemmill.matmul(a[i], b[i], c=c[i], **options)), bits(whole[i]))
        assert torch.equal(bits(gemmill.matmul(a[i, :7], b[i], c=c[i, :7], **options)), bits(whole[i, :7]))
    shared = gemmill.matmul(a, b[0], c=c, **options)
    assert torch.equal(bits(shared[0]), bits(whole[0]))


def test_a_group_does_not_depend_on_the_others() -> None:
    a, weights = normal(1000, 512), normal(3, 768, 512).mT

    def call(*ends: int) -> Any:
        offsets = torch.tensor(ends, dtype=torch.int32, device="cuda")
        return gemmill.grouped_matmul(a[: ends[-1]], weights, offsets, bits="invariant")

    whole = call(300, 300, 1000)
    assert torch.equal(bits(call(7, 8, 9)[:7]), bits(whole[:7]))
    assert torch.equal(bits(call(300, 300, 301)), bits(whole[:301]))


def test_a_group_along_k_has_the_bits_of_one_matrix() -> None:
    a, b, ends = normal(1000, 512).T, normal(1000, 768), (100, 100, 417, 1000)
    offsets = torch.tensor(ends, dtype=torch.int32, device="cuda")
    whole = gemmill.grouped_matmul(a, b, offsets, bits="invariant")
    for i, (begin, end) in enumerate(pairwise((0, *ends))):
        assert torch.equal(bits(gemmill.matmul(a[:, begin:end], b[begin:end], bits="invariant")), bits(whole[i]))


def test_deterministic_calls_repeat_bit_for_bit() -> None:
    a, b = normal(300, 7168), normal(7168, 600)
    top = torch.empty(300, device="cuda")
    wanted = gemmill.matmul(a, b, deterministic=True, epilogue="d = acc; top[m] = max(d)", top=top).clone()
    highest = top.clone()
    for _ in range(50):
        again = gemmill.matmul(a, b, deterministic=True, epilogue="d = acc; top[m] = max(d)", top=top)
        assert torch.equal(bits(again), bits(wanted))
        assert torch.equal(top, highest)


# Autotuning.

SIZE = (512, 768, 256)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    """A registry with a store of its own, so that nothing is known beforehand."""
    return Registry(store=tmp_path_factory.mktemp("store"))


def test_it_is_one_of_the_best_and_the_next_process_knows_it(tuned: Registry) -> None:
    a, b, wanted = product(*SIZE)
    with gemmill.plan(a, b, autotune=4, registry=tuned) as plan:
        candidates = tuned.candidates(plan.problem, 4)
        assert plan.choice is not None
        assert plan.choice.reason.startswith("autotuned: the fastest of 4 kernels timed")
        assert {plan.choice.kernel, *(kernel for kernel, _ in plan.choice.runners_up)} == {c.kernel for c in candidates}
        assert 1 < plan.choice.predicted_us < 100
        plan()
        assert torch.equal(plan.out, wanted)
        chosen = plan.choice
    assert torch.equal(gemmill.matmul(a, b, autotune=4, registry=tuned), wanted)
    assert torch.equal(gemmill.matmul(a, b, autotune=4, registry=tuned), wanted)
    answers = {path: path.stat().st_mtime_ns for path in (tuned.store.path / "autotuned").iterdir()}
    code = (
        "import gemmill, sys; from tests.gpu.harness import product; a, b, _ = product(512, 768, 256)\n"
        "registry = gemmill.Registry(store=sys.argv[1])\n"
        "print(gemmill.plan(a, b, autotune=4, registry=registry).choice.reason)"
    )
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(root), *filter(None, sys.path)))}
    command = [sys.executable, "-c", code, str(tuned.store.path)]
    other = subprocess.run(command, check=True, capture_output=True, text=True, cwd=root, env=environment)
    assert other.stdout.strip() == chosen.reason, "to the tenth of a microsecond: it was read, not measured"
    assert {path: path.stat().st_mtime_ns for path in (tuned.store.path / "autotuned").iterdir()} == answers


def test_timing_leaves_what_a_call_writes_alone(tuned: Registry) -> None:
    a, b, wanted = product(*SIZE)
    c = torch.randint(-2, 3, wanted.shape, device="cuda").bfloat16()
    out = c.clone()
    gemmill.matmul(a, b, out=out, c=out, beta=0.5, autotune=3, registry=tuned)
    assert torch.equal(out, ((a.float() @ b.float()) + c.float() / 2).bfloat16()), "c was added once"
    nan = float("nan")
    out, aux, top = (torch.full_like(x, nan) for x in (wanted, wanted, wanted[:, 0].float()))
    text = "aux = acc; d = relu(acc); top[m] = max(d)"
    with gemmill.plan(a, b, out=out, epilogue=text, aux=aux, top=top, autotune=3, registry=tuned) as plan:
        torch.cuda.synchronize()
        assert all(x.isnan().all() for x in (out, aux, top))
        plan()
    assert torch.equal(aux, wanted)
    assert torch.equal(out, wanted.relu())
    assert torch.equal(top, (a.float() @ b.float()).relu().amax(1))


@pytest.mark.parametrize("layout", ["m-major", "padded", "odd address", "batch"])
def test_outputs_of_any_layout(layout: str, tuned: Registry) -> None:
    a, b, wanted = product(*SIZE)
    if layout == "batch":
        a, b, wanted = a[None].expand(3, -1, -1), b[None].repeat(3, 1, 1), wanted[None].repeat(3, 1, 1)
    memory = torch.full((2 * wanted.numel() + 4096,), float("nan"), device="cuda", dtype=torch.bfloat16)
    offset, strides = {
        "m-major": (0, (1, 512)),
        "padded": (0, (1024, 1)),
        "odd address": (1, (769, 1)),
        "batch": (8, (600 * 1024, 1024, 1)),
    }[layout]
    out = memory.as_strided(wanted.shape, strides, offset)
    gemmill.matmul(a, b, out=out, autotune=2, registry=tuned)
    assert torch.equal(out, wanted)
    assert int(memory.isnan().sum()) == memory.numel() - wanted.numel(), "memory around out was written"


def test_groups_are_tuned_too(tuned: Registry) -> None:
    a, _, _ = product(300, 64, 256)
    weights = torch.randint(-2, 3, (3, 512, 256), device="cuda").bfloat16().mT
    offsets = torch.tensor([100, 100, 300], dtype=torch.int32, device="cuda")
    found = gemmill.grouped_matmul(a, weights, offsets, autotune=2, registry=tuned)
    assert torch.equal(found, torch.cat([a[:100] @ weights[0], a[100:] @ weights[2]]))


def test_bounded_and_few_rows(tuned: Registry) -> None:
    a, b, wanted = product(4, 512, 4096)
    assert torch.equal(gemmill.matmul(a, b, autotune=6, registry=tuned), wanted)
    with gemmill.plan(a, b, autotune=2, sm_count=16, registry=tuned) as plan:
        assert plan.ctas <= 16
        assert plan.choice is not None
        assert "on 16 SMs" in plan.choice.reason
        plan()
        assert torch.equal(plan.out, wanted)


def test_timing_while_capturing_is_refused_and_knowing_is_enough(tuned: Registry) -> None:
    a, b, wanted = product(256, 512, 320)
    out = torch.full_like(wanted, float("nan"))
    with (
        torch.cuda.graph(torch.cuda.CUDAGraph()),
        pytest.raises(CaptureError, match="autotune cannot time 2 kernels while the stream is"),
    ):
        gemmill.matmul(a, b, out=out, autotune=2, registry=tuned)
    gemmill.matmul(a, b, out=out, autotune=2, registry=tuned)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gemmill.matmul(a, b, out=out, autotune=2, registry=tuned)
    out.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, wanted)


@pytest.mark.parametrize("size", [(300, 1536, 1152), (5, 4096, 640), (1234, 192, 4160)])
def test_quick_is_readable_and_has_no_effect(size: tuple[int, int, int]) -> None:
    a, b, wanted = product(*size)
    with pytest.warns(DeprecationWarning, match="quick has no effect"):
        assert torch.equal(gemmill.matmul(a, b, quick=True), wanted)
    with pytest.warns(DeprecationWarning, match="quick has no effect"):
        plan = gemmill.plan(a, b, quick=True)
    with plan, gemmill.plan(a, b) as other:
        assert plan.choice == other.choice
