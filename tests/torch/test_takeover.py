"""PyTorch's own operators with kernels of ours: on the CPU, with references in place of kernels."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from tests.torch.cases import FP8, wide  # noqa: E402
from tests.torch.references import references  # noqa: E402

import gemmill.torch  # noqa: E402
from gemmill.library.errors import OperandError, UnsupportedProblemError  # noqa: E402
from gemmill.runtime.api import fast_path  # noqa: E402
from gemmill.runtime.torch.takeover import overrides  # noqa: E402
from gemmill.runtime.torch.takeover.aten import REFUSED, ROWS  # noqa: E402
from gemmill.runtime.torch.takeover.blocks import ENABLED  # noqa: E402
from gemmill.runtime.torch.takeover.overrides import Takeover  # noqa: E402

aten = torch.ops.aten
CPU = Takeover("CPU", references)
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    gemmill.torch.reset_stats()
    yield
    assert not CPU.blocks.active


def served() -> dict[str, int]:
    """Calls by operator."""
    found = gemmill.torch.stats().served
    return {name: sum(line.calls for line in lines.values()) for name, lines in found.items()}


def reasons(operator: str) -> dict[str, int]:
    return {by: line.calls for by, line in gemmill.torch.stats().fallback.get(operator, {}).items()}


def ends(*values: int) -> Any:
    return torch.tensor(values, dtype=torch.int32)


A, B, C, V = wide(5, 8), wide(8, 3), wide(5, 3), wide(3)
X, Y, Z = wide(2, 5, 8), wide(2, 8, 3), wide(2, 5, 3)
W = wide(3, 8)

CALLS: dict[str, tuple[str, Callable[[], Any]]] = {
    "mm": ("mm", lambda: torch.mm(A, B)),
    "mm of transposes": ("mm", lambda: torch.mm(B.mT, A.mT)),
    "mm of a tensor with itself": ("mm", lambda: torch.mm(A[:, :5].contiguous(), A[:, :5].contiguous())),
    "mm.out": ("mm.out", lambda: torch.mm(A, B, out=torch.empty(3, 5, dtype=A.dtype).mT)),
    "addmm of a vector": ("addmm", lambda: torch.addmm(V, A, B)),
    "addmm of a matrix": ("addmm", lambda: torch.addmm(C, A, B, beta=0.5, alpha=2)),
    "addmm by factors": ("addmm", lambda: torch.addmm(V, A, B, beta=0.5, alpha=2)),
    "addmm of one row": ("addmm", lambda: torch.addmm(V[None], A, B)),
    "addmm of an expanded vector": ("addmm", lambda: torch.addmm(V.expand(5, 3), A, B)),
    "addmm that reads no C": ("addmm", lambda: torch.addmm(V * float("nan"), A, B, beta=0)),
    "addmm.out": ("addmm.out", lambda: torch.addmm(V, A, B, out=torch.empty_like(C))),
    "addmm_": ("addmm_", lambda: C.clone().addmm_(A, B, beta=2)),
    "bmm": ("bmm", lambda: torch.bmm(X, Y)),
    "bmm.out": ("bmm.out", lambda: torch.bmm(X, Y, out=torch.empty_like(Z))),
    "baddbmm": ("baddbmm", lambda: torch.baddbmm(Z, X, Y, alpha=2)),
    "baddbmm.out": ("baddbmm.out", lambda: torch.baddbmm(Z, X, Y, out=torch.empty_like(Z))),
    "baddbmm_": ("baddbmm_", lambda: Z.clone().baddbmm_(X, Y)),
    "linear": ("mm", lambda: torch.nn.functional.linear(A, W)),
    "linear with a bias": ("addmm", lambda: torch.nn.functional.linear(A, W, V)),
    "linear of a batch": ("mm", lambda: torch.nn.functional.linear(X, W)),
    "linear of a batch with a bias": ("addmm", lambda: torch.nn.functional.linear(X, W, V)),
    "matmul of a batch": ("bmm", lambda: X @ Y),
    "matmul of one weight": ("mm", lambda: X @ B),
    "groups of rows": ("_grouped_mm", lambda: torch._grouped_mm(wide(6, 8), wide(3, 8, 8), offs=ends(2, 2, 6))),
    "groups along K": ("_grouped_mm", lambda: torch._grouped_mm(wide(16, 8).mT, wide(16, 8), offs=ends(8, 8, 16))),
    "a batch of groups": ("_grouped_mm", lambda: torch._grouped_mm(wide(3, 5, 8), wide(3, 8, 8))),
}


@pytest.mark.parametrize("name", CALLS)
def test_served_calls_give_what_pytorch_gives(name: str) -> None:
    operator, call = CALLS[name]
    wanted = call()
    with CPU.within():
        for _ in range(3):  # first met, then recognised
            found = call()
            assert torch.equal(found, wanted)
            assert (found.dtype, found.stride()) == (wanted.dtype, wanted.stride())
    assert served()[operator] == 3


F32: dict[str, Any] = {"dtype": torch.float32}
SCALES: dict[str, tuple[Any, Any]] = {
    "of all": (wide(1, **F32).reshape(()), wide(1, seed=1, **F32)),
    "of rows and columns": (wide(5, 1, **F32), wide(1, 144, **F32)),
    "of blocks": (wide(5, 2, **F32), wide(2, 2, **F32)),
}


@pytest.mark.parametrize("bias", [None, wide(144)])
@pytest.mark.parametrize("form", SCALES)
def test_scaled_products(form: str, bias: Any) -> None:
    a, b = wide(5, 256).to(FP8), wide(144, 256).to(FP8).mT
    a_scale, b_scale = SCALES[form]
    with CPU.within():
        found = torch._scaled_mm(a, b, a_scale, b_scale, bias=bias, out_dtype=torch.bfloat16)
    of_a, of_b = a_scale.double(), b_scale.double()
    if form == "of blocks":
        of_a, of_b = of_a.repeat_interleave(128, 1), of_b.repeat_interleave(128, 0).repeat_interleave(128, 1)[:, :144]
        wanted = (a.double() * of_a) @ (b.double() * of_b)
    else:
        wanted = (a.double() @ b.double()) * of_a * of_b
    assert torch.equal(found, (wanted + (0 if bias is None else bias.double())).to(torch.bfloat16))
    assert served() == {"_scaled_mm": 1}


def test_one_signature_serves_other_tensors() -> None:
    """Also where the first had the same tensor twice, or a scalar of another value."""
    square, other = wide(8, 8), wide(8, 8, seed=1)
    with CPU.within():
        for x, y in ((square, square), (square, other), (other, square), (square, square.mT), (other, other.mT)):
            assert torch.equal(torch.mm(x, y), (x.double() @ y.double()).to(x.dtype))
        for beta in (1, 2, 0.5, True):
            assert torch.equal(torch.addmm(square, square, other, beta=beta), square @ other + beta * square)


@pytest.mark.parametrize(("part", "answer"), [("is_on", False), ("_guards", None)])
def test_calls_are_as_right_where_none_is_recognised_or_by_keys(part: str, answer: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(fast_path, part, lambda: answer)
    with CPU.within():
        for m in (2, 3, 5, 2, 3, 5, 2, 3, 5, 2, 3, 5):
            x = wide(m, 16)
            assert torch.equal(torch.mm(x, x.mT), (x.double() @ x.double().mT).to(x.dtype))
    assert served() == {"mm": 12}


def test_modules_have_their_gradients() -> None:
    def run() -> list[Any]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 4, bias=False)).bfloat16()
        x = wide(3, 5, 8).requires_grad_()
        model(x).sum().backward()
        return [x.grad, *(parameter.grad for parameter in model.parameters())]

    wanted = run()
    with CPU.within():
        for _ in range(2):
            for mine, theirs in zip(run(), wanted, strict=True):
                torch.testing.assert_close(mine, theirs, rtol=2**-6, atol=2**-6)
    assert served().keys() == {"mm", "addmm"}
    assert gemmill.torch.stats().served["mm"]["reference"].problems == 5  # once forward, four times back


def complaint(call: Callable[[], Any]) -> str:
    try:
        call()
    except (RuntimeError, IndexError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("operator", "reason", "call"),
    [
        ("mm", "float32 without tf32 or f32=", lambda: torch.mm(A.float(), B.float())),
        ("mm", "float64 is not supported", lambda: torch.mm(A.double(), B.double())),
        ("mm", "int32 is not supported", lambda: torch.mm(A.int(), B.int())),
        ("mm", "complex64 without f32=", lambda: torch.mm(A.to(torch.complex64), B.to(torch.complex64))),
        ("mm", "an operand is empty", lambda: torch.mm(A[:0], B)),
        ("mm", "an operand is empty", lambda: torch.mm(A[:, :0], B[:0])),
        ("mm", "shapes do not match", lambda: torch.mm(A, A)),
        ("bmm", "shapes do not match", lambda: torch.bmm(A, B)),
        ("mm", "A and B have different dtypes", lambda: torch.mm(A, B.float())),
        ("mm.out", "out has another dtype or shape than D", lambda: torch.mm(A, B, out=torch.empty(0, dtype=A.dtype))),
        ("addmm", "C is neither a matrix like D nor a vector along N", lambda: torch.addmm(C[:, :1], A, B)),
        (
            "_grouped_mm",
            "groups along N are not supported",
            lambda: torch._grouped_mm(X, wide(8, 16), offs=ends(8, 16)),
        ),
        ("_grouped_mm", "shapes do not match", lambda: torch._grouped_mm(A, Y)),
    ],
)
def test_the_rest_is_left_to_pytorch(operator: str, reason: str, call: Callable[[], Any]) -> None:
    before = complaint(call)
    wanted = None if before else call()
    with CPU.within():
        for _ in range(2):
            assert complaint(call) == before
            assert before or torch.equal(call(), wanted)
    assert reasons(operator) == {reason: 2 if before else 4}
    assert operator not in served()


def forget_routes() -> None:
    for override in CPU._overrides:
        override._routes.clear()


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The keywords ``bits`` and ``precision`` of each call that is prepared."""
    keywords: list[Any] = []

    def prepare(call: Any, given: Any, names: list[str]) -> Any:
        keywords.append({name: x for name, x in call.values.items() if name in ("bits", "precision")})
        compute, by = references(call, given, names)

        def computed(tensors: Any) -> Any:
            with CPU.blocks.within("any"):  # the reference itself makes products
                return compute(tensors)

        return computed, by

    monkeypatch.setattr(CPU, "backend", prepare)
    forget_routes()
    yield keywords
    forget_routes()


