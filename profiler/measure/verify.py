"""Verification against float64, with an error bound for each element.

An element of D = round(alpha * acc + beta * C) may differ from its float64 value by the sum of

- the error of the accumulation on tensor cores: :func:`summation_loss`;
- the error of the epilogue: an ulp of alpha * acc and of beta * C, in f32 (in f64 with f64 accumulators);
- half an ulp of D's format; 8-bit formats saturate.

Integer sums are exact, also in float64 (below 2^53). With D in s32 the epilogue is exact, too, so D has one correct
value. For expressions, :mod:`gemmill.profiler.measure.fused` bounds each operation, for D and all other outputs.

Sums of random operands of both signs stay within ``SIGMAS * sqrt(sum (a b)^2)`` (Hoeffding and Levy: the probability of
a failure is below 1e-12). The usual bound ``gamma_K * (|A| @ |B|)`` grows with K, not with its square root: at K = 8192
it would not detect a missing product. In return, this bound is valid only for random operands, such as those of
:mod:`gemmill.profiler.measure.operands`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gemmill.library import e2m1
from gemmill.library.config.scales import scale_block
from gemmill.library.dtypes import DTYPES
from gemmill.library.epilogues.evaluation import Bounded
from gemmill.library.epilogues.parse import LINEAR, parse
from gemmill.library.families.wgmma.wgmma_plan import INSTRUCTION_K_BYTES
from gemmill.library.problem import GemmProblem, upconverts_a
from gemmill.profiler.measure.fused import fused, outputs_of
from gemmill.profiler.measure.operands import OperandSet, has_groups, torch, torch_dtype
from gemmill.profiler.measure.parts import Part, parts

SIGMAS = 8.0
"""Largest magnitude of partial sums, in standard deviations."""
FP8_EPSILON = 2.0**-13
"""Relative precision of sums on Hopper's fp8 tensor cores. They align products and running sum to the largest term and
truncate below 13 fraction bits (DeepSeek-V3 technical report, 3.3.2; library/oracle/tensor_core.py)."""
CHUNK = 1 << 26
"""Maximum number of elements compared at a time, which limits float64 temporaries to about 2 GB."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Result of a verification."""

    passed: bool
    error: float
    """Largest error, as a multiple of the element's bound; infinite if an element is NaN or was not written."""
    says: str
    """The number of elements that exceed their bound, and the worst one; empty if all elements pass."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Expected D in float64, and the error bound of each element, both (matrices, M, columns). Bounds are infinite
    where no kernel writes."""

    expected: Any
    bound: Any
    outputs: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    """Expected values and bounds of the other outputs of the epilogue, by name."""

    def compare(self, d: Any, arguments: Mapping[str, Any] | None = None) -> Comparison:
        """Compare a computed D, and the other outputs by name, with the bound of each element."""
        comparison = _compared("D", d if d.dim() == 3 else d.unsqueeze(0), self.expected, self.bound)
        for name, (expected, bound) in self.outputs.items():
            shape = (1, -1, expected.shape[-1] if expected.dim() else 1)
            actual, *others = (x.reshape(shape) for x in ((arguments or {})[name], expected, bound))
            other = _compared(name, actual, *others)
            worst = max(comparison.error, other.error)
            comparison = Comparison(comparison.passed and other.passed, worst, comparison.says or other.says)
        return comparison


def _compared(name: str, actual: Any, expected: Any, bound: Any) -> Comparison:
    """Compare (matrices, rows, columns) with the expected values."""
    wrong, worst, place = 0, 0.0, (0, 0, 0)
    for batch, rows in _chunks(actual.shape):
        error = _errors(actual[batch, rows], expected[batch, rows], bound[batch, rows])
        wrong += int((error > 1).sum())
        chunk_worst = float(error.max())
        if chunk_worst > worst:
            row, column = divmod(int(error.argmax()), error.shape[1])
            worst, place = chunk_worst, (batch, rows.start + row, column)
    if not wrong:
        return Comparison(True, worst, "")
    where = (f"{name}[{place[0]}]" if len(actual) > 1 else name) + f"[{place[1]}, {place[2]}]"
    return Comparison(
        False,
        worst,
        f"{wrong} of {actual.numel()} elements exceed their bound; {where} is {float(actual[place]):.6g}, expected "
        f"{float(expected[place]):.6g} within {float(bound[place]):.3g}",
    )


def _errors(actual: Any, expected: Any, bound: Any) -> Any:
    """Errors as multiples of each element's bound; 0 where no kernel writes."""
    error = (actual.double() - expected).abs_() / bound
    if not error.isfinite().all():
        # A NaN or infinity that the reference does not have is an infinite error.
        rounded, computed = expected.to(actual.dtype).double(), actual.double()
        agrees = bound.isinf() | (computed.isinf() & (rounded == computed)) | (computed.isnan() & expected.isnan())
        error = error.nan_to_num_(nan=math.inf, posinf=math.inf).masked_fill_(agrees, 0.0)
    return error


