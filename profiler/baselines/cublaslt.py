"""The same GEMM by cuBLASLt: with the first algorithm of its heuristic, or the fastest of the first few.

It is called through the bindings of nvmath-python, which are typed as ``Any`` and imported only where needed.
"""

from __future__ import annotations

import functools
import importlib
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import numpy as np

from gemmill.library.dtypes import DTYPES, FP8
from gemmill.library.errors import UnsupportedProblemError
from gemmill.library.extras import install
from gemmill.library.problem import GemmProblem
from gemmill.profiler.baselines.cublas import Baseline, nearest, with_d
from gemmill.profiler.measure.graph_timing import Launch, fastest
from gemmill.profiler.measure.operands import BETA, OperandSet, torch

CANDIDATES = 16
"""Number of algorithms requested and timed."""
WORKSPACE_BYTES = 32 << 20
"""Workspace of an algorithm, as large as PyTorch's for cuBLASLt on Hopper."""

_SUMS = {
    "f16": ("COMPUTE_16F", np.float16),
    "f32": ("COMPUTE_32F", np.float32),
    "f64": ("COMPUTE_64F", np.float64),
    "s32": ("COMPUTE_32I", np.int32),
}
"""``cublasComputeType_t`` of an accumulator, and the type of alpha and beta."""
_SCALES = {"1x128": "VEC128_32F", "128x128": "BLK128x128_32F"}
"""``cublasLtMatmulMatrixScale_t`` of block scales."""


class Stored(NamedTuple):
    """The memory layout of a matrix in cuBLASLt's terms: column-major, optionally transposed before the product."""

    rows: int
    columns: int
    ld: int
    """Elements from one column to the next."""
    stride: int
    """Elements from one matrix of the batch to the next."""
    transposed: bool


def stored(tensor: Any, row_major: bool) -> Stored:
    """The memory layout of a matrix, or a batch of them; a row-major matrix is its column-major transpose."""
    rows, columns = tensor.shape[-2:]
    stride = tensor.stride(0) if tensor.dim() == 3 else 0
    if row_major:
        return Stored(columns, rows, tensor.stride(-2), stride, True)
    return Stored(rows, columns, tensor.stride(-1), stride, False)


def column_major(problem: GemmProblem, operands: OperandSet) -> tuple[GemmProblem, OperandSet]:
    """The same problem with an M-major D: itself, or D^T = B^T A^T. cuBLASLt supports all types only column-major."""
    if problem.d_major == "m":
        return problem, operands

    def turned(tensor: Any) -> Any:
        return None if tensor is None else tensor.mT

    o = operands
    a_scale, b_scale = turned(o.b_scale), turned(o.a_scale)
    swapped = OperandSet(turned(o.b), turned(o.a), turned(o.c), turned(o.d), a_scale, b_scale)
    return problem.transposed, swapped


def stored_scales(scales: Any, scale: str) -> Any:
    """A copy of block scales (rows, blocks of K) in the layout of cuBLASLt.

    1x128 scales are contiguous along the rows. 128x128 scales are contiguous along K, padded to a multiple of four
    (cuBLAS documentation, "1D and 2D block scaling for FP8 data types").
    """
    if scale == "1x128":
        return scales.mT.contiguous()
    return torch().nn.functional.pad(scales, (0, -scales.shape[-1] % 4)).contiguous()


class _Library(NamedTuple):
    """The modules, handle and workspace of all calls."""

    lt: Any
    """The module ``nvmath.bindings.cublasLt``."""
    blas: Any
    """The module ``nvmath.bindings.cublas``, for its enumerators."""
    types: Any
    """``cudaDataType``."""
    handle: int
    workspace: Any


@functools.cache
def _library() -> _Library:
    lt, blas = (importlib.import_module(f"nvmath.bindings.{name}") for name in ("cublasLt", "cublas"))
    workspace = torch().empty(WORKSPACE_BYTES, dtype=torch().uint8, device="cuda")
    types = importlib.import_module("nvmath").CudaDataType
    try:
        handle = lt.create()
    except lt.cuBLASLtError as error:
        raise RuntimeError(str(error)) from None
    return _Library(lt, blas, types, handle, workspace)


