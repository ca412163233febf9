"""Verification against float64 with a bound for every element.

For D = round(alpha * acc + beta * C) an element may differ from its float64 value by

- what the accumulator loses. A WGMMA adds 16 products at a time to a running sum, and each addition loses at most an
  ulp of that sum. The sums of random operands of both signs stay within ``SIGMAS * sqrt(sum (a b)^2)`` (Hoeffding and
  Levy: a failure has probability below 1e-12). f32 sums are truncated, so their errors may all have one sign and add up
  along K; f16 sums are rounded to nearest, so theirs grow with the square root (Fasi et al., "Numerical behavior of
  NVIDIA tensor cores", 2021).
- the f32 arithmetic of the epilogue: an ulp of alpha * acc and of beta * C;
- half an ulp of D's format.

The usual ``gamma_K * (|A| @ |B|)`` grows with K instead of its square root: at K = 8192 it would let a missing product
pass. The price: the bound holds for random operands such as :mod:`gemmill.profiler.operands` makes, not for any.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gemmill.library.dtypes import DTYPES
from gemmill.library.problem import GemmProblem
from gemmill.profiler.operands import OperandSet, torch, torch_dtype

SIGMAS = 8.0
"""Standard deviations that no partial sum exceeds."""
INSTRUCTION_K = 16
"""Products of 16-bit operands that one WGMMA sums before it rounds."""
CHUNK = 1 << 26
"""Elements compared at a time: bounds the memory for float64 temporaries to about 2 GB."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Outcome of one verification."""

    passed: bool
    error: float
    """Largest error, as a multiple of the element's bound; infinite where an element is NaN or was never written."""
    says: str
    """The worst element and how many exceed their bound; empty when all is well."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Expected D in float64 and the permitted error of each element, both (batch, M, N)."""

    expected: Any
    bound: Any

    def compare(self, d: Any) -> Comparison:
        """Hold a computed D against every element's bound."""
        actual = d if d.dim() == 3 else d.unsqueeze(0)
        wrong, worst, place = 0, 0.0, (0, 0, 0)
        for batch, rows in _chunks(actual.shape):
            expected, bound = self.expected[batch, rows], self.bound[batch, rows]
            error = (actual[batch, rows].double() - expected).abs_() / bound
            # A NaN, or an infinity that the reference does not have, is infinitely wrong.
            error = error.nan_to_num_(nan=math.inf, posinf=math.inf)
            wrong += int((error > 1).sum())
            chunk_worst = float(error.max())
            if chunk_worst > worst:
                row, column = divmod(int(error.argmax()), error.shape[1])
                worst, place = chunk_worst, (batch, rows.start + row, column)
        if not wrong:
            return Comparison(True, worst, "")
        where = (f"D[{place[0]}]" if len(actual) > 1 else "D") + f"[{place[1]}, {place[2]}]"
        return Comparison(
            False,
            worst,
            f"{wrong} of {actual.numel()} elements exceed their bound; {where} is {float(actual[place]):.6g}, expected "
            f"{float(self.expected[place]):.6g} within {float(self.bound[place]):.3g}",
        )


def reference(problem: GemmProblem, operands: OperandSet, alpha: float, beta: float) -> Reference:
    """Compute alpha * A @ B + beta * C in float64 on the operands' device, and each element's bound."""
    shape = (problem.batch, problem.m, problem.n)
    a, b = (_batched(tensor, problem.batch) for tensor in (operands.a, operands.b))
    c = None if operands.c is None or beta == 0.0 else _batched(operands.c, problem.batch)
    expected = torch().empty(shape, dtype=torch().float64, device=a.device)
    bound = torch().empty(shape, dtype=torch().float32, device=a.device)
    lost, epsilon32 = accumulator_loss(problem), DTYPES["f32"].epsilon
    for batch, rows in _chunks(shape):
        left, right = a[batch, rows].double(), b[batch].double()
        product = (left @ right).mul_(alpha)
        spread = (left.square_() @ right.square_()).sqrt_().mul_(abs(alpha) * lost)
        spread += product.abs().mul_(epsilon32)
        if c is not None:
            added = c[batch, rows].double().mul_(beta)
            spread += added.abs().mul_(epsilon32)
            product += added
        spread += half_ulp(product.abs() + spread, problem.d_dtype)
        expected[batch, rows] = product
        bound[batch, rows] = spread
    return Reference(expected, bound)


def accumulator_loss(problem: GemmProblem) -> float:
    """What summation loses, as a multiple of ``sqrt(sum (a b)^2)``: see the module's text."""
    steps = -(-problem.k // INSTRUCTION_K) + 1
    growth = steps if problem.accumulator == "f32" else math.sqrt(steps)
    return SIGMAS * growth * DTYPES[problem.accumulator].epsilon


def half_ulp(magnitude: Any, dtype: str) -> Any:
    """Half the distance between the numbers of a format around each magnitude; subnormals included."""
    info = torch().finfo(torch_dtype(dtype))
    # frexp's mantissa lies in [0.5, 1): the binade of x is 2^(e-1), and its ulp epsilon times that. 2 * tiny, not tiny,
    # keeps the f32 bound of a zero from vanishing.
    exponent = torch().frexp(magnitude.clamp(min=2 * info.tiny)).exponent
    return torch().ldexp(torch().full_like(magnitude, info.eps / 4), exponent)


def _batched(tensor: Any, batch: int) -> Any:
    return tensor if tensor.dim() == 3 else tensor.unsqueeze(0).expand(batch, -1, -1)


def _chunks(shape: Any) -> Iterator[tuple[int, slice]]:
    """Batch index and rows of parts of at most :data:`CHUNK` elements, at least a row."""
    batch, m, n = shape
    step = max(1, CHUNK // max(1, n))
    for index in range(batch):
        for row in range(0, m, step):
            yield index, slice(row, min(m, row + step))
