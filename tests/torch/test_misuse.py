"""Misuses of the operators, on the CPU; tests/gpu/test_misuse.py has every way in, and what takes a GPU."""

from __future__ import annotations

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
