"""Binds a call to memory: turns tensors in the conventions of ``torch.matmul`` or of groups into the operands of a
GEMM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from gemmill.library.bits import ANY
from gemmill.library.config.model import BatchingName
from gemmill.library.config.scales import BLOCK_SCALES, scales_sums
from gemmill.library.dtypes import DTYPES, FP8, SPLIT, SPLIT_PROMOTION, DTypeName
from gemmill.library.epilogues.parse import LINEAR, PLAIN, spelling
from gemmill.library.epilogues.tree import Epilogue, fault_of_m, fault_of_n
from gemmill.library.errors import OperandError
from gemmill.library.problem import MAX_EXTENT, GemmProblem, is_mixed, upconverts_a
from gemmill.runtime.operands.bound_arguments import bind_arguments, fitted, staged
from gemmill.runtime.operands.bound_arguments import stacked as stacked_values
from gemmill.runtime.operands.gemm import FOUND_BY, Gemm, RowIndex, Table
from gemmill.runtime.operands.matrices import (
    FourMatrices,
    GroupScales,
    Matrices,
    Scale,
    block_scales,
    broadcast,
    group_scales,
    matrices,
    merge,
    one_matrix,
    operand,
    refuse_four_bits,
    refuse_overlap,
)
from gemmill.runtime.operands.tensors import TensorView, check_devices

if TYPE_CHECKING:
    from gemmill.runtime.operands.call import GemmCall
    from gemmill.runtime.operands.complex_products import RealForm


_KINDS = tuple(dict.fromkeys(FOUND_BY.values()))


def matmul_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of ``a @ b``: vectors lose their extent and batch extents broadcast.

    Raises:
        OperandError: the shapes do not fit.
    """
    if not a or not b:
        raise OperandError(
            f"a has shape {a} and b has shape {b}; matmul does not take scalars: pass the factor as alpha"
        )
    inner = b[-2] if len(b) > 1 else b[-1]
    if a[-1] != inner:
        raise _unequal_k(a, b)
    longest = max(len(a), len(b)) - 2
    batch = []
    for axis in range(longest, 0, -1):
        extents = {shape[-2 - axis] for shape in (a, b) if len(shape) - 2 >= axis} - {1}
        if len(extents) > 1:
            raise OperandError(
                f"a {a} @ b {b}: batch extents {sorted(extents)} do not broadcast; they must be equal or 1"
            )
        batch.append(extents.pop() if extents else 1)
    return (*batch, *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))


def _unequal_k(a: tuple[int, ...], b: tuple[int, ...]) -> OperandError:
    """Return the error for operands with different K. Its hint names the operand whose transpose would fit, if there is
    one."""
    inner = b[-2] if len(b) > 1 else b[-1]
    transposed_name = "b" if len(b) > 1 and b[-1] == a[-1] else "a" if len(a) > 1 and a[-2] == inner else ""
    hint = f": pass {transposed_name}.mT (gemmill reads its strides, without a copy)" if transposed_name else ""
    return OperandError(f"a {a} @ b {b}: a has K = {a[-1]} columns, b has K = {inner} rows; they must be equal{hint}")


def wider(tensors: Mapping[str, TensorView]) -> DTypeName:
    """Return the dtype of the wider of A and B."""
    a, b = tensors["a"].dtype, tensors["b"].dtype
    return b if DTYPES[b].bits > DTYPES[a].bits else a


def require_groups(offsets: object, counts: object, instead: str) -> None:
    """Raise OperandError for a grouped call without groups; the message names the function to call ``instead``."""
    if offsets is None and counts is None:
        raise OperandError(
            f"offsets and counts are both missing: pass one; for a batch of equal matrices use {instead}"
        )


def groups_kind(tensors: Mapping[str, TensorView]) -> str:
    """Return how the call locates its matrices: ``offsets``, ``counts``, ``addresses``, or an empty text for strides
    alone."""
    kinds = [kind for kind in _KINDS if kind in tensors]
    if len(kinds) > 1:
        raise OperandError(
            f"{' and '.join(kinds)} are both passed; pass one: offsets for consecutive groups, counts for masked "
            "groups, addresses for an array of matrices"
        )
    return kinds[0] if kinds else ""


