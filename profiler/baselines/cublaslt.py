"""The same GEMM by cuBLASLt itself: by the algorithm that its heuristic names first, or the fastest of the first few.

It is called through the bindings of nvmath-python, which are treated as ``Any`` and imported where they are needed.
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
"""Algorithms that are asked for and timed."""
WORKSPACE_BYTES = 32 << 20
"""Workspace that an algorithm may use, as much as PyTorch gives cuBLASLt on Hopper."""

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
    """A matrix as it lies in memory, in cuBLASLt's terms: column-major, to be transposed first or not."""

    rows: int
    columns: int
    ld: int
    """Elements from one column to the next."""
    stride: int
    """Elements from one matrix of the batch to the next."""
    transposed: bool


def stored(tensor: Any, row_major: bool) -> Stored:
    """How a matrix, or a batch of them, lies in memory: rows one after the other are columns of its transpose."""
    rows, columns = tensor.shape[-2:]
    stride = tensor.stride(0) if tensor.dim() == 3 else 0
    if row_major:
        return Stored(columns, rows, tensor.stride(-2), stride, True)
    return Stored(rows, columns, tensor.stride(-1), stride, False)


def column_major(problem: GemmProblem, operands: OperandSet) -> tuple[GemmProblem, OperandSet]:
    """The same work with D m-major: itself, or D^T = B^T A^T. All that cuBLASLt has for every type is column-major."""
    if problem.d_major == "m":
        return problem, operands

    def turned(tensor: Any) -> Any:
        return None if tensor is None else tensor.mT

    o = operands
    a_scale, b_scale = turned(o.b_scale), turned(o.a_scale)
    swapped = OperandSet(turned(o.b), turned(o.a), turned(o.c), turned(o.d), a_scale, b_scale)
    return problem.transposed, swapped


def stored_scales(scales: Any, scale: str) -> Any:
    """A copy of block scales, (rows, blocks of K), as cuBLASLt reads them.

    Of vectors those of neighbouring rows are neighbours. Of squares those along K are, in lines of a multiple of four
    (cuBLAS documentation, "1D and 2D block scaling for FP8 data types").
    """
    if scale == "1x128":
        return scales.mT.contiguous()
    return torch().nn.functional.pad(scales, (0, -scales.shape[-1] % 4)).contiguous()


class _Library(NamedTuple):
    """What all calls share."""

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
    """Why cuBLASLt cannot be called in this process; empty where it can."""
    try:
        _library()
    except ImportError as error:
        return f"nvmath-python cannot be imported ({error}); {install('cublaslt')}"
    except RuntimeError as error:  # no library, or none for this driver
        return f"nvmath-python has no cuBLASLt to call: {error}"
    return ""


def first(problem: GemmProblem, operands: Sequence[OperandSet]) -> Baseline | None:
    """cuBLASLt with the first algorithm of its heuristic; None where it has no such types.

    Raises:
        UnsupportedProblemError: it has no algorithm; launches raise it too.
    """
    solved = _solved(problem)
    if solved is None:
        return None
    with _refusals(solved):
        matmul = _Matmul(solved, with_d(problem, solved, operands))
        return Baseline(solved, matmul.operands, matmul.launch(matmul.algorithms(1)[0]))


def tuned(problem: GemmProblem, operands: Sequence[OperandSet]) -> Baseline | None:
    """cuBLASLt with the fastest of the algorithms that its heuristic puts first, each timed briefly.

    Raises:
        UnsupportedProblemError: as for :func:`first`.
    """
    solved = _solved(problem)
    if solved is None:
        return None
    with _refusals(solved):
        matmul = _Matmul(solved, with_d(problem, solved, operands))
        launches = [launch for algorithm in matmul.algorithms(CANDIDATES) if _runs(launch := matmul.launch(algorithm))]
        if not launches:
            raise UnsupportedProblemError(f"none of cuBLASLt's algorithms for {solved} can be launched")
        return Baseline(solved, matmul.operands, launches[fastest(launches, solved, len(operands))])


def _runs(launch: Launch) -> bool:
    """Whether cuBLASLt takes an algorithm at its launch as well."""
    try:
        launch(0)
    except UnsupportedProblemError:
        return False
    return True


