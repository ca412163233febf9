"""D to the bit: the sums of an arithmetic, the epilogue and the rounding of D."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from gemmill.library.arithmetic import Arithmetic, parse_arithmetic
from gemmill.library.decompositions.decomposition import reduction_groups
from gemmill.library.dtypes import DTYPES, FP8, DTypeName
from gemmill.library.epilogues.parse import LINEAR, parse
from gemmill.library.epilogues.tree import sums_by_name
from gemmill.library.errors import ProblemError
from gemmill.library.oracle.elements import (
    ARRAYS,
    Factors,
    checked_array,
    factors,
    rounded,
    rounded_to_tf32,
    values,
    with_one_nan,
)
from gemmill.library.oracle.epilogue import applied
from gemmill.library.oracle.fused import fma32, fma64
from gemmill.library.oracle.orders import ABSENT, Order, is_possible, order_of
from gemmill.library.oracle.tensor_core import BLOCK_ELEMENTS, MODELS, Buffers, Model, add_step, block_shape
from gemmill.library.problem import GemmProblem

_TYPES: Mapping[str, tuple[tuple[DTypeName, ...], ...]] = MappingProxyType(
    {
        "k4": (("f64",),),
        "k8": (("tf32", "f32"),),
        "k16": (("bf16",), ("f16",)),
        "k32": (FP8,),
        "k16x2": (FP8,),
        "exact": (("s8", "u8", "s32"),),
    }
)
"""Sets of types of A and B that each kind of step multiplies; with ``fma``, any."""
_LEAST_EXPONENT_OF_F16 = -14


def oracle(
    a: np.ndarray, b: np.ndarray, *, dtypes: tuple[DTypeName, DTypeName], arithmetic: Arithmetic | str,
    d_dtype: DTypeName = "f32", alpha: float = 1.0, beta: float = 0.0, c: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """Compute ``alpha * a @ b + beta * c`` with the bits of a kernel on sm_90, on the CPU.

    Arrays hold values where NumPy has the type, otherwise bits: uint16 for bf16, uint8 for fp8.

    Args:
        a: A, (M, K).
        b: B, (K, N).
        dtypes: Types of A and B; tf32 for f32 that tensor cores multiply.
        arithmetic: The order of the sums, or its name, such as ``k16`` or ``k16/8``.
        d_dtype: Type of D, and of C if given.
        alpha: Factor of the product, in f32.
        beta: Factor of C, in f32; with 0, C is not read.
        c: C, (M, N).

    Returns:
        D, (M, N), of ``d_dtype``.

    Raises:
        ConfigError: ``arithmetic`` is not the name of one.
        ProblemError: the shapes do not fit, or the model does not cover the types or the arithmetic.
    """
    found = parse_arithmetic(arithmetic) if isinstance(arithmetic, str) else arithmetic
    sums = _checked_sums(found, a, b, dtypes)
    inputs: dict[str, Any] = {"alpha": alpha, "beta": beta}
    if c is not None:
        inputs["c"] = values(checked_array(np.asarray(c), d_dtype, "c"), d_dtype)
        if inputs["c"].shape != sums.shape:
            raise ProblemError(f"c is {inputs['c'].shape}; it must be {sums.shape}")
    return _stored(LINEAR, sums, inputs, d_dtype)


def oracle_of(
    problem: GemmProblem, arithmetic: Arithmetic, inputs: Mapping[str, Any], *, is_transposed: bool = False
) -> np.ndarray:
    """Compute D of one matrix product of a problem with the bits of a kernel on sm_90, on the CPU.

    Args:
        problem: a problem that the oracle supports; M, K and the batch are not read.
        arithmetic: the order of the sums.
        inputs: ``a`` (M, K), ``b`` (K, N), ``c`` and the operands of the epilogue as arrays as in :func:`oracle`, in
            shapes that broadcast to D; the numbers ``alpha`` and ``beta``.
        is_transposed: whether the kernel computes the transposed problem.

    Returns:
        D, (M, columns of D).

    Raises:
        ProblemError: the arrays do not fit.
    """
    a, b, dtypes = inputs["a"], inputs["b"], (problem.a_dtype, problem.b_dtype)
    if is_transposed:
        sums = _checked_sums(arithmetic, b.T, a.T, dtypes[::-1]).T
    else:
        sums = _checked_sums(arithmetic, a, b, dtypes)
    types: dict[str, DTypeName] = {x.name: x.dtype for x in parse(problem.epilogue).operands}
    types |= {"c": problem.d_dtype} if "c" in inputs else {}
    found = {name: values(checked_array(np.asarray(inputs[name]), dtype, name), dtype) for name, dtype in types.items()}
    factors_of_d = {name: inputs[name] for name in ("alpha", "beta")}
    return _stored(problem.epilogue, sums, factors_of_d | found, problem.d_dtype)


def _checked_sums(
    arithmetic: Arithmetic, a: np.ndarray, b: np.ndarray, dtypes: tuple[DTypeName, DTypeName]
) -> np.ndarray:
    if fault := fault_of_types(arithmetic, dtypes):
        raise ProblemError(f"the oracle does not support {fault}")
    a, b = checked_array(np.asarray(a), dtypes[0], "a"), checked_array(np.asarray(b), dtypes[1], "b")
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise ProblemError(f"a is {a.shape} and b is {b.shape}; they must be (M, K) and (K, N)")
    return _sums(arithmetic, a, b, dtypes)


def fault_of_types(arithmetic: Arithmetic, dtypes: tuple[DTypeName, DTypeName]) -> str:
    """What the model lacks for an arithmetic on two types of operands; empty if it has all."""
    step = arithmetic.step
    if not arithmetic.is_fixed:
        return f"{arithmetic}: the launch determines its slices; use bits='invariant' or a fixed number, such as k16/4"
    if arithmetic.target or (step not in _TYPES and step != "fma"):
        return f"{arithmetic}: how it adds the products of a step was not measured"
    if not is_possible(arithmetic):
        return f"{arithmetic}: no kernel can sum in this order"
    if step != "fma" and not any(set(dtypes) <= set(types) for types in _TYPES[step]):
        allowed = " or ".join(", ".join(types) for types in _TYPES[step])
        return f"{dtypes[0]} by {dtypes[1]} in {arithmetic}, which multiplies {allowed}"
    missing = [dtype for dtype in dtypes if dtype not in ARRAYS]
    return f"{missing[0]} operands" if missing else ""


def _sums(arithmetic: Arithmetic, a: np.ndarray, b: np.ndarray, dtypes: tuple[DTypeName, DTypeName]) -> np.ndarray:
    """The accumulators: float32, float64 or int32."""
    left, right = values(a, dtypes[0]), values(b, dtypes[1])
    if arithmetic.step == "exact":
        return (left.astype(np.float64) @ right.astype(np.float64)).astype(np.int64).astype(np.int32)
    order = order_of(arithmetic, b.shape[1], b.shape[0])
    if arithmetic.step in MODELS:
        if arithmetic.step == "k8":
            left, right = rounded_to_tf32(left), rounded_to_tf32(right)
        return _tensor_core_sums(arithmetic, order, left, right, dtypes)
    if dtypes != ("f64", "f64"):
        left, right = left.astype(np.float32), right.astype(np.float32)
    sums = [_fused_sums(left, right, indices) for (indices,) in order.slices]
    return _added(arithmetic, sums)


def _fused_sums(a: np.ndarray, b: np.ndarray, indices: np.ndarray, sums: np.ndarray | None = None) -> np.ndarray:
    """Sums of products in the order of indices, by fused multiply-adds; ``sums`` are those of other products."""
    fma = fma64 if a.dtype == np.float64 else fma32
    sums = np.zeros((len(a), b.shape[1]), a.dtype) if sums is None else sums
    rows = max(1, BLOCK_ELEMENTS // 4 // max(1, b.shape[1]))

    def compute(first: int) -> None:
        block = slice(first, first + rows)
        part = sums[block]
        for k in indices[indices != ABSENT]:
            part = fma(a[block, k, None], b[k], part)
        sums[block] = part

    _in_parallel(compute, range(0, len(a), rows))
    return with_one_nan(sums) if a.dtype == np.float32 else sums


def _in_parallel(compute: Callable[[Any], None], blocks: Iterable[Any]) -> None:
    """Compute blocks of D on all cores of this machine."""
    # With larger buffers, NumPy copies operands that it broadcasts.
    with ThreadPoolExecutor(os.cpu_count(), initializer=np.setbufsize, initargs=(16,)) as pool:
        for _ in pool.map(compute, blocks):
            pass


def _tensor_core_sums(
    arithmetic: Arithmetic, order: Order, a: np.ndarray, b: np.ndarray, dtypes: tuple[DTypeName, DTypeName]
) -> np.ndarray:
    """Sums by tensor cores: blocks of D, shared by the cores of this machine."""
    model = MODELS[arithmetic.step]
    operands = []
    for array, dtype, shift in ((np.ascontiguousarray(a.T), dtypes[0], model.shift), (b, dtypes[1], 0)):
        least = _LEAST_EXPONENT_OF_F16 if arithmetic.step == "k16x2" else DTYPES[dtype].least_exponent
        taken = factors(array, least, model.spread, shift)
        operands.append([[_in_order(model, taken, indices) for indices in warps] for warps in order.slices])
    sums = np.zeros((len(a), b.shape[1]), np.float32)
    _in_parallel(partial(_compute_block, arithmetic, operands, sums), _blocks(model, *sums.shape))
    return _fused_sums(a, b, np.asarray(order.rest), sums) if len(order.rest) else with_one_nan(sums)


def _blocks(model: Model, m: int, n: int) -> Iterator[tuple[slice, slice]]:
    rows, columns = block_shape(model, m, n)
    for i in range(0, m, rows):
        for j in range(0, n, columns):
            yield slice(i, min(m, i + rows)), slice(j, min(n, j + columns))


def _in_order(model: Model, operand: Factors, indices: np.ndarray) -> Factors:
    """The elements of an operand in an order along K, padded with zeros to whole steps."""
    return operand.ordered(np.pad(indices, (0, -len(indices) % model.products), constant_values=ABSENT))


def _compute_block(
    arithmetic: Arithmetic, operands: list[list[list[Factors]]], sums: np.ndarray, block: tuple[slice, slice]
) -> None:
    """Compute the sums of one block of D."""
    rows, columns = block
    model = MODELS[arithmetic.step]
    buffers = Buffers(model, *sums[block].shape)
    slices = []
    for a_warps, b_warps in zip(*operands, strict=True):
        parts = [
            _chain(arithmetic, a.part(slice(None), rows), b.part(slice(None), columns), buffers)
            for a, b in zip(a_warps, b_warps, strict=True)
        ]
        slices.append(_in_sequence(parts))
    sums[block] = _added(arithmetic, slices)


def _chain(arithmetic: Arithmetic, a: Factors, b: Factors, buffers: Buffers) -> np.ndarray:
    """The sum of one chain of MMAs."""
    model = MODELS[arithmetic.step]
    total = np.zeros(buffers.sums.shape, np.float32)
    buffers.sums[:] = 0
    steps = range(0, len(a.values), model.products)
    for index, first in enumerate(steps, 1):
        step = slice(first, first + model.products)
        add_step(model, a.part(step), b.part(step), buffers)
        if arithmetic.promote and (index % arithmetic.promote == 0 or index == len(steps)):
            total = _in_sequence([total, buffers.sums.copy()])
            buffers.sums[:] = 0
    return total if arithmetic.promote else buffers.sums.copy()


def _in_sequence(parts: list[np.ndarray]) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total


def _added(arithmetic: Arithmetic, slices: list[np.ndarray]) -> np.ndarray:
    """Add the sums of slices: one after another, in two to eight groups where there are more than 8
    (kernel/reduction.cuh), or as a binary tree."""
    if arithmetic.tree:
        while len(slices) > 1:
            slices = [_in_sequence(slices[i : i + 2]) for i in range(0, len(slices), 2)]
        return slices[0]
    count = len(slices)
    size = -(-count // reduction_groups(count))
    return _in_sequence([_in_sequence(slices[i : i + size]) for i in range(0, count, size)])


def _stored(epilogue: str, sums: np.ndarray, inputs: Mapping[str, Any], d_dtype: DTypeName) -> np.ndarray:
    """Apply an epilogue and round to D."""
    alpha, beta = inputs["alpha"], inputs["beta"]
    if sums.dtype == np.int32 and d_dtype != "s32":
        sums = sums.astype(np.float32)
    if sums.dtype == np.int32 and not all(float(x).is_integer() and abs(x) < 2**31 for x in (alpha, beta)):
        raise ProblemError(f"alpha is {alpha:g} and beta is {beta:g}; for D in s32 they must be integers of 32 bits")
    without_c = beta == 0 or "c" not in inputs
    tree = parse("d = alpha * acc" if epilogue == LINEAR and without_c else epilogue)
    if alpha == 0 and tree.sums_are_scaled:
        sums = np.zeros_like(sums)
    with np.errstate(over="ignore"):
        found = {name: np.asarray(x, sums.dtype) for name, x in inputs.items()}
    if tree.reads_c and tree.c_is_scaled and without_c:  # kernels do not read C
        found["c"] = np.zeros((), sums.dtype)
    found |= sums_by_name(tree, sums)
    shape = tree.shape_of_d(*sums.shape)
    result = np.broadcast_to(applied(tree, found), shape)
    if d_dtype == "s32":
        return np.array(result)
    return rounded(with_one_nan(result) if result.dtype == np.float32 else result, d_dtype)
