"""``gemmill.torch.newton_schulz``: the orthogonalisation of Muon, with half of the work of its symmetric products."""

from __future__ import annotations

import torch

from gemmill.library.errors import OperandError
from gemmill.runtime.api.matmul import matmul, syrk

Coefficients = tuple[float, float, float]
COEFFICIENTS: Coefficients = (3.4445, -4.7750, 2.0315)
"""Those of Muon (Jordan et al., 2024): five steps bring singular values to between 0.7 and 1.2."""
RESTART = 2
"""Steps of the Gram form after which X is multiplied out, before rounding errors of its Gram matrix grow."""
WIDE = 1.5
"""Least ratio of N to M from which on the Gram form has less work."""


@torch.no_grad()  # type: ignore[untyped-decorator]
def newton_schulz(
    g: torch.Tensor,
    steps: int = 5,
    coefficients: Coefficients = COEFFICIENTS,
    eps: float = 1e-7,
    dtype: torch.dtype = torch.bfloat16,
    gram: bool | None = None,
) -> torch.Tensor:
    """Return about the orthogonal matrix that is nearest to ``g``: U V^T of its singular value decomposition U S V^T.

    A step computes A = X X^T, B = b A + c A A and a X + B X, on the smaller side of ``g``. A and B are symmetric, so
    that :func:`gemmill.syrk` multiplies half of them. ``torch.optim.Muon`` takes the same steps.

    The Gram form gathers the factors a I + B in a matrix of the smaller side, and takes A from one step to the next by
    products with them. These are symmetric too. It multiplies X only twice, and computes in f16, because bf16 would
    lose small singular values.

    Args:
        g: (..., M, N), of any float dtype: a matrix, or a stack of matrices that are orthogonalised one by one.
        steps: Number of steps.
        coefficients: a, b and c.
        eps: Least norm by which a matrix is divided.
        dtype: Dtype of the result, and of the products without Gram form: bfloat16 or float16.
        gram: Whether to use the Gram form. Default: where the longer side is at least 1.5 times the shorter.

    Returns:
        (..., M, N). No gradient is recorded.

    Raises:
        OperandError: ``g`` has fewer than two dimensions or no float dtype, or gemmill does not support its device;
            ``steps`` is negative; ``coefficients`` are not three; ``dtype`` is another.
    """
    if g.dim() < 2:
        raise OperandError(f"g has shape {tuple(g.shape)}; it must be (..., M, N)")
    if not g.is_floating_point():
        raise OperandError(f"g is {g.dtype}; it must have a float dtype{'' if g.is_complex() else ': pass g.float()'}")
    if steps < 0:
        raise OperandError(f"steps is {steps}; it must be at least 0")
    if len(coefficients) != 3:
        raise OperandError(f"coefficients is {coefficients}; it must be three numbers a, b and c")
    if dtype not in (torch.bfloat16, torch.float16):
        raise OperandError(f"dtype is {dtype}; it must be torch.bfloat16 or torch.float16")
    rows, columns = g.shape[-2:]
    if gram is None:
        gram = max(rows, columns) >= WIDE * min(rows, columns)
    norm = torch.linalg.vector_norm(g, dim=(-2, -1), keepdim=True, dtype=torch.float32)
    x = torch.empty_like(g, dtype=torch.float16 if gram else dtype)
    torch.mul(g, norm.clamp(min=eps).reciprocal(), out=x)
    y = (_gram_form if gram else _steps)(x.mT if rows > columns else x, steps, coefficients, dtype)
    return y.mT if rows > columns else y


def _steps(x: torch.Tensor, steps: int, coefficients: Coefficients, dtype: torch.dtype) -> torch.Tensor:
    a, b, c = coefficients
    for _ in range(steps):
        gram = syrk(x)
        x = matmul(syrk(gram, c=gram, alpha=c, beta=b), x, c=x, beta=a)
    return x


def _gram_form(x: torch.Tensor, steps: int, coefficients: Coefficients, dtype: torch.dtype) -> torch.Tensor:
    a, b, c = coefficients
    factor, gram = None, syrk(x)
    for step in range(1, steps + 1):
        z = matmul(gram, gram, c=gram, alpha=c, beta=b, symmetric=True)
        if factor is None:
            factor = z.clone()
            factor.diagonal(dim1=-2, dim2=-1).add_(a)
        else:
            factor = _product(factor, z, a)
        if step == RESTART < steps:
            x = matmul(factor, x)
            factor, gram = None, syrk(x)
        elif step < steps:
            gram = _product(_product(gram, z, a), z, a)
    return x.to(dtype) if factor is None else matmul(factor, x, out_dtype=dtype)


def _product(p: torch.Tensor, z: torch.Tensor, a: float) -> torch.Tensor:
    """P (a I + Z), for P and Z that are polynomials of one symmetric matrix, so that the product is symmetric.

    In tiles on the diagonal it is symmetric but for rounding: with Z^T in place of Z, such errors would grow.
    """
    return matmul(p, z, c=p, beta=a, symmetric=True)