def _solved(problem: GemmProblem) -> GemmProblem | None:
    """What cuBLASLt can solve in a problem's place; C must have the major of D, block scales be f32 without a batch."""
    solved = nearest(problem)
    scaled = problem.a_scale != "none"
    if solved is None or problem.c_major not in (None, problem.d_major):
        return None
    if scaled and (problem.batch > 1 or problem.a_scale not in _SCALES):
        return None
    return solved


@contextmanager
def _refusals(problem: GemmProblem) -> Iterator[None]:
    """Errors of cuBLASLt as ours, with the problem."""
    try:
        yield
    except _library().lt.cuBLASLtError as error:
        raise UnsupportedProblemError(f"cuBLASLt refuses {problem}: {error}") from None


class _Matmul:
    """What describes one GEMM to cuBLASLt, on some operand sets."""

    def __init__(self, problem: GemmProblem, operands: Sequence[OperandSet]) -> None:
        self.problem, self.operands = problem, operands
        lt, blas, types, _, _ = _library()
        made = ExitStack()
        weakref.finalize(self, made.close)
        swapped, o = column_major(problem, operands[0])
        a, b = stored(o.a, swapped.a_major == "k"), stored(o.b, swapped.b_major == "mn")

        def layout(matrix: Stored, dtype: str) -> int:
            result: int = lt.matrix_layout_create(
                getattr(types, str(DTYPES[dtype].cuda)), matrix.rows, matrix.columns, matrix.ld
            )
            made.callback(lt.matrix_layout_destroy, result)
            values = {"BATCH_COUNT": problem.batch, "STRIDED_BATCH_OFFSET": matrix.stride}
            for name, value in values.items() if problem.batch > 1 else ():
                _set(lt, "matrix_layout", result, name, value)
            return result

        self._a, self._b = layout(a, swapped.a_dtype), layout(b, swapped.b_dtype)
        # One layout for C and D: without a C, D stands there and beta is 0.
        self._d = layout(stored(o.d, False), swapped.d_dtype)

        sums, factor = _SUMS[problem.accumulator]
        if problem.a_dtype == "tf32":
            sums += "_FAST_TF32"
        scale_type = getattr(types, str(DTYPES[problem.accumulator].cuda))
        self._operation = lt.matmul_desc_create(getattr(blas.ComputeType, sums), scale_type)
        made.callback(lt.matmul_desc_destroy, self._operation)
        self._describe("TRANSA", blas.Operation.T if a.transposed else blas.Operation.N)
        self._describe("TRANSB", blas.Operation.T if b.transposed else blas.Operation.N)
        if problem.a_dtype in FP8:
            self._describe("FAST_ACCUM", problem.promote == 0)
        self._alpha = np.ones(1, factor)
        self._beta = np.array([0 if problem.c_dtype is None else BETA], factor)

        turned = [column_major(problem, own)[1] for own in operands]
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
        """So many algorithms of cuBLASLt's heuristic, or as many as it has: those first that it takes for the fastest.

        Raises:
            UnsupportedProblemError: it has none that can run; cuBLASLt's own error where it says so itself.
        """
        lt = _library().lt
        found, returned = lt.MatmulHeuristicResult(count), np.zeros(1, np.int32)
        preference = lt.matmul_preference_create()
        try:
            _set(lt, "matmul_preference", preference, "MAX_WORKSPACE_BYTES", WORKSPACE_BYTES)
            lt.matmul_algo_get_heuristic(
                *(_library().handle, self._operation, self._a, self._b, self._d, self._d, preference),
                *(count, found.ptr, returned.ctypes.data),
            )
        finally:
            lt.matmul_preference_destroy(preference)
        usable = [found[i] for i in range(returned[0]) if found[i].state == 0]
        if not usable:
            raise UnsupportedProblemError(f"cuBLASLt has no algorithm for {self.problem}")
        return usable

    def launch(self, algorithm: Any) -> Launch:
        """A launch by one of :meth:`algorithms`: its first member is what cuBLASLt wants."""
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


def _set(lt: Any, kind: str, thing: int, name: str, value: int) -> None:
    """Set an attribute of a ``matmul_desc``, a ``matrix_layout`` or a ``matmul_preference``."""
    enumeration = "".join(part.capitalize() for part in f"{kind}_attribute".split("_"))
    attribute = getattr(getattr(lt, enumeration), name)
    held = np.array([value], getattr(lt, f"get_{kind}_attribute_dtype")(attribute))
    getattr(lt, f"{kind}_set_attribute")(thing, attribute, held.ctypes.data, held.nbytes)
