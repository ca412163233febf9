"""``route`` and ``combine`` with tensors of PyTorch that they cannot take."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import gemmill  # noqa: E402
from gemmill.library.errors import OperandError  # noqa: E402

PLACES = torch.zeros(4, 2, dtype=torch.int32)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_tensors_are_in_gpu_memory(dtype: Any) -> None:
    with pytest.raises(OperandError, match="topk_ids is on cpu; it must be in GPU memory"):
        gemmill.route(PLACES.to(dtype), 8)
    with pytest.raises(OperandError, match="y is on cpu; it must be in GPU memory"):
        gemmill.combine(torch.ones(8, 64), PLACES.to(dtype))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32], ids=str)
def test_ids_are_whole_numbers_of_32_or_64_bits(dtype: Any) -> None:
    with pytest.raises(OperandError, match=r"topk_ids has dtype .* it must be int32 or int64"):
        gemmill.route(PLACES.to(dtype), 8)


def test_gradients_are_not_recorded() -> None:
    y = torch.ones(8, 64, requires_grad=True)
    says = r"gemmill.combine only launches kernels, .* of PyTorch: pass plain tensors under torch.no_grad\(\)"
    with pytest.raises(OperandError, match=says):
        gemmill.combine(y, PLACES)
    with torch.no_grad(), pytest.raises(OperandError, match="y is on cpu"):
        gemmill.combine(y, PLACES)
