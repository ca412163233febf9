"""One call, whoever makes it: ``matmul``, a plan, an operator of PyTorch, a handler of JAX, a test.

A :class:`GemmCall` is what was read of its arguments. From there on nothing else is passed along: binding, selecting,
preparing and launching ask it, and prepared calls are kept by its :func:`signature`. Who has no tensors, such as the
command line, starts from a :class:`~gemmill.library.problem.GemmProblem`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import copysign
from typing import TYPE_CHECKING, Any, NamedTuple

from gemmill.library.config.model import GemmConfig
from gemmill.library.dtypes import DTYPES, DTypeName, default_accumulator
from gemmill.library.epilogues.parse import spelling
from gemmill.library.epilogues.tree import Epilogue, transposed
from gemmill.library.errors import OperandError
from gemmill.library.problem import GemmProblem, Regime, is_mixed
from gemmill.runtime.operands.arguments import NO_ARGUMENTS, EpilogueArguments
from gemmill.runtime.operands.binding import bind
from gemmill.runtime.operands.bound_arguments import BoundArgument, bind_arguments, staged
from gemmill.runtime.operands.gemm import OPERANDS, Addresses, Gemm
from gemmill.runtime.operands.groups import bind_groups, expecting
from gemmill.runtime.operands.reading import dtype_named
from gemmill.runtime.operands.shapes import groups_kind
from gemmill.runtime.operands.tensors import TensorView

if TYPE_CHECKING:
    from gemmill.runtime.registry import Registry


class Options(NamedTuple):
    """The keywords of ``matmul``, ``grouped_matmul``, ``array_matmul`` and ``plan`` that are plain values: their
    defaults, in the order in which each of the four declares those that it takes."""

    alpha: float = 1.0
    """Factor of the product."""
    beta: float | None = None
    """Factor of C; None: 1 where there is a C."""
    out_dtype: Any = None
    """Dtype of D, in gemmill's words or PyTorch's; None: that of the wider of A and B, bf16 for fp8, s32 for 8-bit
    integers."""
    accumulator: DTypeName | None = None
    """Dtype of the sums; None: f32, s32 for integers, f64 for f64."""
    tf32: bool = False
    """Whether f32 operands are multiplied in the 10 bits of mantissa that tensor cores read."""
    fast_accumulation: bool = True
    """Whether sums of fp8 stay in the tensor cores, which keep about 13 bits."""
    a_dtype: Any = None
    """What an A of bytes holds."""
    b_dtype: Any = None
    """What a B of bytes holds."""
    expected_rows: int | None = None
    """Rows of a slot that are in use on average, which its kernel is chosen for; None: see
    :attr:`~gemmill.library.problem.GemmProblem.expected_rows`."""
    registry: Registry | None = None
    """Where kernels come from; None: the shipped kernel sets."""
    kernel: str | GemmConfig | None = None
    """A kernel by name or config, in place of selecting one."""
    slices: int | None = None
    """Slices of K of that kernel's launch, where it is a split-K kernel; None: as many as the model has as the best."""
    sm_count: int | None = None
    """Most SMs that a launch uses; None: all."""
    deterministic: bool = False
    """Whether what could give other bits when the call runs again is refused."""
    batch_invariant: bool = False
    """Whether the bits of a row of D may depend neither on how many rows nor on how many matrices there are."""
    autotune: int | None = None
    """How many of the best kernels are timed; None: none."""
    quick: bool = False
    """Whether the kernel is selected in some 10 us where nothing was measured."""
    objective: Regime = "sustained"
    """What the kernel is to be the fastest in."""


DEFAULTS = Options()
"""What a call asks for that says nothing."""


class BoundCall(NamedTuple):
    """A call in memory."""

    gemm: Gemm
    arguments: tuple[BoundArgument, ...]
    """Of its epilogue."""


@dataclass(frozen=True, eq=False)
class GemmCall:
    """What is asked for, and of which tensors: ``D = alpha * A @ B + beta * C``, or what an epilogue says."""

    tensors: Mapping[str, TensorView]
    """Operands, and D as ``out``, by the names of :data:`~gemmill.runtime.operands.gemm.OPERANDS`."""
    options: Options = DEFAULTS
    arguments: EpilogueArguments = NO_ARGUMENTS
    """The epilogue, and what is passed to it."""
    out: Any = None
    """D as its library knows it."""
    stream: int = 0
    """Handle of the stream that work goes to; 0: the legacy default stream."""
    explain: bool = False
    """Whether to say where it goes, and why."""

    @cached_property
    def bound(self) -> BoundCall:
        """Its operands and the arguments of its epilogue as a kernel takes them; OperandError names what does not
        fit."""
        return _bind(self)

    @property
    def problem(self) -> GemmProblem:
        """What is to be solved; OperandError as for :attr:`bound`."""
        return self.bound.gemm.problem

    @property
    def accumulator(self) -> DTypeName:
        """Dtype of the sums; OperandError where the caller asks for one that there is not."""
        asked = self.options.accumulator
        return default_accumulator(wider(self.tensors)) if asked is None else dtype_named(asked, "accumulator")

    @property
    def addresses(self) -> Addresses:
        """Where a launch finds what it reads and writes."""
        own = [self.tensors[name].ptr if name in self.tensors else 0 for name in OPERANDS]
        return (*own, *self.arguments.addresses)

    @property
    def places(self) -> tuple[str, ...]:
        """What the caller calls those at :attr:`addresses`; nothing where that is 0 for want of one."""
        return (*[name if name in self.tensors else "" for name in OPERANDS], *self.arguments.values)


