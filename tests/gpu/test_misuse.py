"""After any misuse the process's context lives and the next call is right: by every way in, on a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

from tests.torch.misuse import MISUSES, Multiply, check_alive, check_misuse, operands  # noqa: E402

import gemmill.torch  # noqa: E402


def _operator(a: Any, b: Any, out: Any = None) -> Any:
    if out is None:
        return torch.ops.gemmill.mm(a, b)
    torch.ops.gemmill.mm_out(a, b, out)
    return out


def _taken_over(a: Any, b: Any, out: Any = None) -> Any:
    with gemmill.torch.enabled():
        return torch.mm(a, b) if out is None else torch.mm(a, b, out=out)


WAYS: dict[str, Multiply] = {
    "matmul": lambda a, b, out=None: gemmill.matmul(a, b, out=out),
    "operator": _operator,
    "enabled": _taken_over,
}

NOT_OURS = {
    (
        "enabled",
        "storage that is freed",
    ): "PyTorch's own product, where ours falls back to it, may read a freed storage",
    ("enabled", "out is A"): "PyTorch's own product does not look for it",
    ("enabled", "out overlaps A"): "PyTorch's own product does not look for it",
}
"""What a way leaves to PyTorch, which checks less."""


@pytest.mark.parametrize("name", MISUSES)
@pytest.mark.parametrize("way", WAYS)
def test_the_next_call_is_right(way: str, name: str) -> None:
    if (way, name) in NOT_OURS:
        pytest.skip(NOT_OURS[way, name])
    check_misuse(name, WAYS[way], "cuda")
    torch.cuda.synchronize()


@pytest.mark.parametrize("way", WAYS)
def test_capture_without_warm_up(way: str) -> None:
    """Of a problem that no call had before: refused, or captured; and the stream can be used, and captured, again."""
    m = 1000 + 24 * [*WAYS].index(way)
    a, b = operands("cuda", m=m, k=136, n=264)
    torch.cuda.synchronize()
    graph, made = torch.cuda.CUDAGraph(), None
    try:
        with torch.cuda.graph(graph):
            made = WAYS[way](a, b)
        graph.replay()
        assert torch.equal(made.double(), a.double() @ b.double())
    except (gemmill.GemmillError, RuntimeError):
        assert made is None
    torch.cuda.synchronize()
    check_alive(WAYS[way], "cuda")
    graph = torch.cuda.CUDAGraph()
    WAYS[way](a, b)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        made = WAYS[way](a, b)
    made.zero_()
    graph.replay()
    assert torch.equal(made.double(), a.double() @ b.double())


def test_exceptions_leave_enabled_as_they_found_it() -> None:
    a, b = operands("cuda")
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), gemmill.torch.enabled(), gemmill.torch.enabled():
            print(torch.mm(a, b).shape[0] // 0)
        with pytest.raises(RuntimeError), gemmill.torch.enabled():
            torch.mm(a, b[:32])
    first, second = gemmill.torch.enabled(), gemmill.torch.enabled()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)  # in another order than they should
    assert torch.equal(torch.mm(a, b).double(), a.double() @ b.double())
    second.__exit__(None, None, None)
    check_alive(torch.mm, "cuda")
    check_alive(_taken_over, "cuda")


def test_threads_that_enter_and_leave_while_others_multiply() -> None:
    wrong: list[str] = []
    end = time.monotonic() + 1

    def work(seed: int) -> None:
        try:
            while time.monotonic() < end:
                check_alive(_taken_over if seed % 2 else torch.mm, "cuda")
        except Exception as error:  # noqa: BLE001 - told in the main thread
            wrong.append(repr(error))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_forked_child_is_told_and_the_parent_goes_on() -> None:
    """The driver's state is none in it: no hang, no crash, an error."""
    a, b = operands("cuda")
    for multiply in WAYS.values():
        multiply(a, b)
    torch.cuda.synchronize()
    child = os.fork()
    if child == 0:
        refused = 0
        for multiply in WAYS.values():
            try:
                multiply(a, b)
                torch.cuda.synchronize()
            except Exception:  # noqa: BLE001 - whichever it is
                refused += 1
        os._exit(0 if refused == len(WAYS) else 3)
    for _ in range(200):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.1)
    else:
        os.kill(child, 9)
        os.waitpid(child, 0)
        pytest.fail("the child hangs")
    assert os.waitstatus_to_exitcode(status) == 0
    check_alive(WAYS["matmul"], "cuda")
    check_alive(_taken_over, "cuda")


LAST = """
import atexit, torch, gemmill.torch

a, b = (torch.ones(64, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
gemmill.torch.install()

class Late:
    def __del__(self):  # no view, which PyTorch alone aborts at by now
        print("late", torch.mm(a, b).sum().item(), gemmill.matmul(a, b).sum().item())

@atexit.register
def last():
    print("last", float(torch.mm(a, b)[0, 0]), float(gemmill.matmul(a, b)[0, 0]))

print("first", float(torch.mm(a, b)[0, 0]))
kept = Late()
if {raises}:
    raise SystemExit(0)
"""


@pytest.mark.parametrize("raises", [False, True])
def test_calls_at_the_end_of_the_process(raises: bool) -> None:
    program = LAST.replace("{raises}", str(raises))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:2] == ["first 64.0", "last 64.0 64.0"]


def test_tensors_of_another_gpu() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    a, b = operands("cuda:0")
    for multiply in WAYS.values():
        with pytest.raises((gemmill.GemmillError, RuntimeError)):
            multiply(a, b.to("cuda:1"))
        other = torch.cuda.Stream(1)
        with torch.cuda.stream(other):  # whose GPU is then the current one
            assert torch.equal(multiply(a, b).cpu().double(), (a.double() @ b.double()).cpu())
        with pytest.raises(gemmill.GemmillError):
            gemmill.matmul(a, b, stream=other)
        check_alive(multiply, "cuda:0")