def reference(problem: GemmProblem, operands: OperandSet, alpha: float, beta: float) -> Reference:
    """Compute alpha * A @ B + beta * C, or the epilogue expression, in float64 on the operands' device, with the bound
    of each element. The groups have the sizes of the operands."""
    if upconverts_a(problem.a_dtype, problem.b_dtype):
        operands = replace(operands, a=upconverted(problem, operands), a_scale=None)
    shape = (problem.batch if has_groups(problem, "d") else 1, problem.d_rows, problem.d_columns)
    device = operands.b.device
    expected = torch().full(shape, math.nan, dtype=torch().float64, device=device)
    bound = torch().full(shape, math.inf, dtype=torch().float32, device=device)
    c = None if operands.c is None else operands.c.expand(shape)
    others = outputs_of(problem, device)
    for part in parts(problem, operands):
        for rows in _rows(problem, part, CHUNK if problem.epilogue == LINEAR else CHUNK // 8):
            sums = _sums(problem, part, rows)
            c_rows = None if c is None else c[part.at, rows, part.columns]
            if problem.epilogue == LINEAR:
                results = {"d": _linear(problem, sums, c_rows, alpha, beta)}
            else:
                results = fused(problem, part, rows, sums, c_rows, operands.arguments, (alpha, beta))
            share = (rows.stop - rows.start) / (problem.d_rows * problem.batch)
            for name, output in others.items():
                output.add(part, rows, results[name], share)
            at = part.at, rows, part.columns
            expected[at], bound[at] = _stored(results["d"], problem.d_dtype)
    outputs = {name: _stored(Bounded(x.value, x.error), x.what.dtype) for name, x in others.items()}
    return Reference(expected, bound, outputs)


def _rows(problem: GemmProblem, part: Part, elements: int) -> Iterator[slice]:
    """Split the rows of D of a part into pieces of at most ``elements`` sums, or of one row or run of rows."""
    first, run = part.rows.start, max(1, parse(problem.epilogue).gate_rows)
    count = (part.rows.stop - first) * problem.d_rows // problem.m
    step = max(1, elements // max(1, part.b.shape[1]) // run) * run
    for row in range(0, count, step):
        yield slice(first + row, first + min(count, row + step))


def _sums(problem: GemmProblem, part: Part, rows: slice) -> Bounded:
    """Accumulators of some rows of D, with the error bound of tensor cores."""
    of_row = problem.m // problem.d_rows
    start, stop = ((row - part.rows.start) * of_row for row in (rows.start, rows.stop))
    left, right = part.scaled(problem, slice(start, stop))
    sums = left @ right
    lost = summation_loss(problem if part.b.shape[0] == problem.k else problem.but(k=part.b.shape[0]))
    if not lost:
        return Bounded(sums, torch().zeros_like(sums))
    error = (left.square_() @ right.square_()).sqrt_().mul_(lost)
    if problem.symmetry != "general":  # products of a row with itself have one sign, and partial sums grow to the sum
        error += sums.abs() * (lost / SIGMAS)
    return Bounded(sums, error)


def _linear(problem: GemmProblem, sums: Bounded, c: Any, alpha: float, beta: float) -> Bounded:
    epsilon = _epilogue_epsilon(problem)
    product = sums.value * alpha
    spread = product.abs() * epsilon + sums.error * abs(alpha)
    if c is not None and beta != 0.0:
        added = c.double() * beta
        spread += added.abs() * epsilon
        product += added
    return Bounded(product, spread)


def _stored(bounded: Bounded, dtype: str) -> tuple[Any, Any]:
    """A value saturated to a type but not rounded, and its bound including the rounding."""
    value = saturated(bounded.value, dtype)
    return value, (bounded.error + half_ulp(value.abs() + bounded.error, dtype)).float()


def upconverted(problem: GemmProblem, operands: OperandSet) -> Any:
    """Narrow A upconverted to B's dtype as in kernels: (q - zero) * scale, rounded after each operation. Beside e4m3 it
    is in f32, since the scales multiply sums."""
    narrow, wide = problem.a_dtype, torch_dtype("f32" if problem.b_dtype == "e4m3" else problem.b_dtype)
    if narrow == "e2m1":
        codes = e2m1.from_fragment_order(operands.a.int(), torch()).long()
        values = torch().tensor(e2m1.VALUES, dtype=wide, device=codes.device)[codes]
    elif DTYPES[narrow].bits == 4:
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
    return values * spread(operands.a_scale.to(wide))


def summation_loss(problem: GemmProblem) -> float:
    """Error bound of the accumulation, as a multiple of ``sqrt(sum (a b)^2)``.

    A tensor core adds the products of an instruction, 32 bytes of K, to a running sum.

    - f32 accumulators: an ulp of the sum per instruction. The sums are truncated, so all errors may have the same sign
      and grow linearly with K.
    - f16 accumulators: the same ulp, but rounded to nearest, so that errors grow with the square root of K (Fasi et
      al., "Numerical behavior of NVIDIA tensor cores", 2021).
    - tf32: in addition, each operand loses 13 of its 23 fraction bits, rounded or truncated. For both operands, the
      root mean square of this error is below 2^-10 of a product, and products have both signs.
    - fp8: the running sum is truncated as above, at :data:`FP8_EPSILON`. Each product is truncated, too, with its own
      sign: half an ulp on average, of a sum that is on average half of its final value. Sum and error are independent.
      Many sigmas of both at once are as improbable as the sum of their squares, so their product stays within
      SIGMAS^2 / 2, and within half of that for the same reason. Two-level accumulation limits this to a few
      instructions; the partial sums along K are then added in f32, and their errors behave like random numbers. (For
      cuBLAS on an H200, a million sums reach a fifth of this bound.)
    - split f32: each product lacks the terms that are not summed, and the rest of an element that its components do not
      hold: in the root mean square at most an epsilon of the split type. The sums of a stage are truncated as above, a
      few times each. They are then added in f32, and these errors behave like random numbers.
    - f32 and f64 operands: the kernel rounds each product and sum to nearest; for f64, the reference does as well.
    """
    if DTYPES[problem.accumulator].is_integer:
        return 0.0
    types = DTYPES[problem.a_dtype], DTYPES[problem.b_dtype]
    epsilon, k = DTYPES[problem.accumulator].epsilon, problem.k
    if problem.a_dtype in ("f32", "f64"):
        return SIGMAS**2 / 2 * math.sqrt(k + 1) * epsilon
    products = INSTRUCTION_K_BYTES * 8 // max(t.loaded.bits for t in types)
    if types[0].component:
        stages = -(-k // (problem.promote * products))
        truncated = types[0].epsilon + (problem.promote + 1) * epsilon
        return SIGMAS * truncated + SIGMAS**2 / 2 * math.sqrt(stages + 1) * epsilon
    lost = 0.0
    if max(t.bits for t in types) == 8:
        first_level = problem.promote * products or k
        lost += FP8_EPSILON * SIGMAS / 4 * (min(k, first_level) / products + 1)
        lost += FP8_EPSILON * SIGMAS**2 / 4 * math.sqrt(min(k, first_level) / 3)
        products = first_level
    if "tf32" in (problem.a_dtype, problem.b_dtype):
        lost += SIGMAS * DTYPES["tf32"].epsilon
    steps = -(-k // max(1, products)) + 1
    if problem.b_scale != "none" or DTYPES[problem.a_dtype].bits == 4:
        steps *= 3  # two more roundings: the product of the scales, and its product with the sum
    return lost + SIGMAS * epsilon * (math.sqrt(steps) if problem.accumulator == "f16" else steps)


def _epilogue_epsilon(problem: GemmProblem) -> float:
    """Relative error of the epilogue for each of its terms."""
    if problem.accumulator == problem.d_dtype == "s32":
        return 0.0
    return DTYPES["f64" if problem.accumulator == "f64" else "f32"].epsilon


def saturated(values: Any, dtype: str) -> Any:
    """Values clamped to the range of an integer or 8-bit format; other formats overflow to infinity."""
    info = _info(dtype)
    return values.clamp(info.min, info.max) if info.bits == 8 or DTYPES[dtype].is_integer else values


def half_ulp(magnitude: Any, dtype: str) -> Any:
    """Half an ulp of a format at each magnitude, including subnormals. ue8m0 counts as f32, since references round
    scales to it."""
    if DTYPES[dtype].is_integer:
        return torch().full_like(magnitude, 0.5)
    info = _info("f32" if dtype == "ue8m0" else dtype)
    # frexp's mantissa lies in [0.5, 1): the binade of x is 2^(e-1), and its ulp epsilon times that. 2 * tiny instead of
    # tiny, so that the bound of a zero in f32 is not 0.
    exponent = torch().frexp(magnitude.clamp(min=2 * info.tiny)).exponent
    return torch().ldexp(torch().full_like(magnitude, info.eps / 4), exponent)


def _info(dtype: str) -> Any:
    """torch's numerical limits of a format."""
    return (torch().iinfo if DTYPES[dtype].is_integer else torch().finfo)(torch_dtype(dtype))


def _chunks(shape: Any) -> Iterator[tuple[int, slice]]:
    """Batch index and rows of pieces of at most :data:`CHUNK` elements, but at least a row."""
    batch, m, n = shape
    step = max(1, CHUNK // max(1, n))
    for index in range(batch):
        for row in range(0, m, step):
            yield index, slice(row, min(m, row + step))
