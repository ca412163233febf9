"""Operands that TMA cannot move: copied into aligned memory before WGMMA kernels, or by producer warps of these."""

from __future__ import annotations

from typing import Any

import pytest
from tests.gpu.harness import check, kernel, least_aligns, make_case, run, torch

import gemmill
from gemmill.library.config.model import GemmConfig, MajorAB
from gemmill.library.config.names import kernel_name
from gemmill.library.dtypes import DTYPES
from gemmill.library.errors import CaptureError, UnsupportedProblemError
from gemmill.runtime.registry import Registry

pytestmark = pytest.mark.gpu

BLOCK_SCALED: dict[str, Any] = {"ab": "e4m3", "promote": 4, "a__scale": "1x128", "b__scale": "128x128"}
KERNELS: tuple[GemmConfig, ...] = (
    kernel(),
    kernel("128x144x64", "pingpong", a__major="mn", b__major="mn", d__major="m"),
    kernel("64x128x64", "pingpong", "2x1", ab="f16", c__dtype="f16"),
    kernel("128x128x64", c__dtype="f32", d__dtype="f32"),
    kernel("128x128x32", ab="tf32"),
    kernel("128x128x128", ab="s8"),
    kernel("128x128x128", "pingpong", ab="e4m3"),
    kernel("128x128x128", **BLOCK_SCALED),
    kernel(scheduler__decomposition="splitk"),
    kernel("64x32x64", "pingpong", c__dtype="bf16", scheduler__decomposition="splitk"),
    kernel("128x192x64", "cooperative", "2x1", scheduler__decomposition="stream"),
    kernel("128x64x64", a__align=2),
    kernel("64x32x128", "pingpong", ab="f16", a__align=2, a__major="mn", b__major="mn", d__major="m"),
    kernel("256x64x64", a__align=2, c__dtype="bf16", scheduler__decomposition="splitk"),
    kernel("128x128x64", "cooperative", "2x1", a__align=2, a__major="mn", scheduler__decomposition="stream"),
    kernel("64x64x64", "pingpong", a__align=2, scheduler__decomposition="cluster", scheduler__splits=2),
    kernel("128x64x32", ab="tf32", a__align=4, d__major="m", scheduler__decomposition="splitk"),
    kernel("64x32x64", "pingpong", ab="tf32", a__align=4, a__major="mn"),
    kernel("128x64x128", ab="e4m3", a__align=1, b__dtype="e5m2", scheduler__decomposition="splitk"),
    kernel("64x32x128", "pingpong", ab="e5m2", a__align=1, a__major="mn", d__major="m"),
    kernel("64x64x128", "pingpong", ab="s8", a__align=1, scheduler__decomposition="cluster", scheduler__splits=2),
    kernel("128x128x128", ab="u8", a__align=1, a__major="mn", b__dtype="s8", scheduler__decomposition="stream"),
)


@pytest.mark.parametrize("config", KERNELS, ids=kernel_name)
def test_operands_of_any_alignment(config: GemmConfig, registry: Registry) -> None:
    all_least = least_aligns(config)
    check(config, 301, 269, 200, registry, aligns=all_least, offset=1)
    check(config, 130, 67, 333, registry, aligns=all_least, offset=3, batch=3)
    for name, align in all_least.items():
        check(config, 301, 264, 200, registry, aligns={name: align}, offset=1)
    check(config, 130, 72, 64, registry, aligns=all_least, batch=2, batched="acd")
    if config.a.major == "k":  # operands without elements are bound K-major
        check(config, 64, 8, 0, registry, aligns=all_least, offset=1)
    check(config, 9, 5, 77, registry, aligns=all_least, offset=1)