def shape_of_d(tensors: Mapping[str, TensorView], epilogue: Epilogue) -> tuple[int, ...]:
    """Return the shape of D from A, B and what locates the matrices.

    - Without groups it is the shape of ``a @ b``.
    - ``offsets``: (M, K) by (groups, K, N) gives (M, N), and (M, K) by (K, N) gives (groups, M, N). With ``rows`` of M
      entries, A has any number of rows in the first form; with K entries, any number of columns in the second.
    - ``counts``: (groups, capacity, K) by (groups, K, N) gives (groups, capacity, N).
    - ``addresses``: (M, K) by (K, N) gives (M, N).

    A gated epilogue combines each pair of columns, or of rows, into one.

    Raises:
        OperandError: the shapes do not fit.
    """
    kind, a, b = groups_kind(tensors), tensors["a"].shape, tensors["b"].shape
    if "rows" in tensors:
        a = _gathered_shape(a, b, tensors["rows"].shape, kind)
    shape = _grouped_shape(a, b, tensors[kind].shape, kind) if kind else matmul_shape(a, b)
    columns = b[-1] if len(b) > 1 else 1
    if fault := fault_of_n(epilogue, columns):
        raise OperandError(f"b {b} has N = {columns}; {fault}")
    if epilogue.gate_rows:
        return _with_paired_rows(epilogue, a, shape, kind)
    return (*shape[:-1], shape[-1] // 2) if epilogue.gated else shape


def _with_paired_rows(epilogue: Epilogue, a: tuple[int, ...], shape: tuple[int, ...], kind: str) -> tuple[int, ...]:
    """Return the shape of D for an epilogue that pairs rows of ``a @ b``."""
    if kind or min(len(a), len(shape)) < 2:
        raise OperandError(
            f"the epilogue `{epilogue}` pairs rows, which needs a (..., M, K) and b (..., K, N) without groups; a "
            f"is {a}"
        )
    if fault := fault_of_m(epilogue, shape[-2]):
        raise OperandError(f"a {a} has M = {shape[-2]}; {fault}")
    return (*shape[:-2], shape[-2] // 2, shape[-1])


def _gathered_shape(a: tuple[int, ...], b: tuple[int, ...], rows: tuple[int, ...], kind: str) -> tuple[int, ...]:
    """Return the shape of A's rows in the order of an index, or of its columns for groups along K."""
    if kind != "offsets" or len(a) != 2 or len(b) not in (2, 3):
        raise OperandError(
            f"rows is passed with {kind or 'neither offsets nor counts'}, a {a} and b {b}; rows is an index for groups "
            "at offsets: pass offsets, and a (any, K) and b (groups, K, N), or a (M, any) and b (K, N)"
        )
    along_k = len(b) == 2
    each = "(K,), the column of a for each row of b" if along_k else "(M,), the row of a for each row of out"
    if len(rows) != 1:
        raise OperandError(f"rows has shape {rows}; it must be {each}")
    if rows[0] and not a[along_k]:
        raise OperandError(
            f"a has shape {a}, and rows has {rows[0]} entries; a must have a {'column' if along_k else 'row'}"
        )
    return (a[0], *rows) if along_k else (*rows, a[1])


def _grouped_shape(a: tuple[int, ...], b: tuple[int, ...], groups: tuple[int, ...], kind: str) -> tuple[int, ...]:
    if kind == "addresses":
        if len(a) != 2 or len(b) != 2:
            raise OperandError(
                f"a has shape {a} and b has shape {b}; with addresses, each must be one matrix: (M, K) and (K, N)"
            )
        return matmul_shape(a, b)
    if len(groups) != 1:
        raise OperandError(f"{kind} has shape {groups}; it must be (groups,)")
    (count,) = groups
    forms = {
        "offsets": f"(M, K) and b ({count}, K, N), or a (M, K) and b (K, N)",
        "counts": f"({count}, capacity, K) and b ({count}, K, N)",
    }
    ranks = len(a), len(b)
    if ranks not in {"offsets": ((2, 3), (2, 2)), "counts": ((3, 3),)}[kind]:
        raise OperandError(
            f"a has shape {a} and b has shape {b}; with {kind} of {count} groups, a must be {forms[kind]}"
        )
    for name, shape in (("a", a), ("b", b)):
        if len(shape) == 3 and shape[0] != count:
            raise OperandError(f"{name} has {shape[0]} matrices and {kind} has {count} entries; they must be equal")
    if a[-1] != b[-2]:
        raise _unequal_k(a, b)
    return (a[0], b[-1]) if ranks == (2, 3) else (count, a[-2], b[-1])


_SCALING = ("a_scale", "b_scale", "a_zero", "b_zero")
_Tensors = Mapping[str, TensorView]
"""Operands and D, by their names in :data:`~gemmill.runtime.operands.call_keywords.OPERANDS`."""


MAX_GATHERED_BYTES = 1 << 36
"""Most bytes from the first row that an index names to the last: kernels count chunks of 16 bytes in 32 bits."""


class _Extents(NamedTuple):
    """M, N, K and batch, as in :class:`GemmProblem`."""

    m: int
    n: int
    k: int
    batch: int
    nested: tuple[int, ...] = ()
    """Extents of a batch with several strides, the outermost first."""


def bind(call: GemmCall) -> Gemm:
    """Return the GEMM that a kernel computes for a call.

    Kernels can upconvert only A, so where B is upconverted the result is the transposed GEMM.

    Raises:
        OperandError: the operands do not fit; the message says what to change.
    """
    epilogue, values, stack = call.arguments.epilogue, call.arguments.values, None
    tensors, kind = _read_tensors(call), groups_kind(call.tensors)
    refuse_four_bits(tensors)
    a, b, d = tensors["a"], tensors["b"], tensors["out"]
    row_axis, column_axis = len(a.shape) > 1, len(b.shape) > 1
    if values:
        shares_d, keeps_kinds = kind == "offsets" and len(b.shape) == 3, call.options.required_bits != ANY
        epilogue, values = fitted(epilogue, values, a, b, keeps_kinds=keeps_kinds, shares_d=shares_d)
        stack = stacked_values(epilogue, values, d, column_axis) if row_axis and not kind else None
    if kind:
        gemm = _bind_groups(call, tensors, kind, epilogue)
    else:
        gemm = _bind_matrices(call, tensors, epilogue, may_stack=not values or stack is not None)
    if call.options.symmetric:
        gemm = _symmetric(gemm, d.shape, tensors.get("c"))
    if (rows := call.options.expected_rows) is not None:
        gemm = _with_expected_rows(gemm, rows)
    if values:
        if stack is not None and gemm.problem.batch == 1:
            values, d = stack
        groups = gemm.problem.batch if gemm.problem.batching == "grouped" else None
        bound = bind_arguments(epilogue, values, d, row_axis, column_axis, groups)
        movable = staged(epilogue, bound, gemm.problem.batching)
        if movable is not epilogue:
            gemm = gemm._replace(problem=gemm.problem.but(epilogue=spelling(movable)))
        gemm = gemm._replace(arguments=bound)
    return gemm.transposed if upconverts_a(gemm.problem.b_dtype, gemm.problem.a_dtype) else gemm


def _read_tensors(call: GemmCall) -> _Tensors:
    """Return the tensors that a kernel reads and writes.

    With alpha = 0 the kernel reads no element of A and B, so NaN there does not reach D, as in BLAS.
    """
    a, b, alpha = call.tensors["a"], call.tensors["b"], call.options.alpha
    inner = b.shape[-2:-1] or b.shape
    gathers_k = "rows" in call.tensors and len(a.shape) == len(b.shape) == 2
    extent = call.tensors["rows"].shape if gathers_k else a.shape[-1:]
    if alpha or not call.arguments.epilogue.sums_are_scaled or extent != inner:
        return call.tensors
    dtype = wider(call.tensors) if is_mixed(a.dtype, b.dtype) else None  # then gemmill upconverts nothing
    unread = (*_SCALING, "rows") if gathers_k else _SCALING
    others = {name: x for name, x in call.tensors.items() if name not in unread}
    b_axis = -2 if len(b.shape) > 1 else -1
    return {**others, "a": _with_empty_k(a, -1, dtype or a.dtype), "b": _with_empty_k(b, b_axis, dtype or b.dtype)}


def _with_empty_k(tensor: TensorView, axis: int, dtype: DTypeName) -> TensorView:
    shape = list(tensor.shape)
    shape[axis] = 0
    return replace(tensor, shape=tuple(shape), dtype=dtype)


def _bind_matrices(call: GemmCall, tensors: _Tensors, epilogue: Epilogue, may_stack: bool) -> Gemm:
    """Return the GEMM of strided matrices: ``a`` is (..., M, K) or (K,), ``b`` (..., K, N) or (K,), ``c`` broadcasts to
    D.

    Scales are as in :func:`gemmill.matmul`, with batch extents that collapse to one stride. With ``may_stack``, a batch
    that shares ``b`` may become one matrix.
    """
    check_devices(tensors)
    a, b, c, d = tensors["a"], tensors["b"], tensors.get("c"), tensors["out"]
    shape = shape_of_d(tensors, epilogue)
    _check_out(a, b, d, shape)
    row_axis, column_axis = len(a.shape) > 1, len(b.shape) > 1
    m, n, k = (a.shape[-2] if row_axis else 1), (b.shape[-1] if column_axis else 1), a.shape[-1]
    rows_d, columns_d = epilogue.shape_of_d(m, n)
    batch_shape = shape[: len(shape) - row_axis - column_axis]
    abcd: FourMatrices = (
        matrices("a", a, batch_shape, m, k, row_axis, True),
        matrices("b", b, batch_shape, k, n, True, column_axis),
        None
        if c is None
        else matrices("c", _broadcast_c(c, shape), batch_shape, rows_d, columns_d, row_axis, column_axis),
        matrices("out", d, batch_shape, rows_d, columns_d, row_axis, column_axis),
    )
    merged, abcd = merge(batch_shape, abcd)
    forms: Mapping[str, RealForm] = {}
    if a.imaginary:
        from gemmill.runtime.operands.complex_products import real_product  # deferred: few calls need it

        abcd, m, n, k, forms = real_product(abcd, (m, n, k), merged)
    extents = _Extents(m, n, k, prod(merged), merged if len(merged) > 1 else ())
    groups = scales = None
    if is_mixed(a.dtype, b.dtype):
        narrow, wide = (abcd[0], b) if upconverts_a(a.dtype, b.dtype) else (abcd[1], a)
        groups = group_scales(narrow, wide, tensors, batch_shape)
    elif "a_zero" in tensors or "b_zero" in tensors:
        raise _zeros_without_narrow(a, b)
    else:
        scales = block_scales(tensors, (m, n, k), batch_shape, batch_shape)

    may_stack = may_stack and not (extents.nested or call.options.symmetric)
    may_stack = may_stack and (groups is None or groups.name == "b")
    if may_stack and (stacked_operands := one_matrix(abcd, scales, m, extents.batch)) is not None:
        abcd, scales = stacked_operands
        extents = extents._replace(m=m * extents.batch, batch=1)
    gemm = _assemble(call, extents, abcd, scales, epilogue)
    for name, form in forms.items():
        written = getattr(gemm, name)._replace(ptr=tensors[name].ptr, real_form=form)
        gemm = gemm._replace(**{name: written})
    return gemm if groups is None else _with_group_scales(gemm, groups, epilogue)


def _symmetric(gemm: Gemm, shape: tuple[int, ...], given_c: TensorView | None) -> Gemm:
    """Return the GEMM with a symmetric D, whose rows are its columns: C and D are n-major."""
    problem = gemm.problem
    of_c = () if given_c is None else given_c.shape
    rows_of_c, columns_of_c = (1, 1, *of_c)[-2:]
    for is_wrong, what in (
        (
            problem.batching not in ("strided", "nested"),
            f"batching is {problem.batching}; leave out offsets, counts and addresses",
        ),
        (problem.epilogue != LINEAR, f"the epilogue is `{problem.epilogue}`; leave out the epilogue and its operands"),
        (len(shape) < 2 or shape[-1] != shape[-2], f"out has shape {shape}; it must have as many rows as columns"),
        (
            problem.a_dtype != problem.b_dtype,
            f"a is {problem.a_dtype} and b is {problem.b_dtype}; they must have the same dtype",
        ),
        (
            rows_of_c != columns_of_c,
            f"c has shape {of_c}; it must be symmetric too, with as many rows as columns",
        ),
    ):
        if is_wrong:
            raise OperandError(f"symmetric is True, and {what}")
    gemm = gemm.transposed if problem.d_major == "m" else gemm
    c = gemm.c.transposed if gemm.c and gemm.c.major == "m" else gemm.c
    changes: dict[str, Any] = {"c_major": c.major} if c else {}
    return gemm._replace(c=c, problem=gemm.problem.but(symmetry="symmetric", **changes))


def _with_group_scales(gemm: Gemm, groups: GroupScales, epilogue: Epilogue) -> Gemm:
    """Return the GEMM with the scales of its upconverted operand."""
    if groups.name == "b" and not epilogue.has_transpose:
        fault = "pairs columns of b" if epilogue.gated else "scales blocks of columns"
        raise OperandError(
            f"the epilogue `{epilogue}` {fault}, which is not supported where b is upconverted: "
            f"{'use gate8 and up8' if epilogue.gated else 'apply it to the result'}, or upconvert b before the call"
        )
    problem = gemm.problem.but(**{f"{groups.name}_scale": groups.scaling})
    return gemm._replace(problem=problem, scale=groups.scale, zero=groups.zero)


def _bind_groups(call: GemmCall, tensors: _Tensors, kind: str, epilogue: Epilogue) -> Gemm:
    """Return the GEMM of groups or of an array, with the shapes in :func:`shape_of_d`; ``c`` broadcasts to D.

    The values of offsets, counts and addresses stay on the GPU; this function does not read them. Addresses, (3 or 4,
    matrices), are pairs of s32.
    """
    a, b, c, d, groups = tensors["a"], tensors["b"], tensors.get("c"), tensors["out"], tensors[kind]
    check_devices(tensors)
    is_array = kind == "addresses"
    rows = tensors.get("rows")
    if is_array and epilogue is not PLAIN:
        raise OperandError(f"an epilogue is not supported with {kind}: use alpha and beta")
    shape = shape_of_d(tensors, epilogue)
    count, stride = (_matrices_of_array(groups, 3 if c is None else 4), 1) if is_array else _groups(groups, kind)
    _check_out(a, b, d, shape)
    batching = _batching(kind, len(b.shape))
    narrow = is_mixed(a.dtype, b.dtype)
    _refuse_types(tensors, kind, batching)
    _refuse_scales(tensors, epilogue, kind, batching)
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    if rows is not None:
        m, k = (m, rows.shape[0]) if batching == "kgrouped" else (rows.shape[0], k)

    def read(name: str, tensor: TensorView, rows: int, columns: int) -> Matrices:
        return matrices(name, tensor, (count,) if len(tensor.shape) == 3 else (), rows, columns, True, True)

    of_c = None if c is None else read("c", _broadcast_c(c, shape), m, shape[-1])
    abcd: FourMatrices = (read("a", a, *a.shape[-2:]), read("b", b, k, n), of_c, read("out", d, m, shape[-1]))
    slots = (count,) if batching == "masked" else ()
    scales = None if narrow else block_scales(tensors, (a.shape[-2], n, k), slots, (count,))
    gemm = _assemble(call, _Extents(m, n, k, count), abcd, scales, epilogue, batching)
    if narrow:
        gemm = _with_group_scales(gemm, group_scales(abcd[1], a, tensors, (count,)), epilogue)
    gemm = gemm._replace(groups=Table(kind, groups.ptr, stride))
    return gemm if rows is None else _with_rows(gemm, rows, a.shape[batching == "kgrouped"])


def _refuse_types(tensors: _Tensors, kind: str, batching: BatchingName) -> None:
    """Raise OperandError for types of which kernels of groups upconvert none: only b, with a matrix for each group."""
    a, b = tensors["a"], tensors["b"]
    upconverts = is_mixed(a.dtype, b.dtype)
    if upconverts and (upconverts_a(a.dtype, b.dtype) or batching not in ("grouped", "masked")):
        what = "a" if upconverts_a(a.dtype, b.dtype) else "b"
        raise OperandError(
            f"a is {a.dtype} and b is {b.dtype}; upconverting {what} is not supported with {kind} here: pass both with "
            "the same width"
        )
    if not upconverts and ("a_zero" in tensors or "b_zero" in tensors):
        raise _zeros_without_narrow(a, b)


def _zeros_without_narrow(a: TensorView, b: TensorView) -> OperandError:
    return OperandError(
        f"zero points need one operand narrower than the other; a is {a.dtype} and b is {b.dtype}: leave out a_zero "
        "and b_zero"
    )


def _refuse_scales(tensors: _Tensors, epilogue: Epilogue, kind: str, batching: BatchingName) -> None:
    """Raise OperandError for scales that kernels of groups do not support."""
    if batching in ("kgrouped", "array") and ("a_scale" in tensors or "b_scale" in tensors):
        raise OperandError(f"block scales are not supported with {kind} here: pass a and b without scales")
    if "rows" in tensors and any(x.name == "a_scale" and x.kind == "row" for x in epilogue.operands):
        raise OperandError(
            "a_scale has one value for each row of a, which is not supported with rows: pass a[rows] and a_scale[rows] "
            "without rows"
        )
    if "rows" in tensors and "a_scale" in tensors and tensors["a_scale"].dtype == "ue8m0":
        raise OperandError(
            "a_scale is ue8m0; with rows, scales of blocks must be f32: pass a_scale.float() and b_scale.float()"
        )


def _with_rows(gemm: Gemm, rows: TensorView, extent: int) -> Gemm:
    """Return the GEMM with an index of the ``extent`` rows of A, or columns for groups along K."""
    _, stride = _groups(rows, "rows")
    found = "columns" if gemm.problem.batching == "kgrouped" else "rows"
    if extent > MAX_EXTENT:
        raise OperandError(f"a has {extent} {found}; the largest number supported is {MAX_EXTENT}: split the problem")
    if (span := (extent - 1) * gemm.a.stride * DTYPES[gemm.a.dtype].bits // 8) >= MAX_GATHERED_BYTES:
        raise OperandError(
            f"the {found} of a span {span} bytes; with rows they must span less than 2^36: split the problem"
        )
    index = RowIndex("rows", rows.ptr, stride, extent)
    return gemm._replace(problem=gemm.problem.but(rows="gathered"), rows=index)


def _with_expected_rows(gemm: Gemm, rows: int) -> Gemm:
    """Return the GEMM with the expected number of rows in use of a masked group; OperandError where it is out of
    range."""
    problem = gemm.problem
    if problem.batching != "masked":
        raise OperandError(
            f"expected_rows is {rows!r:.80} and counts is missing; expected_rows is for masked groups: leave it out, "
            "or pass counts"
        )
    if type(rows) is not int or not 1 <= rows <= problem.m:
        raise OperandError(
            f"expected_rows is {rows!r:.80}; it must be a whole number from 1 to {problem.m}, the capacity of a group"
        )
    return gemm._replace(problem=problem.but(expected_rows=rows))


def _batching(kind: str, rank_b: int) -> BatchingName:
    if kind == "offsets":
        return "grouped" if rank_b == 3 else "kgrouped"
    return "masked" if kind == "counts" else "array"


def _groups(groups: TensorView, kind: str) -> tuple[int, int]:
    """Return the number of groups, and the stride of their table in 32-bit words.

    Raises:
        OperandError: a kernel cannot read these offsets or counts.
    """
    if groups.dtype != "s32":
        raise OperandError(f"{kind} is {groups.dtype}; it must be s32: pass {kind}.int()")
    (count,), (stride,) = groups.shape, groups.strides
    if not -1 << 31 <= stride < 1 << 31:
        raise OperandError(f"{kind} has stride {stride}; it must be below 2^31: pass {kind}.contiguous()")
    return count, stride


def _matrices_of_array(addresses: TensorView, rows: int) -> int:
    """Return the number of matrices in a table of addresses."""
    shape = addresses.shape
    if addresses.dtype != "s32" or len(shape) != 2 or shape[0] != rows or shape[1] % 2:
        raise OperandError(
            f"addresses must be int64 ({rows}, matrices): one row each for a, b, out{' and c' if rows == 4 else ''}"
        )
    if 0 not in shape and addresses.strides != (shape[1], 1):
        raise OperandError("addresses is not contiguous: pass addresses.contiguous()")
    return shape[1] // 2


def _assemble(
    call: GemmCall,
    extents: _Extents,
    abcd: FourMatrices,
    scales: tuple[Scale, Scale] | None,
    epilogue: Epilogue,
    batching: BatchingName = "strided",
) -> Gemm:
    """Return the GEMM of matrices, with the options of a call."""
    a, b, c, d = abcd
    m, n, k, batch, nested = extents
    for name, value in (("M", m), ("N", n), ("K", k), ("batch", batch)):
        if value > MAX_EXTENT:
            raise OperandError(f"{name} is {value}; the largest supported is {MAX_EXTENT}: split the problem")
    batch_extents = nested or (batch,)
    operand_d = operand(d, batch_extents, "n", "m", first="n")
    first = "mn" if batching == "kgrouped" else "k"  # kernels with groups along K support no other
    operand_a = operand(a, batch_extents, "k", "mn", first)
    operand_b = operand(b, batch_extents, "mn", "k", first)
    if epilogue.gates_halves and operand_b.major != "k":
        raise OperandError(
            f"b has another layout than rows of K elements, which the epilogue `{epilogue}` does not support, as it "
            "pairs the halves of N: use gate8 and up8 (gemmill.interleaved), or convert b first"
        )
    if fault := fault_of_n(epilogue, n, scales is not None):
        raise OperandError(f"N is {n}, and the epilogue is `{epilogue}`: {fault}")
    operand_c = operand(c, batch_extents, "n", "m", first=operand_d.major) if c else None
    refuse_overlap(d, batch_extents[: len(d.batch_strides)])
    named_operands = zip("abcd", (operand_a, operand_b, operand_c, operand_d), strict=True)
    fields = ("dtype", "major", "align")
    formats = {f"{name}_{field}": getattr(x, field) for name, x in named_operands if x is not None for field in fields}
    if (f32 := _f32_dtype(call)) != "f32":
        formats |= {name: f32 for name in ("a_dtype", "b_dtype") if formats[name] == "f32"}
    types = formats["a_dtype"], formats["b_dtype"]
    if types[0] != types[1] and {*types}.intersection(SPLIT):
        raise OperandError(
            f"a is {operand_a.dtype} and b is {operand_b.dtype}; precision {f32!r} needs two operands of f32: leave "
            "precision out, or convert to f32"
        )
    is_fp8 = {*types} <= {*FP8}
    two_levels = scales or scales_sums(*types) or (is_fp8 and not call.options.fast_accumulation)
    of_a, of_b = BLOCK_SCALES[scales[0].dtype] if scales else ("none", "none")
    problem = GemmProblem.unchecked(
        m=m,
        n=n,
        k=k,
        batch=batch,
        accumulator=call.accumulator,
        a_scale=of_a,
        b_scale=of_b,
        promote=SPLIT_PROMOTION if types[0] in SPLIT else 4 if two_levels else 0,
        batching="nested" if nested else batching,
        **formats,
        **({} if epilogue is PLAIN else {"epilogue": spelling(epilogue)}),
    )
    a_scale, b_scale = scales or (None, None)
    alpha, beta = call.factors
    operands = operand_a, operand_b, operand_c, operand_d, a_scale, b_scale
    return Gemm(problem, *operands, nested=nested, alpha=alpha, beta=beta)


def _f32_dtype(call: GemmCall) -> DTypeName:
    """Return the dtype of f32 operands in the problem, by the options of a call or by B that was split before;
    OperandError where they differ."""
    requested, prepared = call.options.f32_dtype, call.tensors["b"].dtype
    if call.tensors["a"].dtype in SPLIT:
        raise OperandError("a is a prepared operand; only b can be one: pass the tensor that it was made from")
    if prepared in SPLIT and call.tensors["a"].imaginary:
        raise OperandError(
            "a is complex and b is a prepared operand, which is real: pass the tensor that it was made from"
        )
    if prepared in SPLIT and requested not in ("f32", prepared):
        raise OperandError(
            f"b was prepared with precision {prepared!r}, and the call has {requested!r}: leave precision out, or "
            "prepare b again"
        )
    return prepared if prepared in SPLIT else requested


def _check_out(a: TensorView, b: TensorView, d: TensorView, shape: tuple[int, ...]) -> None:
    """Raise OperandError where D cannot hold a result of this shape."""
    if d.shape != shape:
        raise OperandError(
            f"out has shape {d.shape}; a {a.shape} @ b {b.shape} has shape {shape}: pass an out of that shape"
        )
    if not d.writable:
        raise OperandError("out is read-only: pass writable memory")


def _broadcast_c(c: TensorView, shape: tuple[int, ...]) -> TensorView:
    """Return C, broadcast to a shape."""
    return replace(c, shape=shape, strides=broadcast("c", c.shape, c.strides, shape))
