"""Verification against float64 with a bound for every element.

For D = round(alpha * acc + beta * C) an element may differ from its float64 value by

- what the tensor cores lose: :func:`summation_loss`;
- the arithmetic of the epilogue, in f32 but for f64 accumulators: an ulp of alpha * acc and of beta * C;
- half an ulp of D's format; D saturates in 8 bits.

Integer sums are exact, in float64 as well (below 2^53), and with D in s32 so is the epilogue: D has one right value.

The sums of random operands of both signs stay within ``SIGMAS * sqrt(sum (a b)^2)`` (Hoeffding and Levy: a failure has
probability below 1e-12). The usual ``gamma_K * (|A| @ |B|)`` grows with K instead of its square root: at K = 8192 it
would let a missing product pass. The price: the bound holds for random operands such as
:mod:`gemmill.profiler.measure.operands` makes, not for any.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gemmill.library.dtypes import DTYPES
from gemmill.library.families.wgmma.warpgroups import INSTRUCTION_K_BYTES
from gemmill.library.problem import GemmProblem, upconverts_a
from gemmill.profiler.measure.operands import OperandSet, scale_block, torch, torch_dtype

SIGMAS = 8.0
"""Standard deviations that no partial sum exceeds."""
FP8_EPSILON = 2.0**-13
"""What the fp8 tensor cores of Hopper keep of a sum, relative to its largest term: products and running sum are aligned
to that term and cut off below 13 fraction bits (DeepSeek-V3 technical report, 3.3.2; 14 bits with the leading one).
Summed so, 32 products at a time, nine of ten results of cuBLAS on an H200 come out bit for bit."""
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
    mixed = upconverts_a(problem.a_dtype, problem.b_dtype)
    upconverted_a = upconverted(problem, operands) if mixed else operands.a
    a, b = (_batched(tensor, problem.batch) for tensor in (upconverted_a, operands.b))
    c = None if operands.c is None or beta == 0.0 else _batched(operands.c, problem.batch)
    expected = torch().empty(shape, dtype=torch().float64, device=a.device)
    bound = torch().empty(shape, dtype=torch().float32, device=a.device)
    lost, epsilon = summation_loss(problem), _epilogue_epsilon(problem)
    for batch, rows in _chunks(shape):
        left, right = (x.to(torch().float64, copy=True) for x in (a[batch, rows], b[batch]))
        if operands.a_scale is not None and not mixed:
            across, along_k = scale_block(problem.a_scale)
            scales = _batched(operands.a_scale, problem.batch)[batch].repeat_interleave(across, 0)
            left *= scales[rows].repeat_interleave(along_k, 1)[:, : problem.k]
        if operands.b_scale is not None:
            across, along_k = scale_block(problem.b_scale)
            scales = _batched(operands.b_scale, problem.batch)[batch].repeat_interleave(across, 1)
            right *= scales.repeat_interleave(along_k, 0)[: problem.k, : problem.n]
        product = (left @ right).mul_(alpha)
        spread = product.abs().mul_(epsilon)
        if lost:
            spread += (left.square_() @ right.square_()).sqrt_().mul_(abs(alpha) * lost)
        if c is not None:
            added = c[batch, rows].double().mul_(beta)
            spread += added.abs().mul_(epsilon)
            product += added
        product = saturated(product, problem.d_dtype)
        spread += half_ulp(product.abs() + spread, problem.d_dtype)
        expected[batch, rows] = product
        bound[batch, rows] = spread
    return Reference(expected, bound)


def upconverted(problem: GemmProblem, operands: OperandSet) -> Any:
    """Narrow A in B's dtype, as kernels compute it: (q - zero) * scale, rounded after each step."""
    narrow, wide = problem.a_dtype, torch_dtype(problem.b_dtype)
    if DTYPES[narrow].bits == 4:
        nibbles = torch().stack((operands.a & 15, operands.a >> 4 & 15), dim=-1).flatten(-2)[..., : problem.k].int()
        values = (nibbles - 16 * (nibbles > 7) if narrow == "s4" else nibbles).to(wide)
    else:
        values = operands.a.to(torch().float32).to(wide)
    if operands.a_scale is None:
        return values
    _, group = scale_block(problem.a_scale)

    def spread(groups: Any) -> Any:
        return groups.repeat_interleave(group, -1)[..., : problem.k]

    if operands.a_zero is not None:
        values = values - spread(operands.a_zero)
    return values * spread(operands.a_scale)