def signature(call: GemmCall) -> Hashable:
    """All that a prepared call depends on: layouts and dtypes of tensors, of addresses the alignment; options; the
    epilogue and its arguments. Not addresses and streams, which are a launch's."""
    layouts = tuple([(name, *tensor.layout) for name, tensor in call.tensors.items()])
    alpha, beta = call.options.alpha, call.options.beta
    signs = copysign(1, alpha), beta is not None and copysign(1, beta)  # 0.0 and -0.0 are equal
    return layouts, call.options, tuple(map(type, call.options)), signs, call.arguments.key  # 1 and True are equal


def wider(tensors: Mapping[str, TensorView]) -> DTypeName:
    """The dtype of the wider of A and B."""
    a, b = tensors["a"].dtype, tensors["b"].dtype
    return b if DTYPES[b].bits > DTYPES[a].bits else a


def _bind(call: GemmCall) -> BoundCall:
    tensors, options, epilogue, values = call.tensors, call.options, call.arguments.epilogue, call.arguments.values
    a, b, c, d = tensors["a"], tensors["b"], tensors.get("c"), tensors["out"]
    kind, stack = groups_kind(tensors), None
    scales: tuple[str, ...] = ("a_scale", "b_scale", "a_zero", "b_zero")
    if options.alpha == 0 and epilogue.sums_are_scaled and a.shape[-1:] == (b.shape[-2:-1] or b.shape):
        one = wider(tensors) if is_mixed(a.dtype, b.dtype) else None  # and nothing to upconvert
        a, b = _without_k(a, -1, one or a.dtype), _without_k(b, -2 if len(b.shape) > 1 else -1, one or b.dtype)
        scales = ()
    if values:
        from gemmill.runtime.operands.fused.layouts import fitted, stacked  # as not all programs need it

        shares_d = kind == "offsets" and len(b.shape) == 3
        epilogue, values = fitted(epilogue, values, a, b, keep_rows=options.batch_invariant, shares_d=shares_d)
        stack = stacked(epilogue, values, d, len(b.shape) > 1) if len(a.shape) > 1 and not kind else None
    others: dict[str, Any] = {name: tensors.get(name) for name in scales}
    others |= {"tf32": options.tf32, "promote": 0 if options.fast_accumulation else 4, "epilogue": epilogue}
    if kind:
        gemm = bind_groups(a, b, d, c, call.accumulator, groups=tensors[kind], kind=kind, **others)
    else:
        gemm = bind(a, b, d, c, call.accumulator, may_stack=not values or stack is not None, **others)
    if options.expected_rows is not None:
        gemm = expecting(gemm, options.expected_rows)
    if not values:
        return BoundCall(gemm, ())
    if stack is not None and gemm.problem.batch == 1:
        values, d = stack
    groups = gemm.problem.batch if gemm.problem.batching == "grouped" else None
    bound = bind_arguments(epilogue, values, d, len(a.shape) > 1, len(b.shape) > 1, groups)
    return BoundCall(_with_majors(gemm, epilogue, bound, options.batch_invariant), bound)


def _without_k(tensor: TensorView, axis: int, dtype: DTypeName) -> TensorView:
    """A or B of which no element is read: as in BLAS, alpha = 0 makes no NaN of them."""
    shape = list(tensor.shape)
    shape[axis] = 0
    return replace(tensor, shape=tuple(shape), dtype=dtype)


def _with_majors(gemm: Gemm, epilogue: Epilogue, bound: tuple[BoundArgument, ...], batch_invariant: bool) -> Gemm:
    """The GEMM with an epilogue whose matrices are moved by TMA, where it can move them; where D's bits may not depend
    on M, as the caller says, since whether it can does."""
    if not any(x.kind == "matrix" for x in epilogue.arguments):
        return gemm
    if gemm.problem.batching != "strided":
        if epilogue.majors:
            named = " and ".join(epilogue.majors)
            raise OperandError(
                f"the epilogue names a major of {named}, but TMA moves no matrices of groups or of a batch with "
                "several strides: leave it out"
            )
        return gemm
    movable = staged(epilogue, bound)
    if batch_invariant:
        return gemm
    text = spelling(transposed(movable) if gemm.is_transposed else movable)
    return replace(gemm, problem=gemm.problem.but(epilogue=text))
