"""PyTorch's own samples for matrix products (OpInfo), forward and backward, against float64: by ``enabled()``, which
serves or falls back, and by our operators.

Samples are small and strange: no rows, no K, expanded, vectors, sums with factors. On a GPU; the same logic runs on the
CPU in tests/torch/test_opinfo.py.
"""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

from tests.torch.opinfo import (  # noqa: E402
    BY_OPERATORS,
    DTYPES,
    OPS,
    check_operators,
    check_taken_over,
    needed_kernels,
)

import gemmill.torch  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def kernels() -> None:
    """All that the samples need, compiled in parallel."""
    from benchmarks.pytorch.warming import warm

    warm(needed_kernels(DTYPES))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPS)
def test_what_is_taken_over_gives_what_float64_gives(name: str, dtype: str) -> None:
    check_taken_over(name, getattr(torch, dtype), "cuda")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
@pytest.mark.parametrize("name", BY_OPERATORS)
def test_operators_give_what_float64_gives(name: str, dtype: str) -> None:
    check_operators(name, getattr(torch, dtype), "cuda")


def test_samples_were_served() -> None:
    """Some of them at least, by kernels of ours."""
    check_taken_over("nn.functional.linear", torch.bfloat16, "cuda")
    assert "linear" in str(gemmill.torch.stats()) or "mm" in str(gemmill.torch.stats())


def test_a_run_without_launches_leaves_operators_as_they_were() -> None:
    """For fake tensors too, whose calls PyTorch looks up by key."""
    from benchmarks.pytorch.warming import without_launches

    with without_launches("cuda", set()):
        pass
    a = torch.ones(16, 32, device="cuda", dtype=torch.bfloat16)
    with torch._subclasses.FakeTensorMode() as mode:
        assert torch.ops.gemmill.mm(mode.from_tensor(a), mode.from_tensor(a).mT).shape == (16, 16)
    assert torch.ops.gemmill.mm(a, a.mT).eq(32).all()
