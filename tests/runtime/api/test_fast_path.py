"""The fast path of a call against its specification: the same launches, errors and prepared calls.

D is empty here, so that nothing needs a GPU: calls are read, checked, bound, made ready, recognised and launched as any
other, and what is launched is nothing. tests/gpu/test_fast_path.py has D with elements.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.cases.plain import plainly

import gemmill
from gemmill.library.errors import GemmillError
from gemmill.runtime.api import caches, fast_path, streams
from gemmill.runtime.api.prepare import launch
from gemmill.runtime.launch.launcher import PreparedCall, Resets
from gemmill.runtime.operands.call import GemmCall

Call = Callable[..., Any]
Outcome = tuple[Any, ...]

K, N = 16, 8
TYPESTR = {"f16": "<f2", "f32": "<f4", "s32": "<i4"}


class Array:
    """A tensor without elements of a library that is not PyTorch, on GPU 0."""

    def __init__(self, shape: tuple[int, ...], dtype: str, how: str) -> None:
        interface: dict[str, Any] = {"shape": shape, "typestr": TYPESTR[dtype], "data": (0, how == "read-only")}
        self.__cuda_array_interface__ = interface | {"version": 3}


class Library:
    """Makes tensors of one library."""

    def tensor(self, shape: tuple[int, ...], dtype: str, how: str) -> Any:
        return Array(shape, dtype, how)


class Torch(Library):
    """PyTorch, whose tensors in host memory claim here to be on GPU 0: nobody reads them."""

    def __init__(self) -> None:
        torch = self.torch = pytest.importorskip("torch")

        class OnGpu(torch.Tensor):  # type: ignore[misc, name-defined]
            device = torch.device("cuda", 0)
            is_cuda = True
            __torch_function__ = torch._C._disabled_torch_function_impl

            def get_device(self) -> int:
                return 0

        self.on_gpu = OnGpu
        self.dtypes = {"f16": torch.float16, "f32": torch.float32, "s32": torch.int32}

    def tensor(self, shape: tuple[int, ...], dtype: str, how: str) -> Any:
        torch = self.torch
        if how == "transposed" and len(shape) == 2:
            made = torch.zeros(shape[::-1], dtype=self.dtypes[dtype]).T
        elif how == "odd address":
            count = 1
            for extent in shape:
                count *= extent
            made = torch.zeros(count + 1, dtype=self.dtypes[dtype])[1:].view(shape)
        else:
            made = torch.zeros(shape, dtype=self.dtypes[dtype])
        return made.as_subclass(self.on_gpu)


@pytest.fixture(autouse=True)
def current_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """A PyTorch that was built without CUDA has no streams."""
    for module in (fast_path, streams):
        monkeypatch.setattr(module, "torch_stream", lambda: lambda device: 0)


@pytest.fixture(params=["__cuda_array_interface__", "torch", "torch without guards"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Library:
    if request.param == "torch without guards":
        monkeypatch.setattr(fast_path, "_guards", lambda: None)
    return Library() if request.param == "__cuda_array_interface__" else Torch()


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Resets, tuple[int, ...]]]]:
    """What is launched, and on which addresses: fills of what an epilogue writes, which need a GPU."""
    found: list[tuple[Resets, tuple[int, ...]]] = []

    def fill(self: Resets, stream: int, addresses: tuple[int, ...]) -> None:
        found.append((self, addresses))

    monkeypatch.setattr(Resets, "fill", fill)
    caches.forget_calls()
    yield found
    caches.forget_calls()


def outcomes(call: Call, calls: list[dict[str, Any]], launched: list[tuple[Resets, tuple[int, ...]]]) -> list[Outcome]:
    """What comes of some calls, the first time that any is made: the error, or which launcher of those so far, on
    which addresses."""
    caches.forget_calls()
    numbers: dict[int, int] = {}
    keep: list[Resets] = []  # so that no other has its id
    found: list[Outcome] = []
    for arguments in calls:
        launched.clear()
        try:
            returned = call(**arguments)
        except (GemmillError, TypeError, ValueError) as error:
            found.append((type(error), str(error)))
            assert not launched
            continue
        ((launcher, addresses),) = launched
        keep.append(launcher)
        number = numbers.setdefault(id(launcher), len(numbers))
        found.append((number, [*addresses, *[0] * 16][:16], returned is arguments["out"]))
    return [*found, (caches.prepared.cache_info().currsize,)]


HOW = ["plain", "plain", "transposed", "odd address", "read-only"]
OPTIONS: dict[str, list[Any]] = {
    "alpha": [1, 2.0, 0.0, -0.0, "x", 1e39],
    "beta": [None, 0.0, -0.0, 0, 1.0],
    "out_dtype": [None, "f16", "f32", "int16"],
    "accumulator": [None, "f32", "f65"],
    "tf32": [True, False],
    "sm_count": [None, 1, True, 0],
    "autotune": [None, 1, True, 0],
    "explain": [True, False],
    "deterministic": [True, False],
    "kernel": [None, ["no name"]],
    "stream": [None, 0, "default"],
    "a_zero": [None],
    "bogus": [None, 1],
}
NUMBERS = [1, 1.0, True, 0, 0.0, -0.0, None, "x"]


@st.composite
def alike(draw: st.DrawFn, make: Callable[..., Any], sound: dict[str, Any], shapes: dict[str, Any]) -> Any:
    """A sound call and some that are like it but for a thing or two, made by ``make(shape, dtype, how)``."""
    calls = [sound]
    for _ in range(draw(st.integers(1, 4))):
        call = dict(sound)
        for _ in range(draw(st.integers(1, 2))):
            if draw(st.booleans()):
                name = draw(st.sampled_from([*OPTIONS]))
                call[name] = draw(st.sampled_from(OPTIONS[name]))
            elif "s" in call and draw(st.booleans()):
                call["s"] = draw(st.sampled_from(NUMBERS))
            else:
                name = draw(st.sampled_from([*shapes, "c is out"]))
                if name == "c is out":
                    call["c"] = call.get("out")
                else:
                    of = "s32" if name in ("offsets", "counts") else draw(st.sampled_from(["f16", "f16", "f32"]))
                    call[name] = make(draw(st.sampled_from(shapes[name])), of, draw(st.sampled_from(HOW)))
        calls.append(call)
    return draw(st.lists(st.sampled_from(calls), min_size=2, max_size=16))


def sound_call(library: Library, epilogue: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """A sound call of ``matmul``, and shapes of tensors that may take the place of its own."""
    n = N if isinstance(library, Torch) else 0
    shapes = {"a": [(0, K)], "b": [(K, n), (K, n), (2 * K, n)], "out": [(0, n)], "c": [(0, n), (n,)]}
    call = {"a": library.tensor((0, K), "f16", ""), "b": library.tensor((K, n), "f16", "")}
    call |= {"out": library.tensor((0, n), "f16", "")}
    if epilogue:
        call["epilogue"] = epilogue
        del shapes["c"]
    for name, shape, dtype in (("bias", (n,), "f16"), ("top", (n,), "f32")):
        if epilogue and name in epilogue:
            call[name], shapes[name] = library.tensor(shape, dtype, ""), [shape]
    if epilogue and " s" in epilogue:
        call["s"] = 1.0
    return call, shapes


@pytest.mark.parametrize(
    "epilogue", [None, "d = acc * s + bias[n]", "d = alpha * acc * s", "d = acc; top[n] = max(acc)", "d = rulu(acc)"]
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_short_way_and_the_plain_one_are_the_same(
    data: st.DataObject, epilogue: str | None, library: Library, launched: list[tuple[Resets, tuple[int, ...]]]
) -> None:
    calls = data.draw(alike(library.tensor, *sound_call(library, epilogue)))
    plain = plainly(gemmill.matmul)
    assert outcomes(gemmill.matmul, calls, launched) == outcomes(plain, calls, launched)


@pytest.mark.parametrize("epilogue", [None, "d = relu(acc) * s + bias[n]"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_ways_of_scales_are_the_same(
    data: st.DataObject, epilogue: str | None, library: Library, launched: list[tuple[Resets, tuple[int, ...]]]
) -> None:
    sound, shapes = sound_call(library, epilogue)
    n = sound["b"].__cuda_array_interface__["shape"][1] if not isinstance(library, Torch) else N
    of = {"a_scale": [(0, 1), (0, 1), (1,), (), (2, 1)], "b_scale": [(1, n), (1, n), (n,), (), (3,)]}
    for name in data.draw(st.sampled_from([("a_scale", "b_scale"), ("a_scale",), ("b_scale",)])):
        sound[name], shapes[name] = library.tensor(of[name][0], "f32", ""), of[name]
    if data.draw(st.booleans()):
        sound["a_scale"] = data.draw(st.sampled_from([1.0, 1, 2.0, True, -0.0]))
    calls = data.draw(alike(library.tensor, sound, shapes))
    plain = plainly(gemmill.matmul)
    assert outcomes(gemmill.matmul, calls, launched) == outcomes(plain, calls, launched)


@pytest.mark.parametrize("kind", ["offsets", "counts"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_ways_of_groups_are_the_same(
    data: st.DataObject, kind: str, library: Library, launched: list[tuple[Resets, tuple[int, ...]]]
) -> None:
    n, groups = (N, 3) if isinstance(library, Torch) else (0, 0)
    rows = (0,) if kind == "offsets" else (groups, 0)
    shapes = {"a": [(*rows, K)], "b": [(groups, K, n)], "out": [(*rows, n)], kind: [(groups,), (groups,), (2,)]}
    sound = {name: library.tensor(of[0], "s32" if name == kind else "f16", "") for name, of in shapes.items()}
    if data.draw(st.booleans()):
        sound |= {"epilogue": "d = acc * s + bias[n]", "s": 1.0, "bias": library.tensor((n,), "f16", "")}
        shapes["bias"] = [(n,)]
    calls = data.draw(alike(library.tensor, sound, shapes))
    plain = plainly(gemmill.grouped_matmul)
    assert outcomes(gemmill.grouped_matmul, calls, launched) == outcomes(plain, calls, launched)


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("alpha", 0.0, -0.0),
        ("beta", 0.0, -0.0),
        ("s", 0.0, -0.0),
        ("s", 1, True),
        ("s", 1.0, 1),
        ("autotune", 1, True),
        ("out_dtype", "f16", None),
        ("tf32", 1, True),
    ],
)
def test_values_that_are_equal_are_told_apart_as_the_plain_way_does(
    name: str, one: Any, other: Any, library: Library, launched: list[tuple[Resets, tuple[int, ...]]]
) -> None:
    sound, _ = sound_call(library, "d = acc * s + bias[n]" if name == "s" else None)
    calls = [sound | {name: value} for value in (one, one, one, other, other, one, other)]
    found = outcomes(gemmill.matmul, calls, launched)
    assert found == outcomes(plainly(gemmill.matmul), calls, launched)
    if (one, other) == (0.0, -0.0):
        assert [number for number, *_ in found[:-1]] == [0, 0, 0, 1, 1, 0, 1]


def test_what_an_epilogue_writes_is_looked_at_each_time(launched: list[tuple[Resets, tuple[int, ...]]]) -> None:
    torch = Torch()
    sound, _ = sound_call(torch, "d = acc; top[n] = max(acc); low[n] = min(acc)")
    sound["low"] = torch.tensor((N,), "f32", "")
    calls = [sound] * 4 + [sound | {"low": sound["top"].view(N).as_subclass(torch.on_gpu)}] + [sound]
    found = outcomes(gemmill.matmul, calls, launched)
    assert found == outcomes(plainly(gemmill.matmul), calls, launched)
    assert "overlap in memory" in found[4][1]


@pytest.mark.parametrize("beside", [{}, {"epilogue": "d = acc + bias[n]", "bias": (N,)}, {"b_scale": (1, N)}])
def test_the_second_call_is_recognised_unless_that_is_turned_off(
    beside: dict[str, Any], launched: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = Torch()
    assert fast_path._guards() is not None, "this version of PyTorch has none: calls are slower to recognise"
    a, b, out = torch.tensor((0, K), "f16", ""), torch.tensor((K, N), "f16", ""), torch.tensor((0, N), "f16", "")
    beside = {name: torch.tensor(x, "f16", "") if isinstance(x, tuple) else x for name, x in beside.items()}
    reads: list[object] = []

    def noted(call: GemmCall) -> PreparedCall:
        reads.append(call)
        return launch(call)

    monkeypatch.setattr(fast_path, "launch", noted)
    for is_on, read in ((True, 1), (False, 5)):
        monkeypatch.setenv("GEMMILL_WARM_CALLS", str(int(is_on)))
        fast_path.is_on.cache_clear()
        caches.forget_calls()
        reads.clear()
        for _ in range(5):
            assert gemmill.matmul(a, b, out=out, stream=0, **beside) is out
        assert len(reads) == read
        assert bool(caches.recognised) == is_on
    fast_path.is_on.cache_clear()


def test_kinds_that_alternate_in_one_bucket_are_recognised_each(
    launched: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain weight, one that requires gradients, views of another stride, in inference mode and out of it."""
    library = Torch()
    torch, a, out = library.torch, library.tensor((0, N), "f16", ""), library.tensor((0, N), "f16", "")
    plain, trained = (library.tensor((N, N), "f16", "") for _ in range(2))
    trained.requires_grad_()

    def each() -> None:
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                for weight in (plain, trained):
                    gemmill.matmul(a, weight, out=out, stream=0)

    each()
    each()
    asked: list[object] = []
    for name in ("is_dispatched", "launch"):  # what is not recognised, and the plain way
        monkeypatch.setattr(fast_path, name, lambda *given, **_: asked.append(given))
    launched.clear()
    each()
    assert not asked
    assert len(launched) == 4


def test_no_call_keeps_a_tensor_alive(launched: list[Any]) -> None:
    torch = Torch()
    tensors = [torch.tensor(shape, "f16", "") for shape in ((0, K), (K, N), (0, N))]
    for _ in range(4):
        gemmill.matmul(tensors[0], tensors[1], out=tensors[2], stream=0)
    alive = [weakref.ref(tensor) for tensor in tensors]
    launched.clear()
    del tensors
    assert not any(tensor() is not None for tensor in alive)