def summation_loss(problem: GemmProblem) -> float:
    """What the products' sum loses, as a multiple of ``sqrt(sum (a b)^2)``.

    A tensor core adds the products of an instruction to a running sum: 32 bytes of K.

    - f32 sums: an ulp of the sum each time. They are truncated, so errors may all have one sign and add up along K.
    - f16: the same ulp, but rounded to nearest, so that errors grow with the square root of K (Fasi et al., "Numerical
      behavior of NVIDIA tensor cores", 2021).
    - tf32: before that, each operand loses 13 of its 23 fraction bits, rounded or truncated: a root mean square below
      2^-10 of a product for both operands, and products of both signs.
    - fp8: the running sum is truncated as above, at :data:`FP8_EPSILON`, and so is each product, with its own sign:
      half an ulp on average, of a sum that is on average half of what it becomes. Sum and error are independent: both
      at many sigmas at once is as rare as their squares together, so their product stays within SIGMAS^2 / 2, and
      half of that for the same reason. Promotion confines this to a few instructions; the slices of K then add up in
      f32, and their errors like random numbers. (cuBLAS on an H200: a million sums reach a fifth of this bound.)
    - f32 and f64 operands: each product and sum is rounded to nearest, by the kernel and, of f64, by the reference.
    """
    if DTYPES[problem.accumulator].is_integer:
        return 0.0
    types = DTYPES[problem.a_dtype], DTYPES[problem.b_dtype]
    epsilon, k = DTYPES[problem.accumulator].epsilon, problem.k
    if problem.a_dtype in ("f32", "f64"):
        return SIGMAS**2 / 2 * math.sqrt(k + 1) * epsilon
    products = INSTRUCTION_K_BYTES * 8 // max(t.bits for t in types)
    lost = 0.0
    if all(t.bits == 8 for t in types):
        promoted = problem.promote * products or k
        lost += FP8_EPSILON * SIGMAS / 4 * (min(k, promoted) / products + 1)
        lost += FP8_EPSILON * SIGMAS**2 / 4 * math.sqrt(min(k, promoted) / 3)
        products = promoted
    if "tf32" in (problem.a_dtype, problem.b_dtype):
        lost += SIGMAS * DTYPES["tf32"].epsilon
    steps = -(-k // max(1, products)) + 1
    if problem.b_scale != "none":
        steps *= 3  # two roundings more: of the product of the scales, and of what it multiplies
    return lost + SIGMAS * epsilon * (math.sqrt(steps) if problem.accumulator == "f16" else steps)


def _epilogue_epsilon(problem: GemmProblem) -> float:
    """What the epilogue loses of each of its terms."""
    if problem.accumulator == problem.d_dtype == "s32":
        return 0.0
    return DTYPES["f64" if problem.accumulator == "f64" else "f32"].epsilon


def saturated(values: Any, dtype: str) -> Any:
    """Values clamped to the range of an integer or an 8-bit format; others overflow to infinity."""
    info = _info(dtype)
    return values.clamp(info.min, info.max) if info.bits == 8 or DTYPES[dtype].is_integer else values


def half_ulp(magnitude: Any, dtype: str) -> Any:
    """Half the distance between the numbers of a format around each magnitude; subnormals included."""
    if DTYPES[dtype].is_integer:
        return torch().full_like(magnitude, 0.5)
    info = _info(dtype)
    # frexp's mantissa lies in [0.5, 1): the binade of x is 2^(e-1), and its ulp epsilon times that. 2 * tiny, not tiny,
    # keeps the f32 bound of a zero from vanishing.
    exponent = torch().frexp(magnitude.clamp(min=2 * info.tiny)).exponent
    return torch().ldexp(torch().full_like(magnitude, info.eps / 4), exponent)


def _info(dtype: str) -> Any:
    """torch's limits of a format."""
    return (torch().iinfo if DTYPES[dtype].is_integer else torch().finfo)(torch_dtype(dtype))


def _batched(tensor: Any, batch: int) -> Any:
    return tensor if tensor.dim() == 3 else tensor.unsqueeze(0).expand(batch, -1, -1)


def _chunks(shape: Any) -> Iterator[tuple[int, slice]]:
    """Batch index and rows of parts of at most :data:`CHUNK` elements, at least a row."""
    batch, m, n = shape
    step = max(1, CHUNK // max(1, n))
    for index in range(batch):
        for row in range(0, m, step):
            yield index, slice(row, min(m, row + step))
