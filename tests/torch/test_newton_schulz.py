"""Newton-Schulz steps by operators on the CPU: values against float64, shapes, faults."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import gemmill.torch  # noqa: E402
from gemmill.library.errors import OperandError  # noqa: E402
from gemmill.runtime.torch.newton_schulz import COEFFICIENTS  # noqa: E402


def polynomial(g: Any, steps: int) -> Any:
    """The steps in float64, by singular values."""
    a, b, c = COEFFICIENTS
    u, s, v = torch.linalg.svd(g.double() / g.double().norm(dim=(-2, -1), keepdim=True), full_matrices=False)
    for _ in range(steps):
        s = a * s + b * s**3 + c * s**5
    return u @ torch.diag_embed(s) @ v


@pytest.mark.parametrize("gram", [False, True])
@pytest.mark.parametrize("shape", [(48, 96), (96, 48), (2, 3, 32, 48)])
def test_steps_are_those_of_the_definition(shape: tuple[int, ...], gram: bool) -> None:
    g = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    torch.compiler.reset()
    compiled = torch.compile(gemmill.torch.newton_schulz, backend="eager", fullgraph=True)
    for steps in (1, 2, 5):
        found, wanted = compiled(g, steps=steps, gram=gram), polynomial(g, steps)
        assert (found.shape, found.dtype) == (g.shape, torch.bfloat16)
        assert float((found.double() - wanted).norm() / wanted.norm()) < (0.01 if gram else 0.03)


@pytest.mark.parametrize(
    ("g", "options", "fault"),
    [
        (torch.ones(4), {}, r"g has shape \(4,\); it must be"),
        (torch.ones(4, 4).int(), {}, r"g is torch.int32; .* pass g.float\(\)"),
        (torch.ones(4, 4).cfloat(), {}, r"g is torch.complex64; it must have a float dtype$"),
        (torch.ones(4, 4), {"coefficients": (1.5, -0.5)}, r"coefficients is \(1.5, -0.5\); it must be three numbers"),
        (torch.ones(4, 4), {"steps": -1}, "steps is -1; it must be at least 0"),
        (torch.ones(4, 4), {"dtype": torch.float32}, "dtype is torch.float32; it must be torch.bfloat16 or"),
    ],
)
def test_what_cannot_be_orthogonalised_is_refused(g: Any, options: dict[str, Any], fault: str) -> None:
    with pytest.raises(OperandError, match=fault):
        gemmill.torch.newton_schulz(g, **options)
