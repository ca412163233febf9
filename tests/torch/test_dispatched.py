"""Calls that PyTorch is to see are not launched, whether or not a call like them was before.

Tensors in host memory claim to be on GPU 0, and D is empty, so that what is launched is nothing (as in
tests/runtime/api/test_fast_path.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import gemmill  # noqa: E402
from gemmill.runtime.api import caches, fast_path, read, streams  # noqa: E402
from gemmill.runtime.launch.launcher import Resets  # noqa: E402
from gemmill.runtime.torch.operators import register_kernels  # noqa: E402


class OnGpu(torch.Tensor):  # type: ignore[misc]
    device = torch.device("cuda", 0)
    is_cuda = True
    __torch_function__ = torch._C._disabled_torch_function_impl

    def get_device(self) -> int:
        return 0


def like_a(call: Any) -> Any:
    """A tensor like the A of a call."""
    return on_gpu(*call.__defaults__[0].shape)


class Seen(TorchDispatchMode):  # type: ignore[misc]
    """Notes what is dispatched in it, and computes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        self.operators.append(function._schema.name)


def on_gpu(*shape: int) -> Any:
    return torch.zeros(shape, dtype=torch.float16).as_subclass(OnGpu)


@pytest.fixture(params=["guards", "layouts"])
def launches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What is launched; calls are recognised by guards, or where a version of PyTorch has none, by layouts."""
    if request.param == "layouts":
        monkeypatch.setattr(fast_path, "_guards", lambda: None)
    for module in (fast_path, streams):  # a PyTorch that was built without CUDA has none
        monkeypatch.setattr(module, "torch_stream", lambda: lambda device: 0)
    found: list[Any] = []
    monkeypatch.setattr(Resets, "fill", lambda self, stream, addresses: found.append(addresses))
    caches.forget_calls()
    yield found
    caches.forget_calls()


Call = Callable[..., Any]
A, B, OUT, SCALE, SQUARE, EMPTY = itertools.starmap(on_gpu, ((0, 16), (16, 8), (0, 8), (1, 8), (0, 0), (0, 0)))
CALLS: dict[str, Call] = {
    "matmul": lambda a=A: gemmill.matmul(a, B, out=OUT),
    "of other tensors": lambda a=A: gemmill.matmul(a, B, out=OUT, b_scale=SCALE),
    "of operands that alternate": lambda a=A: [gemmill.matmul(a, B, out=OUT, tf32=x) for x in (False, True)],
    "of one tensor twice": lambda a=SQUARE: gemmill.matmul(a, a, out=EMPTY),
}


@pytest.fixture(params=CALLS)
def call(request: pytest.FixtureRequest) -> Call:
    return CALLS[request.param]


@pytest.fixture(params=[0, 4])
def warmed(request: pytest.FixtureRequest, call: Call, launches: list[Any]) -> Iterator[None]:
    """With and without calls before; what comes later is launched again, as ever."""
    for _ in range(request.param):
        call()
    launches.clear()
    yield
    launches.clear()
    call()
    assert launches


@pytest.mark.usefixtures("warmed")
class TestCalls:
    def test_modes_see_them(self, call: Call, launches: list[Any]) -> None:
        with Seen() as seen:
            call()
        assert [x.split("::")[0] for x in seen.operators if not x.startswith("aten")] == ["gemmill"] * (
            2 if call is CALLS["of operands that alternate"] else 1
        )
        assert not launches

    def test_modes_of_fake_tensors_see_real_ones(self, call: Call, launches: list[Any]) -> None:
        """These PyTorch's guards do not tell."""
        with FakeTensorMode(allow_non_fake_inputs=False), pytest.raises(Exception, match="FakeTensorMode"):
            call()
        assert not launches

    def test_within_transforms_they_are_operators(self, call: Call, launches: list[Any]) -> None:
        """Of tensors that no transform has wrapped as well."""
        torch.vmap(lambda x: (call(), x)[1])(torch.ones(2))
        assert not launches

    def test_tensors_that_need_gradients(self, call: Call, launches: list[Any]) -> None:
        a = like_a(call).requires_grad_()
        for _ in range(3):
            with pytest.raises(gemmill.OperandError, match="writes to the caller's tensors has no gradient"):
                call(a)
            assert not launches
            with torch.no_grad():
                call(a)
            assert launches
            launches.clear()

    def test_tangents(self, call: Call, launches: list[Any]) -> None:
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(like_a(call), like_a(call)).as_subclass(OnGpu)
            with pytest.raises(gemmill.OperandError, match="writes to the caller's tensors has no gradient"):
                call(dual)
            assert not launches
            call()
            assert launches

    def test_views_that_negate(self, call: Call, launches: list[Any]) -> None:
        with suppress(gemmill.OperandError):  # what is negated in memory is on the CPU
            call(torch._neg_view(like_a(call)).as_subclass(OnGpu))
        assert not launches

    def test_inference_mode_launches(self, call: Call, launches: list[Any]) -> None:
        with torch.inference_mode():
            for _ in range(3):
                call()
        assert len(launches) == 3 * (2 if call is CALLS["of operands that alternate"] else 1)


