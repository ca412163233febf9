"""Declares the keywords of calls once: what each means, and which calls take it.

``matmul``, ``grouped_matmul``, ``array_matmul``, ``plan`` and the first two of ``gemmill.jax`` repeat them in their
signatures, for readers and type checkers; a test checks that they agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from gemmill.library.bits import ANY, INVARIANT
from gemmill.library.config.model import GemmConfig
from gemmill.library.dtypes import SPLIT, DTypeName
from gemmill.library.errors import OperandError
from gemmill.library.problem import Regime

if TYPE_CHECKING:
    from gemmill.runtime.registry import Registry

MATRICES = frozenset({"matmul", "plan", "jax.matmul"})
"""Calls on strided matrices."""
GROUPS = frozenset({"grouped_matmul", "plan", "jax.grouped_matmul"})
"""Calls on groups."""
ARRAYS = frozenset({"array_matmul", "plan"})
"""Calls on matrices at addresses."""
JAX = frozenset({"jax.matmul", "jax.grouped_matmul"})
"""Calls on JAX arrays."""
EVERY = MATRICES | GROUPS | ARRAYS

OPERANDS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "a": EVERY,
        "b": EVERY,
        "c": EVERY,
        "out": EVERY,
        "a_scale": MATRICES | GROUPS,
        "b_scale": MATRICES | GROUPS,
        "a_zero": MATRICES,
        "b_zero": MATRICES | GROUPS,
        "offsets": GROUPS,
        "counts": GROUPS,
        "addresses": ARRAYS,
        "rows": GROUPS,
    }
)
"""Tensors of a GEMM by their keyword, in the order of the addresses of a launch, and the calls that take each."""
PLACES = {name: place for place, name in enumerate(OPERANDS)}

IEEE = "ieee"
"""The precision of f32 products without tensor cores."""
PRECISIONS: Mapping[str, DTypeName] = MappingProxyType({IEEE: "f32", "tf32": "tf32", **{name: name for name in SPLIT}})
"""The dtypes of f32 operands in a problem, by the precision of a call."""


def check_precision(name: str, precision: object) -> None:
    """Raise OperandError unless an argument is a key of :data:`PRECISIONS`."""
    if precision not in (*PRECISIONS,):
        raise OperandError(f"{name} is {precision!r:.80}; it must be one of {', '.join(map(repr, PRECISIONS))}")


class Options(NamedTuple):
    """The keywords of ``matmul``, ``grouped_matmul``, ``array_matmul`` and ``plan`` that are plain values.

    Each field has its type, the calls that take it and its default. The order is that of the signatures.
    """

    alpha: Annotated[float, EVERY] = 1.0
    """Factor of the product A @ B."""
    beta: Annotated[float | None, EVERY] = None
    """Factor of C; None means 1 where C is passed."""
    out_dtype: Annotated[Any, MATRICES | GROUPS] = None
    """Dtype of D, as a gemmill or PyTorch dtype; None means the dtype of the wider of A and B, bf16 for fp8, s32 for
    8-bit integers."""
    accumulator: Annotated[DTypeName | None, EVERY] = None
    """Dtype of the sums; None means f32, s32 for integers, f64 for f64."""
    tf32: Annotated[bool, EVERY] = False
    """Another way to write ``precision="tf32"``."""
    precision: Annotated[str, EVERY] = IEEE
    """How f32 operands are multiplied: one of :data:`PRECISIONS`."""
    fast_accumulation: Annotated[bool, EVERY] = True
    """Whether sums of fp8 stay in the tensor cores, which keep about 13 bits; False selects two-level accumulation."""
    symmetric: Annotated[bool, MATRICES - JAX] = False
    """Whether the caller guarantees that D equals its transpose, so that a kernel may multiply half of it."""
    a_dtype: Annotated[Any, MATRICES] = None
    """Dtype of the elements of A where A is a tensor of bytes."""
    b_dtype: Annotated[Any, MATRICES | GROUPS] = None
    """Dtype of the elements of B where B is a tensor of bytes."""
    expected_rows: Annotated[int | None, GROUPS] = None
    """Rows of a masked group that are in use on average, which the selector assumes; None: see
    :attr:`~gemmill.library.problem.GemmProblem.expected_rows`."""
    registry: Annotated[Registry | None, EVERY - JAX] = None
    """Registry that kernels come from; None means the shipped kernel sets."""
    kernel: Annotated[str | GemmConfig | None, EVERY] = None
    """A kernel by name or config; None lets the selector pick one."""
    slices: Annotated[int | None, MATRICES] = None
    """Slices of K of the launch, where ``kernel`` is a split-K kernel; None lets the model pick the number."""
    sm_count: Annotated[int | None, MATRICES] = None
    """Most SMs that a launch uses; None means all."""
    deterministic: Annotated[bool, MATRICES | GROUPS] = False
    """Whether to refuse operations whose bits can differ when the same call runs again."""
    bits: Annotated[str, EVERY] = ANY
    """Which bits D must have: ``any``, ``invariant``, ``cublas`` or the name of an arithmetic."""
    batch_invariant: Annotated[bool, MATRICES | GROUPS] = False
    """Another name for ``bits="invariant"``."""
    autotune: Annotated[int | None, (MATRICES | GROUPS) - JAX] = None
    """How many of the best kernels gemmill times; None times none."""
    quick: Annotated[bool, MATRICES] = False
    """Deprecated: has no effect."""
    objective: Annotated[Regime, MATRICES] = "sustained"
    """The load for which the selector picks the fastest kernel: ``sustained`` or ``burst``."""

    @property
    def f32_dtype(self) -> DTypeName:
        """The dtype of f32 operands in the problem, by ``precision`` or ``tf32``."""
        return "tf32" if self.tf32 else PRECISIONS[self.precision]

    @property
    def required_bits(self) -> str:
        """``bits``, with ``batch_invariant`` as its other name."""
        return INVARIANT if self.batch_invariant else self.bits


DEFAULTS = Options()
"""Options of a call that passes none."""


OTHERS: Mapping[str, frozenset[str]] = MappingProxyType(
    {"stream": EVERY - JAX, "explain": EVERY, "epilogue": MATRICES | GROUPS}
)
"""All other keywords except operands of an epilogue, and the calls that take each."""
