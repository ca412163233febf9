"""The keywords of calls, declared once: what each is, and which calls take it.

``matmul``, ``grouped_matmul``, ``array_matmul``, ``plan``, and the first two of ``gemmill.jax`` declare them again, for
people and type checkers; tests hold their signatures equal to these.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from gemmill.library.config.model import GemmConfig
from gemmill.library.dtypes import DTypeName
from gemmill.library.problem import Regime

if TYPE_CHECKING:
    from gemmill.runtime.registry import Registry

MATRICES = frozenset({"matmul", "plan", "jax.matmul"})
"""Calls for matrices at strides."""
GROUPS = frozenset({"grouped_matmul", "plan", "jax.grouped_matmul"})
"""Calls for groups."""
ARRAYS = frozenset({"array_matmul", "plan"})
"""Calls for matrices at addresses."""
JAX = frozenset({"jax.matmul", "jax.grouped_matmul"})
"""Calls for arrays of JAX."""
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
        "b_zero": MATRICES,
        "offsets": GROUPS,
        "counts": GROUPS,
        "addresses": ARRAYS,
    }
)
"""What the caller calls the tensors of a GEMM, in the order in which a launch takes their addresses; and the calls that
take each."""
PLACES = {name: place for place, name in enumerate(OPERANDS)}


class Options(NamedTuple):
    """The keywords of ``matmul``, ``grouped_matmul``, ``array_matmul`` and ``plan`` that are plain values: their
    types, the calls that take them and their defaults, in the order in which each declares those that it takes."""

    alpha: Annotated[float, EVERY] = 1.0
    """Factor of the product."""
    beta: Annotated[float | None, EVERY] = None
    """Factor of C; None: 1 where there is a C."""
    out_dtype: Annotated[Any, MATRICES | GROUPS] = None
    """Dtype of D, in gemmill's words or PyTorch's; None: that of the wider of A and B, bf16 for fp8, s32 for 8-bit
    integers."""
    accumulator: Annotated[DTypeName | None, EVERY] = None
    """Dtype of the sums; None: f32, s32 for integers, f64 for f64."""
    tf32: Annotated[bool, EVERY] = False
    """Whether f32 operands are multiplied in the 10 bits of mantissa that tensor cores read."""
    fast_accumulation: Annotated[bool, EVERY] = True
    """Whether sums of fp8 stay in the tensor cores, which keep about 13 bits."""
    a_dtype: Annotated[Any, MATRICES] = None
    """What an A of bytes holds."""
    b_dtype: Annotated[Any, MATRICES] = None
    """What a B of bytes holds."""
    expected_rows: Annotated[int | None, GROUPS] = None
    """Rows of a slot that are in use on average, which its kernel is chosen for; None: see
    :attr:`~gemmill.library.problem.GemmProblem.expected_rows`."""
    registry: Annotated[Registry | None, EVERY - JAX] = None
    """Where kernels come from; None: the shipped kernel sets."""
    kernel: Annotated[str | GemmConfig | None, EVERY] = None
    """A kernel by name or config, in place of selecting one."""
    slices: Annotated[int | None, MATRICES] = None
    """Slices of K of that kernel's launch, where it is a split-K kernel; None: as many as the model has as the best."""
    sm_count: Annotated[int | None, MATRICES] = None
    """Most SMs that a launch uses; None: all."""
    deterministic: Annotated[bool, MATRICES | GROUPS] = False
    """Whether what could give other bits when the call runs again is refused."""
    batch_invariant: Annotated[bool, MATRICES | GROUPS] = False
    """Whether the bits of a row of D may depend neither on how many rows nor on how many matrices there are."""
    autotune: Annotated[int | None, (MATRICES | GROUPS) - JAX] = None
    """How many of the best kernels are timed; None: none."""
    quick: Annotated[bool, MATRICES] = False
    """Has no effect; deprecated."""
    objective: Annotated[Regime, MATRICES] = "sustained"
    """What the kernel is to be the fastest in."""


DEFAULTS = Options()
"""What a call asks for that says nothing."""


OTHERS: Mapping[str, frozenset[str]] = MappingProxyType(
    {"stream": EVERY - JAX, "explain": EVERY, "epilogue": MATRICES | GROUPS}
)
"""All other keywords, and the calls that take each, but for operands of an epilogue."""
