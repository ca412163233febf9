"""The logic of tests/gpu/test_opinfo.py on the CPU: our operators, by their references, on PyTorch's own samples."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from tests.torch.opinfo import BY_OPERATORS, OPS, check_operators, check_taken_over  # noqa: E402


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
@pytest.mark.parametrize("name", BY_OPERATORS)
def test_operators_give_what_float64_gives(name: str, dtype: str) -> None:
    check_operators(name, getattr(torch, dtype), "cpu")


@pytest.mark.parametrize("name", OPS)
def test_what_falls_back_gives_what_float64_gives(name: str) -> None:
    check_taken_over(name, torch.bfloat16, "cpu")