def missing() -> str:
    """Why cuBLASLt is not available in this process; empty if it is."""
    try:
        _library()
    except ImportError as error:
        return f"cannot import nvmath-python ({error}); {install('cublaslt')}"
    except RuntimeError as error:  # no library, or none for this driver
        return f"nvmath-python cannot load cuBLASLt: {error}"
    return ""


def first(problem: GemmProblem, operands: Sequence[OperandSet]) -> Baseline | None:
    """cuBLASLt with the first algorithm of its heuristic; None if it does not support the types.

    Raises:
        UnsupportedProblemError: cuBLASLt has no algorithm; launches raise it, too.
    """
    solved = _solved(problem)
    if solved is None:
        return None
    with _refusals(solved):
        matmul = _Matmul(solved, with_d(problem, solved, operands))
        return Baseline(solved, matmul.operands, matmul.launch(matmul.algorithms(1)[0]))


def tuned(problem: GemmProblem, operands: Sequence[OperandSet]) -> Baseline | None:
    """cuBLASLt with the fastest of the first algorithms of its heuristic, each timed briefly.

    Raises:
        UnsupportedProblemError: cuBLASLt has no algorithm; launches raise it, too.
    """
    solved = _solved(problem)
    if solved is None:
        return None
    with _refusals(solved):
        matmul = _Matmul(solved, with_d(problem, solved, operands))
        launches = [launch for algorithm in matmul.algorithms(CANDIDATES) if _runs(launch := matmul.launch(algorithm))]
        if not launches:
            raise UnsupportedProblemError(f"cuBLASLt cannot launch any of its algorithms for {solved}")
        return Baseline(solved, matmul.operands, launches[fastest(launches, solved, len(operands))])


def _runs(launch: Launch) -> bool:
    """Whether cuBLASLt can launch an algorithm; its heuristic may return others."""
    try:
        launch(0)
    except UnsupportedProblemError:
        return False
    return True


def _solved(problem: GemmProblem) -> GemmProblem | None:
    """The problem that cuBLASLt solves instead; None unless C has the majorness of D, and block scales are f32 without
    a batch."""
    solved = nearest(problem)
    scaled = problem.a_scale != "none"
    if solved is None or problem.c_major not in (None, problem.d_major):
        return None
    if scaled and (problem.batch > 1 or problem.a_scale not in _SCALES):
        return None
    return solved


@contextmanager
def _refusals(problem: GemmProblem) -> Iterator[None]:
    """Convert errors of cuBLASLt to UnsupportedProblemError with the problem."""
    try:
        yield
    except _library().lt.cuBLASLtError as error:
        raise UnsupportedProblemError(f"cuBLASLt does not support {problem}: {error}") from None