@pytest.mark.parametrize("name", CALLS)
def test_bits_go_to_every_product(name: str, prepared: list[Any]) -> None:
    _, call = CALLS[name]
    wanted = call()
    with CPU.within("invariant"):
        for _ in range(2):
            assert torch.equal(call(), wanted)
    assert prepared
    assert all(x == {"bits": "invariant"} for x in prepared)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bits_hold_where_pytorch_would_be_faster(dtype: Any, prepared: list[Any]) -> None:
    a, b, c = (x.to(dtype) for x in (A, B, C))
    with CPU.within("cublas"):
        assert torch.equal(torch.addmm(c, a, b), c + torch.mm(a, b))
    assert prepared == [{"bits": "cublas"}] * 2
    assert served() == {"addmm": 1, "mm": 1}


@pytest.mark.parametrize("x", [wide(5, 8), wide(2, 5, 8)], ids=["mm", "bmm"])
def test_products_with_the_own_transpose_are_symmetric(x: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others of the same signature are not, such as with the transpose of a copy."""
    computed: list[bool] = []

    def backend(call: Any, given: Any, names: list[str]) -> Any:
        compute, by = references(call, given, names)

        def compute_and_note(tensors: Any) -> Any:
            computed.append(call.values.get("symmetric", False))
            return compute(tensors)

        return compute_and_note, by

    monkeypatch.setattr(CPU, "backend", backend)
    forget_routes()
    with CPU.within():
        for _ in range(2):
            for right in (x.mT, x.clone().mT):
                torch.matmul(x, right)
    forget_routes()
    assert computed == [True, False, True, False]


def test_the_block_that_was_entered_last_decides_about_bits(prepared: list[Any]) -> None:
    wanted = torch.mm(A, B)
    with CPU.within("invariant"):
        with CPU.within(), CPU.within("any"), CPU.within():
            torch.mm(A, B)
        with pytest.raises(ZeroDivisionError), CPU.within("k16"):
            raise ZeroDivisionError
        with CPU.within():
            for _ in range(2):
                assert torch.equal(torch.mm(A, B), wanted)
    with CPU.within():
        torch.mm(A, B)
    assert prepared == [{}, {"bits": "invariant"}]  # the last call is like the first
    assert CPU.blocks.bits == "any"


def test_no_overload_of_a_product_escapes_bits() -> None:
    known = {*ROWS, *REFUSED}
    families = {name.split(".")[0] for name in known}
    present = {name.removeprefix("aten::") for name in torch._C._dispatch_get_all_op_names() if "aten::" in name}
    has_own_kernel = {
        name
        for name in present - known
        if name.split(".")[0] in families
        and not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "CompositeExplicitAutograd")
    }
    assert not has_own_kernel


FOREACH = pytest.mark.skipif(not hasattr(torch, "_foreach_mm"), reason="this PyTorch has no _foreach_mm")


@pytest.mark.parametrize(
    ("says", "call"),
    [
        ("int32 is not supported", lambda: torch.mm(A.int(), B.int())),
        ("A and B have different dtypes", lambda: torch.mm(A, B.float())),
        ("C is neither a matrix like D nor a vector", lambda: torch.addmm(C[:, :1], A, B)),
        ("groups along N are not supported", lambda: torch._grouped_mm(X, wide(8, 16), offs=ends(8, 16))),
        ("pass a matrix of one column", lambda: A @ B[:, 0]),
        ("pass a matrix of one column", lambda: torch.dot(V, V)),
        ("call torch.addmm, then the activation", lambda: torch._addmm_activation(V, A, B)),
        (
            "convert the layer to gemmill.torch.Linear",
            lambda: torch._weight_int8pack_mm(wide(16, 64), wide(32, 64).char(), wide(32)),
        ),
        pytest.param("call torch.mm for each pair", lambda: torch._foreach_mm([A], [B]), marks=FOREACH),
    ],
)
def test_what_would_fall_back_is_refused_where_bits_hold(says: str, call: Callable[[], Any]) -> None:
    with CPU.within("invariant"):
        with pytest.raises(UnsupportedProblemError, match=rf"with bits='invariant', .*{says}"):
            call()
        with CPU.within("any"):
            complaint(call)
    with CPU.within():
        assert complaint(call) == complaint(call)


@pytest.mark.parametrize(("a", "b"), [(A[:0], B), (A[:, :0], B[:0]), (A, A)])
def test_what_sums_nothing_is_left_to_pytorch_where_bits_hold(a: Any, b: Any) -> None:
    before = complaint(lambda: torch.mm(a, b))
    with CPU.within("invariant"):
        assert complaint(lambda: torch.mm(a, b)) == before
        assert before or not torch.mm(a, b).any()


def test_operators_that_this_pytorch_lacks_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overrides, "REFUSED", {"_foreach_nonesuch": "call torch.mm"})
    with CPU.within("invariant"):
        assert CPU.blocks.active


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"bits": "same"}, "bits is 'same'"),
        ({"f32": "high"}, "f32 is 'high'; it must be one of 'ieee', 'tf32', 'bf16x9'"),
    ],
)
def test_settings_that_are_none_are_refused(setting: dict[str, str], says: str) -> None:
    with pytest.raises(OperandError, match=says), gemmill.torch.enabled(**setting):
        pass
    assert not ENABLED.active


def test_gradients_have_the_bits_of_the_block(prepared: list[Any]) -> None:
    model = torch.nn.Linear(8, 16).bfloat16()
    with CPU.within("invariant"):
        model(wide(3, 5, 8).requires_grad_()).sum().backward()
    assert prepared == [{"bits": "invariant"}] * 3  # forward, and the gradients of the input and the weight


def test_float32_follows_the_precision_that_the_program_sets() -> None:
    a, b = A.float(), B.float()
    before = torch.get_float32_matmul_precision()
    try:
        with CPU.within():
            for precision in ("high", "highest", "high", "high"):
                torch.set_float32_matmul_precision(precision)
                torch.mm(a, b)
    finally:
        torch.set_float32_matmul_precision(before)
    assert served()["mm"] == 3
    assert gemmill.torch.stats().fallback["mm"]["float32 without tf32 or f32="].calls >= 1


def test_float32_has_the_precision_of_the_block_whatever_the_program_sets(prepared: list[Any]) -> None:
    """In the gradients too. Without a block's, that of the program holds."""
    a, b = A.float().requires_grad_(), B.float()
    before = torch.get_float32_matmul_precision()
    try:
        for precision in ("highest", "high"):
            torch.set_float32_matmul_precision(precision)
            with CPU.within(f32="bf16x6"), CPU.within(bits="any"):
                torch.mm(a, b).sum().backward()
                with CPU.within(f32="ieee", bits="invariant"):
                    torch.bmm(X.float(), Y.float())
            with CPU.within():
                torch.mm(a, b)
    finally:
        torch.set_float32_matmul_precision(before)
    split = {"precision": "bf16x6"}
    assert prepared == [split, split, {"bits": "invariant"}, {"precision": "tf32"}]  # each problem once
    assert served() == {"mm": 5, "bmm": 2}
    assert reasons("mm")["float32 without tf32 or f32="] == 1


def test_complex64_has_the_precision_of_the_block(prepared: list[Any]) -> None:
    """Of conjugates too; a C that is a vector stays C, since expressions are real."""
    a, b, c = (torch.complex(x.float(), x.float().flip(0)) for x in (A, B, V))
    wanted = torch.addmm(c, a.conj(), b)
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        with CPU.within():
            torch.mm(a, b)
        with CPU.within(f32="bf16x6"):
            torch.testing.assert_close(torch.addmm(c, a.conj(), b), wanted)
            torch.testing.assert_close(b.mH @ a.mH, (a @ b).mH)
    finally:
        torch.backends.cuda.matmul.fp32_precision = "none"
    assert {"precision": "bf16x6"} in prepared
    assert served() == {"addmm": 1, "mm": 2}
    assert reasons("mm")["complex64 without f32="] == 1


def test_entries_are_counted_and_the_last_exit_restores() -> None:
    def is_ours() -> bool:
        gemmill.torch.reset_stats()
        torch.mm(A, B)
        return "mm" in served()

    with CPU.within():
        with pytest.raises(ZeroDivisionError), CPU.within():
            raise ZeroDivisionError
        assert is_ours()
    assert not is_ours()
    with CPU.within():
        assert is_ours()
    assert not is_ours()
    assert torch.equal(torch.mm(A, B), (A.double() @ B.double()).to(A.dtype))


def test_threads_enter_and_leave_within_another_s_entry() -> None:
    wanted = torch.mm(A, B)
    wrong: list[int] = []

    def work() -> None:
        for _ in range(20):
            with CPU.within():
                wrong.extend(1 for _ in range(20) if not torch.equal(torch.mm(A, B), wanted))

    threads = [threading.Thread(target=work) for _ in range(8)]
    with CPU.within():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong
    assert served() == {"mm": 8 * 20 * 20}


def test_threads_that_enter_and_leave_while_others_multiply() -> None:
    wanted = torch.mm(A, B)
    wrong: list[str] = []
    end = time.monotonic() + 0.5

    def work(seed: int) -> None:
        try:
            while time.monotonic() < end:
                with CPU.within() if seed % 2 else contextlib.nullcontext():
                    assert torch.equal(torch.mm(A, B), wanted)
        except Exception as error:  # noqa: BLE001 - told in the main thread
            wrong.append(repr(error))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


LAST = """
import threading, torch, gemmill.torch
from tests.torch.references import references
from gemmill.runtime.torch.takeover.overrides import Takeover

a = torch.ones(64, 64, dtype=torch.bfloat16)
cpu, ends = Takeover("CPU", references), threading.Event()
thread = threading.Thread(target=ends.wait)
thread.start()
with cpu.within():
    torch.mm(a, a)
assert cpu._library is not None
print("passed on", float(torch.mm(a, a)[0, 0]), gemmill.torch.stats().served["mm"]["reference"].calls)
ends.set()
thread.join()
with cpu.within():
    torch.mm(a, a)
assert cpu._library is None
cpu.enter()

class Late:
    def __del__(self):  # no view, which PyTorch alone aborts at by now
        print("late", torch.mm(a, a).sum().item())

kept = Late()
print("first", float(torch.mm(a, a)[0, 0]), gemmill.torch.stats().served["mm"]["reference"].calls)
"""


def test_kernels_leave_the_dispatcher_when_there_is_no_other_thread_and_at_the_end() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LAST], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["passed on 64.0 1", "first 64.0 3", "late 262144.0"]