@pytest.mark.parametrize("major", ["k", "mn"])
@pytest.mark.parametrize("dtype", ["bf16", "tf32", "e4m3", "s8"])
def test_producer_warps_copy_rows_of_any_pitch(dtype: str, major: MajorAB, registry: Registry) -> None:
    """For every place of the first element within 16 bytes, and every pitch; with the bits of a kernel that TMA
    serves."""
    size = DTYPES[dtype].bytes
    options: dict[str, Any] = {"ab": dtype, "a__major": major, "d__major": "m", "scheduler__decomposition": "splitk"}
    aligned, config = (kernel(f"128x64x{128 // size}", a__align=align, **options) for align in (16, size))
    for residue in range(16 // size):
        m, n, k = 304 + residue, 64 - residue, 641 + 3 * residue
        how: dict[str, Any] = {"aligns": least_aligns(config), "offset": residue}
        check(config, m, n, k, registry, slices=1 + residue % 8, **how)
        cases = [make_case(x, m, n, k, data="random", **how) for x in (aligned, config)]
        for x, case in zip((aligned, config), cases, strict=True):
            run(x, case, registry, slices=1 + residue % 8)
        assert torch.equal(*(case.d.tensor for case in cases)), f"{m}x{n}x{k}"


def odd(rows: int, columns: int) -> Any:
    return torch.randint(-2, 3, (rows, columns), device="cuda").bfloat16()


def test_a_plan_follows_its_operands() -> None:
    a, b, out = odd(4096, 1001), odd(3000, 1001).T, torch.empty(4096, 3000, device="cuda", dtype=torch.bfloat16)
    with gemmill.plan(a, b, out=out) as launch:
        assert launch.realigned == {"a", "b"}
        assert launch.choice is not None
        assert "gemmill first copies A and B into aligned memory for TMA" in launch.choice.reason
        launch()
        assert torch.equal(out, (a.float() @ b.float()).bfloat16())
        a.copy_(odd(4096, 1001))  # what is copied is what is there at the launch
        launch()
        assert torch.equal(out, (a.float() @ b.float()).bfloat16())
        moved = odd(1, 4096 * 1001 + 1)[0, 1:].view(4096, 1001)
        launch.rebind(a=moved)
        launch()
        assert torch.equal(out, (moved.float() @ b.float()).bfloat16())


def test_of_the_transpose_the_other_is_copied(registry: Registry) -> None:
    a, b = odd(1000, 1024), odd(1024, 1001)
    for config, swapped in (kernel(b__major="mn"), False), (kernel(a__major="mn", d__major="m"), True):
        with gemmill.plan(a, b, kernel=config, registry=registry) as launch:
            launch()
            assert (launch.swap_ab, launch.realigned) == (swapped, frozenset("b"))
            assert torch.equal(launch.out, (a.float() @ b.float()).bfloat16())


def test_streams_and_graphs_have_copies_of_their_own(registry: Registry) -> None:
    operands = [(odd(700, 501), odd(501, 600)) for _ in range(4)]
    wanted = [(a.float() @ b.float()).bfloat16() for a, b in operands]
    config = kernel(b__major="mn")
    outs = [torch.zeros_like(w) for w in wanted]
    streams = [torch.cuda.Stream() for _ in operands]
    plans = [
        gemmill.plan(a, b, out=out, kernel=config, registry=registry)
        for (a, b), out in zip(operands, outs, strict=True)
    ]
    plans[0]()
    torch.cuda.synchronize()
    for _ in range(20):
        for launch, stream in zip(plans, streams, strict=True):
            with torch.cuda.stream(stream):
                launch()
    torch.cuda.synchronize()
    assert all(torch.equal(out, w) for out, w in zip(outs, wanted, strict=True))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launch in plans:
            launch()
    for out in outs:
        out.zero_()
    plans[1]()
    graph.replay()
    plans[2]()
    torch.cuda.synchronize()
    assert all(torch.equal(out, w) for out, w in zip(outs, wanted, strict=True))


def test_rows_that_overlap_or_lie_far_apart_are_copied(registry: Registry) -> None:
    memory = odd(1, 5000)[0]
    overlapping, b = memory.as_strided((301, 333), (3, 1), 1), odd(333, 264)
    far = torch.empty((1 << 31) + 2000, device="cuda", dtype=torch.bfloat16).as_strided((2, 333), ((1 << 31) + 1, 1))
    far.copy_(odd(2, 333))
    for a in (overlapping, far):
        with gemmill.plan(a, b, kernel=kernel(b__major="mn"), registry=registry) as launch:
            launch()
            assert launch.realigned == {"a"}
            assert torch.equal(launch.out, (a.float() @ b.float()).bfloat16())


def test_a_bound_on_sms_keeps_operands_where_they_are(registry: Registry) -> None:
    a, b = odd(4096, 1001), odd(1001, 3000)
    with gemmill.plan(a, b, sm_count=64) as launch:
        assert launch.realigned == frozenset()
    with pytest.raises(
        UnsupportedProblemError, match=r"does not limit the copy of a, which .* needs aligned to 16 bytes"
    ):
        gemmill.plan(a, b, kernel=kernel(b__major="mn"), registry=registry, sm_count=64)


def test_the_bits_of_a_row_do_not_depend_on_copies() -> None:
    a, b = torch.randn(2, 3000, 1001, device="cuda").bfloat16(), torch.randn(1001, 768, device="cuda").bfloat16()
    whole = gemmill.matmul(a, b, bits="invariant")
    assert torch.equal(gemmill.matmul(a[1, :7], b, bits="invariant"), whole[1, :7])


def test_random_operands_are_exact_enough(registry: Registry) -> None:
    case = make_case(kernel(), 500, 500, 777, data="random", aligns={"a": 2, "b": 4, "d": 2}, offset=1)
    run(kernel(), case, registry)
    case.check()


def test_copies_are_not_loaded_while_capturing(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error comes before anything is loaded, and the process is as usable as before."""
    a, b = odd(702, 503), odd(503, 602)  # no other test's, whose launch might still be known
    config = kernel(b__major="mn")
    gemmill.matmul(odd(700, 504), odd(504, 600), kernel=config, registry=registry)
    monkeypatch.setattr("gemmill.runtime.launch.conversion._kernels", {})
    with (
        torch.cuda.graph(torch.cuda.CUDAGraph()),
        pytest.raises(CaptureError, match="the kernel that copies unaligned operands"),
    ):
        gemmill.matmul(a, b, kernel=config, registry=registry)
    assert torch.equal(gemmill.matmul(a, b, kernel=config, registry=registry), (a.float() @ b.float()).bfloat16())