class _Matmul:
    """cuBLASLt's descriptors of one GEMM, and the pointers of its operand sets."""

    def __init__(self, problem: GemmProblem, operands: Sequence[OperandSet]) -> None:
        self.problem, self.operands = problem, operands
        lt, blas, types, _, _ = _library()
        cleanup = ExitStack()
        weakref.finalize(self, cleanup.close)
        swapped, o = column_major(problem, operands[0])
        a, b = stored(o.a, swapped.a_major == "k"), stored(o.b, swapped.b_major == "mn")

        def layout(matrix: Stored, dtype: str) -> int:
            result: int = lt.matrix_layout_create(
                getattr(types, str(DTYPES[dtype].cuda)), matrix.rows, matrix.columns, matrix.ld
            )
            cleanup.callback(lt.matrix_layout_destroy, result)
            values = {"BATCH_COUNT": problem.batch, "STRIDED_BATCH_OFFSET": matrix.stride}
            for name, value in values.items() if problem.batch > 1 else ():
                _set(lt, "matrix_layout", result, name, value)
            return result

        self._a, self._b = layout(a, swapped.a_dtype), layout(b, swapped.b_dtype)
        # One layout for C and D; without a C, D is passed as C and beta is 0.
        self._d = layout(stored(o.d, False), swapped.d_dtype)

        sums, factor = _SUMS[problem.accumulator]
        if problem.a_dtype == "tf32":
            sums += "_FAST_TF32"
        scale_type = getattr(types, str(DTYPES[problem.accumulator].cuda))
        self._operation = lt.matmul_desc_create(getattr(blas.ComputeType, sums), scale_type)
        cleanup.callback(lt.matmul_desc_destroy, self._operation)
        self._describe("TRANSA", blas.Operation.T if a.transposed else blas.Operation.N)
        self._describe("TRANSB", blas.Operation.T if b.transposed else blas.Operation.N)
        if problem.a_dtype in FP8:
            self._describe("FAST_ACCUM", problem.promote == 0)
        self._alpha = np.ones(1, factor)
        self._beta = np.array([0 if problem.c_dtype is None else BETA], factor)

        turned = [column_major(problem, operand_set)[1] for operand_set in operands]
        self._pointers = [
            (o.a.data_ptr(), o.b.data_ptr(), (o.d if o.c is None else o.c).data_ptr(), o.d.data_ptr()) for o in turned
        ]
        self._scales: list[tuple[Any, Any]] = []
        if problem.a_scale != "none":
            self._describe("A_SCALE_MODE", getattr(lt.MatmulMatrixScale, _SCALES[swapped.a_scale]))
            self._describe("B_SCALE_MODE", getattr(lt.MatmulMatrixScale, _SCALES[swapped.b_scale]))
            self._scales = [
                (stored_scales(o.a_scale, swapped.a_scale), stored_scales(o.b_scale.mT, swapped.b_scale))
                for o in turned
            ]
            self._point_at_scales(0)

    def _describe(self, name: str, value: int) -> None:
        _set(_library().lt, "matmul_desc", self._operation, name, value)

    def _point_at_scales(self, index: int) -> None:
        a, b = self._scales[index]
        self._describe("A_SCALE_POINTER", a.data_ptr())
        self._describe("B_SCALE_POINTER", b.data_ptr())

    def algorithms(self, count: int) -> list[Any]:
        """At most ``count`` algorithms of cuBLASLt's heuristic, the fastest by its estimate first.

        Raises:
            UnsupportedProblemError: cuBLASLt returns no usable algorithm.
            cuBLASLtError: cuBLASLt fails.
        """
        lt = _library().lt
        results, returned = lt.MatmulHeuristicResult(count), np.zeros(1, np.int32)
        preference = lt.matmul_preference_create()
        try:
            _set(lt, "matmul_preference", preference, "MAX_WORKSPACE_BYTES", WORKSPACE_BYTES)
            lt.matmul_algo_get_heuristic(
                *(_library().handle, self._operation, self._a, self._b, self._d, self._d, preference),
                *(count, results.ptr, returned.ctypes.data),
            )
        finally:
            lt.matmul_preference_destroy(preference)
        usable = [results[i] for i in range(returned[0]) if results[i].state == 0]
        if not usable:
            raise UnsupportedProblemError(f"cuBLASLt has no algorithm for {self.problem}")
        return usable

    def launch(self, algorithm: Any) -> Launch:
        """A launch with one of :meth:`algorithms`; cuBLASLt reads the first member of the struct."""
        lt, _, _, handle, workspace = _library()

        def launch(index: int) -> None:
            a, b, c, d = self._pointers[index]
            if self._scales:
                self._point_at_scales(index)
            with _refusals(self.problem):
                lt.matmul(
                    *(handle, self._operation, self._alpha.ctypes.data, a, self._a, b, self._b),
                    *(self._beta.ctypes.data, c, self._d, d, self._d),
                    *(algorithm.ptr, workspace.data_ptr(), WORKSPACE_BYTES, torch().cuda.current_stream().cuda_stream),
                )

        return launch


def _set(lt: Any, kind: str, descriptor: int, name: str, value: int) -> None:
    """Set an attribute of a ``matmul_desc``, a ``matrix_layout`` or a ``matmul_preference``."""
    enumeration = "".join(word.capitalize() for word in f"{kind}_attribute".split("_"))
    attribute = getattr(getattr(lt, enumeration), name)
    data = np.array([value], getattr(lt, f"get_{kind}_attribute_dtype")(attribute))
    getattr(lt, f"{kind}_set_attribute")(descriptor, attribute, data.ctypes.data, data.nbytes)