@pytest.fixture
def operators_launch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Operators of tensors in host memory launch."""

    monkeypatch.setattr(read, "allocate", lambda a, shape, *_: on_gpu(*shape))
    monkeypatch.setattr(fast_path, "allocator", lambda shape, *_: lambda: on_gpu(*shape))
    library = torch.library.Library("gemmill", "IMPL")
    register_kernels(library, "CPU")
    yield
    library._destroy()


@pytest.mark.usefixtures("operators_launch")
@pytest.mark.parametrize("launches", ["guards"], indirect=True)
def test_operators_and_gradients_are_recognised_too(launches: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    operators, trained, c = torch.ops.gemmill, on_gpu(16, 8).requires_grad_(), on_gpu(0, 8)
    recording: tuple[Call, ...] = (
        lambda: gemmill.matmul(A, trained),
        lambda: gemmill.matmul(A, trained, c=c, alpha=2.0),
        lambda: operators.mm(A, trained),
    )
    plain: tuple[Call, ...] = (
        *recording,
        lambda: operators.mm(A, B),
        lambda: operators.mm(A, B, options="deterministic=True"),
        lambda: operators.addmm(c, A, trained),
        lambda: operators.mm_out(A, trained, OUT),
    )

    def each() -> list[Any]:
        made = [call() for call in recording]
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                for call in plain:
                    call()
        return made

    each()
    each()
    asked: list[Any] = []
    for name in ("is_dispatched", "launch"):  # what is not recognised, and the plain way
        monkeypatch.setattr(fast_path, name, lambda *given, **_: asked.append(given))
    launches.clear()
    version = OUT._version
    assert [x.grad_fn is not None for x in each()] == [True] * len(recording)
    assert not asked
    assert len(launches) == len(recording) + 2 * len(plain)
    assert OUT._version == version + 1  # inference mode has none


def test_deterministic_mode_refuses_sums_or_warns(launches: list[Any]) -> None:
    """All else that kernels do is deterministic."""
    total = torch.zeros((), dtype=torch.float32).as_subclass(OnGpu)

    def call(role: str) -> None:
        gemmill.matmul(A, B, out=OUT, epilogue=f"d = acc; total = {role}(acc)", total=total)

    call("sum")
    try:
        torch.use_deterministic_algorithms(True)
        call("max")
        with pytest.raises(
            gemmill.OperandError, match=r"use_deterministic_algorithms\(True\): `total = sum\(acc\)` sums"
        ):
            call("sum")
        assert len(launches) == 2
        torch.use_deterministic_algorithms(True, warn_only=True)
        with pytest.warns(UserWarning, match="sums atomically"):
            call("sum")
    finally:
        torch.use_deterministic_algorithms(False)


def test_plans_are_of_no_operator(launches: list[Any]) -> None:
    plan = gemmill.plan(A, B, out=OUT)
    a = on_gpu(0, 16).requires_grad_()
    with pytest.raises(gemmill.OperandError, match=r"gemmill.plan only launches kernels"):
        gemmill.plan(a, B, out=OUT)
    with torch.no_grad():
        gemmill.plan(a, B, out=OUT)
    with Seen(), pytest.raises(gemmill.OperandError, match="only launches kernels"):
        gemmill.plan(A, B, out=OUT)
    plan()
    assert launches


@pytest.mark.parametrize("has_guards", [True, False])
def test_tensors_are_alike_only_if_the_same_ones_are_passed_twice(
    has_guards: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_guards:
        monkeypatch.setattr(fast_path, "_guards", lambda: None)
    (x, y, z), w = torch.ones(3, 4, 4), torch.ones(4, 8)
    twice, distinct = fast_path.matcher((x, y, y)), fast_path.matcher((x, y, z))
    calls = ((z, x, x), (x, y, z), (x, x, y), (x, x, x), (x, torch.ones(2, 8), z), (x, w, w))
    assert [twice(*call) for call in calls] == [True, False, False, False, False, False]
    assert [distinct(*call) for call in calls] == [False, True, False, False, False, False]
