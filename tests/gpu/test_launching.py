"""Launches: streams, graphs, repeats, threads, GPUs, plans."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.cases.kernels import BASE, WGMMA, configs, each
from tests.gpu.harness import check_a_thousand_runs, make_case, product, torch

import gemmill
from gemmill.library.config.model import GemmConfig
from gemmill.library.errors import CaptureError
from gemmill.runtime.registry import Registry

pytestmark = pytest.mark.gpu

A_SHORT_WHILE = 20_000_000
"""Cycles (10 ms) that a stream is kept busy, so that work on another stream would come too early."""

SHARING = [
    case
    for case in WGMMA
    if case.config.c is None and (case.config.cluster.m * case.config.cluster.n >= 4 or case in BASE)
]


def poisoned(like: Any) -> Any:
    return torch.full_like(like, float("nan"))


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("between", [False, True])
@pytest.mark.parametrize("n", [256, 4096])
def test_a_launch_sees_what_the_ones_before_it_wrote(n: int, between: bool, captured: bool) -> None:
    """Launches overlap at their ends; here each reads what the last one wrote, and overwrites what that one read."""
    steps = 40
    start = torch.randint(-2, 3, (1000, n), device="cuda").to(torch.bfloat16)
    order = torch.randperm(n, device="cuda")
    permute = torch.eye(n, device="cuda", dtype=torch.bfloat16)[order]  # start @ permute moves columns, exactly
    buffers = [start.clone(), torch.empty_like(start)]

    def chain() -> None:
        for step in range(steps):
            gemmill.matmul(buffers[step % 2], permute, out=buffers[1 - step % 2])
            if between:
                buffers[1 - step % 2].neg_()

    gemmill.matmul(start, permute, out=buffers[1])
    if captured:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            chain()
        graph.replay()
    else:
        chain()
    wanted = start.float()
    for _ in range(steps):
        wanted = wanted @ permute.float()
    assert torch.equal(buffers[0].float(), wanted)


@pytest.mark.parametrize("how", ["current", "beside", "torch", "handle", "plan", "pinned plan"])
def test_work_goes_to_the_callers_stream(how: str) -> None:
    a, b, wanted = product()
    late, out, zeros = torch.zeros_like(a), poisoned(wanted), torch.zeros_like(wanted[0])
    beside = {"epilogue": "d = acc + zeros[n]", "zeros": zeros}
    for _ in range(3):  # the last are recognised
        gemmill.matmul(late, b, out=out)
        gemmill.matmul(late, b, out=out, **beside)
    follow, side = gemmill.plan(late, b, out=out), torch.cuda.Stream()
    pinned = gemmill.plan(late, b, out=out, stream=side)
    out.fill_(float("nan"))
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(A_SHORT_WHILE)
        late.copy_(a)
        if how == "current":
            gemmill.matmul(late, b, out=out)
        elif how == "beside":
            gemmill.matmul(late, b, out=out, **beside)
        elif how == "plan":
            follow()
    if how == "torch":
        gemmill.matmul(late, b, out=out, stream=side)
    elif how == "handle":
        gemmill.matmul(late, b, out=out, stream=side.cuda_stream)
    elif how == "pinned plan":
        pinned()
    side.synchronize()
    assert torch.equal(out, wanted)


def test_an_output_made_for_another_stream_is_safe() -> None:
    a, b, wanted = product()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    outs = [gemmill.matmul(a, b, stream=side) for _ in range(20)]
    side.synchronize()
    assert all(torch.equal(out, wanted) for out in outs)


def test_two_streams_at_once() -> None:
    first, second = product(1024, 1024, 512), product(1000, 520, 264)
    streams = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    outs: list[tuple[Any, Any]] = []
    for _ in range(50):
        for stream, (a, b, wanted) in zip(streams, (first, second), strict=True):
            with torch.cuda.stream(stream):
                outs.append((gemmill.matmul(a, b), wanted))
    torch.cuda.synchronize()
    assert all(torch.equal(out, wanted) for out, wanted in outs)


def test_a_captured_graph_computes_on_new_data() -> None:
    a, b, _ = product()
    out = torch.empty(512, 768, device="cuda", dtype=torch.bfloat16)
    # Loads the kernels; none has been launched before the capture.
    gemmill.plan(a, b, out=out)
    gemmill.plan(out, out.T)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gemmill.matmul(a, b, out=out)
        chained = gemmill.matmul(out, out.T)
    for _ in range(3):
        new, _, _ = product()
        a.copy_(new)
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        wanted = (a.float() @ b.float()).bfloat16()
        assert torch.equal(out, wanted)
        reference = wanted.double() @ wanted.double().T
        assert ((chained.double() - reference).abs() <= 2**-7 * (wanted.double().abs() @ wanted.double().abs().T)).all()


def test_a_graph_outlives_its_plan(registry: Registry) -> None:
    a, b, wanted = product()
    out = poisoned(wanted)
    launch = gemmill.plan(a, b, out=out, registry=registry, kernel=BASE[0].config)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    launch.close()
    del launch
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, wanted)


def test_loading_while_capturing_is_an_error_that_says_what_to_do() -> None:
    a, b, wanted = product()
    out = poisoned(wanted)
    cold = Registry()
    with (
        torch.cuda.graph(torch.cuda.CUDAGraph()),
        pytest.raises(CaptureError, match=r"before the capture, call gemmill\.plan"),
    ):
        gemmill.matmul(a, b, out=out, registry=cold)
    gemmill.matmul(a, b, out=out, registry=cold)
    assert torch.equal(out, wanted), "the process is as usable as before"
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gemmill.matmul(a, b, out=out, registry=cold)
    out.fill_(float("nan"))
    graph.replay()
    assert torch.equal(out, wanted)


@each(SHARING)
def test_a_thousand_repeats_are_equal_bit_for_bit(config: GemmConfig, registry: Registry) -> None:
    check_a_thousand_runs(config, 1300, 1100, 777, registry)


def test_pointers_that_change_from_call_to_call() -> None:
    sets = [product(256, 512, 128) for _ in range(6)]
    out = poisoned(sets[0][2])
    results = []
    for index in range(60):
        a, b, wanted = sets[index % 6]
        results.append((gemmill.matmul(a, b, out=out if index % 2 else None).clone(), wanted))
    assert all(torch.equal(result, wanted) for result, wanted in results)


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Run in threads at once; raise what any of them raised."""
    errors: list[BaseException] = []
    start = threading.Barrier(count)

    def guard(index: int) -> None:
        start.wait()
        try:
            work(index)
        except BaseException as error:  # noqa: BLE001 - handed to the test
            errors.append(error)

    threads = [threading.Thread(target=guard, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        raise error


def test_threads_share_one_signature_but_no_operands() -> None:
    sets = [product(384, 256, 192) for _ in range(8)]
    torch.cuda.synchronize()

    def work(index: int) -> None:
        a, b, wanted = sets[index]
        with torch.cuda.stream(torch.cuda.Stream()):
            outs = [gemmill.matmul(a, b) for _ in range(200)]
            torch.cuda.current_stream().synchronize()
        assert all(torch.equal(out, wanted) for out in outs)

    in_threads(8, work)


def test_threads_share_one_plan() -> None:
    a, b, wanted = product()
    out = poisoned(wanted)
    launch = gemmill.plan(a, b, out=out)
    torch.cuda.synchronize()

    def work(_: int) -> None:
        for _ in range(200):
            launch()

    in_threads(8, work)
    torch.cuda.synchronize()
    assert torch.equal(out, wanted)


@pytest.mark.parametrize("side", [False, True])
def test_a_thread_without_a_cuda_context_may_launch(side: bool) -> None:
    a, b, wanted = product()
    out = poisoned(wanted)
    stream = torch.cuda.Stream()
    launch = gemmill.plan(a, b, out=out, stream=stream if side else 0)
    torch.cuda.synchronize()
    in_threads(1, lambda _: launch())
    torch.cuda.synchronize()
    assert torch.equal(out, wanted)


def test_rebind_moves_each_operand(registry: Registry) -> None:
    config = next(config for config in configs(WGMMA) if config.c is not None and config.c == config.d)
    cases = [make_case(config, 200, 136, 72, seed=seed) for seed in range(2)]
    first, second = cases
    assert first.c is not None
    assert second.c is not None
    launch = gemmill.plan(
        first.a.tensor,
        first.b.tensor,
        out=first.d.tensor,
        c=first.c.tensor,
        registry=registry,
        kernel=config,
    )
    launch()
    first.check()
    launch.rebind(a=second.a.tensor, b=second.b.tensor, c=second.c.tensor, out=second.d.tensor)
    assert launch.out is second.d.tensor
    launch()
    second.check()
    first.check()


def test_a_plan_keeps_its_tensors_alive() -> None:
    a, b, wanted = product()
    launch = gemmill.plan(a, b)
    del a, b
    reusing = [torch.full((512, 256), float("nan"), device="cuda", dtype=torch.bfloat16) for _ in range(16)]
    launch()
    torch.cuda.synchronize()
    assert torch.equal(launch.out, wanted)
    assert all(tensor.isnan().all() for tensor in reusing)


def test_factors_that_are_tensors_are_read_at_each_call() -> None:
    a, b, wanted = product()
    factor = torch.tensor(0.0)
    for value in (2.0, 4.0, 2.0, 8.0, 4.0):
        factor.fill_(value)
        assert torch.equal(gemmill.matmul(a, b, alpha=factor), value * wanted)
        for epilogue in (None, "d = alpha * acc + beta * c"):
            out = gemmill.matmul(a, b, c=wanted, alpha=0, beta=factor, epilogue=epilogue)
            assert torch.equal(out, value * wanted)


def test_an_option_left_out_and_its_default_are_the_same() -> None:
    a, b, wanted = product()
    assert torch.equal(gemmill.matmul(a, b, epilogue=None, a_scale=None, alpha=1, tf32=False), wanted)


def test_matmul_keeps_no_tensor_alive() -> None:
    product()  # PyTorch allocates cuBLAS's workspace
    gc.collect()
    before = torch.cuda.memory_allocated()
    a, b, wanted = product()
    for _ in range(3):
        out = gemmill.matmul(a, b)
    del a, b, wanted, out
    assert torch.cuda.memory_allocated() <= before


def test_a_thread_without_a_context_launches_what_others_prepared() -> None:
    a, b, wanted = product()
    gemmill.matmul(a, b)
    moved, outs = a.clone(), [poisoned(wanted) for _ in range(2)]

    def work(_: int) -> None:
        gemmill.matmul(moved, b, out=outs[0])
        gemmill.plan(moved, b, out=outs[1])()

    in_threads(1, work)
    torch.cuda.synchronize()
    assert all(torch.equal(out, wanted) for out in outs)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_each_gpu_runs_its_own_operands_whatever_is_current() -> None:
    count = torch.cuda.device_count()
    sets = [product(device=f"cuda:{index}") for index in range(count)]
    torch.cuda.set_device(0)
    for _ in range(3):
        outs = [gemmill.matmul(a, b) for a, b, _ in sets]
    plans = [gemmill.plan(a, b) for a, b, _ in sets]
    for launch in plans:
        launch()
    assert torch.cuda.current_device() == 0
    for index, (out, launch, (_, _, wanted)) in enumerate(zip(outs, plans, sets, strict=True)):
        torch.cuda.synchronize(index)
        assert out.device.index == index
        assert torch.equal(out, wanted)
        assert torch.equal(launch.out, wanted)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_threads_on_different_gpus() -> None:
    sets = [product(device=f"cuda:{index}") for index in range(torch.cuda.device_count())]

    def work(index: int) -> None:
        a, b, wanted = sets[index]
        with torch.cuda.device(index):
            outs = [gemmill.matmul(a, b) for _ in range(100)]
            torch.cuda.synchronize()
        assert all(torch.equal(out, wanted) for out in outs)

    in_threads(len(sets), work)
