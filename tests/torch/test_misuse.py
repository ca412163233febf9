"""Misuses of the operators, on the CPU; tests/gpu/test_misuse.py has every way in, and what takes a GPU."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from tests.torch.misuse import MISUSES, check_misuse  # noqa: E402


def _operator(a: Any, b: Any, out: Any = None) -> Any:
    if out is None:
        return torch.ops.gemmill.mm(a, b)
    torch.ops.gemmill.mm_out(a, b, out)
    return out


@pytest.mark.parametrize("name", [x for x in MISUSES if not x.startswith("out ") and x != "storage that is freed"])
def test_the_next_call_is_right(name: str) -> None:
    """But for what only kernels refuse."""
    check_misuse(name, _operator, "cpu")


CPU_CALLS = """
import torch
import gemmill, gemmill.torch

a, none = torch.zeros(64, 64), torch.zeros(0, 64)
calls = {
    "call": lambda: gemmill.matmul(a, a),
    "plan": lambda: gemmill.plan(a, a),
    "recorded": lambda: gemmill.matmul(a.clone().requires_grad_(), a),
    "mapped": lambda: torch.vmap(gemmill.matmul)(a[None], a[None]),
    "compiled": lambda: torch.compile(lambda x: gemmill.matmul(x, x), backend="eager", fullgraph=True)(a),
    "operator": lambda: torch.ops.gemmill.mm(a, a),
    "grouped": lambda: torch.ops.gemmill.grouped_mm(a, a[None], torch.tensor([64])),
    "mutating": lambda: torch.ops.gemmill.mm_out(a, a, a.clone()),
    "epilogue": lambda: gemmill.matmul(a.clone().requires_grad_(), a, epilogue="d = silu(acc)"),
}
for name, call in calls.items():
    try:
        call()
    except gemmill.OperandError as error:
        if error.__cause__ or error.__context__ or str(error) != "a is on cpu; it must be in GPU memory: pass a.cuda()":
            print(name, repr(error), repr(error.__cause__), repr(error.__context__))
    else:
        print(name, "is not refused")
"""


@pytest.mark.slow
def test_tensors_on_the_cpu_are_refused_by_one_sentence() -> None:
    """In every way in, without what PyTorch says of its dispatcher; in a process without ``run_on_cpu``."""
    done = subprocess.run([sys.executable, "-c", CPU_CALLS], capture_output=True, text=True, check=True)
    assert done.stdout == ""