def test_ever_new_signatures_are_forgotten_but_counted(monkeypatch: Any) -> None:
    monkeypatch.setattr(overrides, "_SIGNATURES", 16)
    with CPU.within():
        for m in range(1, 100):
            torch.mm(wide(1, 8).expand(m, 8), B)
    line = gemmill.torch.stats().served["mm"]["reference"]
    assert (line.calls, line.problems, line.flops) == (99, 99, 2 * 8 * 3 * sum(range(1, 100)))
    (override,) = [x for x in CPU._overrides if x.name == "mm"]
    assert len(override._routes) <= 16


def test_stats_print_and_become_json() -> None:
    assert str(gemmill.torch.stats()) == "No matmuls counted yet."
    with CPU.within():
        torch.mm(A, B)
        aten._grouped_mm(wide(6, 8, dtype=torch.float64).bfloat16(), wide(3, 8, 8), ends(2, 2, 6))
        torch.mm(A.double(), B.double())
    found = json.loads(json.dumps(gemmill.torch.stats().as_dict()))
    one = 2 * 5 * 8 * 3
    assert found["served"]["mm"] == {"reference": {"problems": 1, "calls": 1, "flops": one}}
    assert found["served"]["_grouped_mm"]["reference"]["flops"] == 2 * 6 * 8 * 8
    assert found["fallback"]["mm"]["float64 is not supported"] == {"problems": 1, "calls": 1, "flops": one}
    assert "PyTorch: float64" in str(gemmill.torch.stats())
    gemmill.torch.reset_stats()
    assert gemmill.torch.stats().as_dict() == {"share": None, "served": {}, "fallback": {}}


def test_rows_name_arguments_that_operators_have() -> None:
    for name, row in ROWS.items():
        operator, _, overload = name.partition(".")
        names = {x.name for x in getattr(getattr(aten, operator), overload or "default")._schema.arguments}
        assert {row.a, row.b, row.c, row.out} - {""} <= names, name


def test_a_machine_without_gpu_enables_what_never_runs() -> None:
    with gemmill.torch.enabled():
        assert torch.equal(torch.mm(A, B), A @ B)
