"""One call, whoever makes it: ``matmul``, a plan, an operator of PyTorch, a handler of JAX, a test.

A :class:`GemmCall` is what was read of its arguments. From there on nothing else is passed along: binding, selecting,
preparing and launching ask it, and prepared calls are kept by its :attr:`~GemmCall.signature`. Who has no tensors, such
as the
command line, starts from a :class:`~gemmill.library.problem.GemmProblem`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import copysign
from typing import Any

from gemmill.library.dtypes import DTypeName, default_accumulator
from gemmill.library.problem import GemmProblem
from gemmill.runtime.operands.binding import bind, wider
from gemmill.runtime.operands.call_keywords import DEFAULTS, OPERANDS, Options
from gemmill.runtime.operands.epilogue_arguments import NO_ARGUMENTS, EpilogueArguments
from gemmill.runtime.operands.gemm import Addresses, Gemm
from gemmill.runtime.operands.tensors import TensorView, dtype_named


@dataclass(frozen=True, eq=False)
class GemmCall:
    """What is asked for, and of which tensors: ``D = alpha * A @ B + beta * C``, or what an epilogue says."""

    tensors: Mapping[str, TensorView]
    """Operands, and D as ``out``, by the names of :data:`~gemmill.runtime.operands.call_keywords.OPERANDS`."""
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
    def bound(self) -> Gemm:
        """What a kernel is to compute for it; OperandError names what does not fit."""
        return bind(self)

    @property
    def problem(self) -> GemmProblem:
        """What is to be solved; OperandError as for :attr:`bound`."""
        return self.bound.problem

    @property
    def accumulator(self) -> DTypeName:
        """Dtype of the sums; OperandError where the caller asks for one that there is not."""
        asked = self.options.accumulator
        return default_accumulator(wider(self.tensors)) if asked is None else dtype_named(asked, "accumulator")

    @property
    def scales_c(self) -> bool:
        """Whether beta is a factor of anything."""
        epilogue = self.arguments.epilogue
        return "beta" in epilogue.factors and ("c" in self.tensors or not epilogue.reads_c)

    @property
    def factors(self) -> tuple[float, float]:
        """Alpha and beta of a kernel."""
        alpha, beta = self.options.alpha, self.options.beta
        return alpha, float(self.scales_c) if beta is None else beta

    @property
    def signature(self) -> Hashable:
        """All that a prepared call depends on: layouts and dtypes of tensors, of addresses the alignment; options; the
        epilogue and its arguments. Not addresses and streams, which are a launch's."""
        layouts = tuple([(name, *tensor.layout) for name, tensor in self.tensors.items()])
        alpha, beta = self.options.alpha, self.options.beta
        signs = copysign(1, alpha), beta is not None and copysign(1, beta)  # 0.0 and -0.0 are equal
        return layouts, self.options, tuple(map(type, self.options)), signs, self.arguments.key  # 1 and True are equal

    @property
    def addresses(self) -> Addresses:
        """Where a launch finds what it reads and writes."""
        own = [self.tensors[name].ptr if name in self.tensors else 0 for name in OPERANDS]
        return (*own, *self.arguments.addresses)

    @property
    def places(self) -> tuple[str, ...]:
        """What the caller calls those at :attr:`addresses`; nothing where that is 0 for want of one."""
        return (*[name if name in self.tensors else "" for name in OPERANDS], *self.arguments.values)
