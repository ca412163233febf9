"""One call, from whichever caller: ``matmul``, a plan, an operator of PyTorch, a handler of JAX, a test.

A :class:`GemmCall` holds what was read from its arguments. Binding, selecting, preparing and launching take nothing
else, and prepared calls are cached by its :attr:`~GemmCall.signature`. Callers without tensors, such as the command
line, start from a :class:`~gemmill.library.problem.GemmProblem`.
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
    """The operation and its tensors: ``D = alpha * A @ B + beta * C``, or the expression of an epilogue."""

    tensors: Mapping[str, TensorView]
    """Operands, and D as ``out``, by their names in :data:`~gemmill.runtime.operands.call_keywords.OPERANDS`."""
    options: Options = DEFAULTS
    arguments: EpilogueArguments = NO_ARGUMENTS
    """The epilogue and its arguments."""
    out: Any = None
    """D as an object of the caller's library."""
    stream: int = 0
    """Handle of the stream of the launch; 0 is the legacy default stream."""
    explain: bool = False
    """Whether to print the chosen kernel and the reason."""

    @cached_property
    def bound(self) -> Gemm:
        """The GEMM that a kernel computes; raises OperandError where the operands do not fit."""
        return bind(self)

    @property
    def problem(self) -> GemmProblem:
        """The problem of the GEMM; raises OperandError like :attr:`bound`."""
        return self.bound.problem

    @property
    def accumulator(self) -> DTypeName:
        """Dtype of the sums; raises OperandError where the caller passed an unknown one."""
        requested = self.options.accumulator
        return default_accumulator(wider(self.tensors)) if requested is None else dtype_named(requested, "accumulator")

    @property
    def scales_c(self) -> bool:
        """Whether beta scales anything."""
        epilogue = self.arguments.epilogue
        return "beta" in epilogue.factors and ("c" in self.tensors or not epilogue.reads_c)

    @property
    def factors(self) -> tuple[float, float]:
        """Alpha and beta of the kernel."""
        alpha, beta = self.options.alpha, self.options.beta
        return alpha, float(self.scales_c) if beta is None else beta

    @property
    def signature(self) -> Hashable:
        """Everything that a prepared call depends on: layouts, dtypes and alignments of the tensors, the options, and
        the epilogue with its arguments. Addresses and streams are not part of it; each launch takes them."""
        layouts = tuple([(name, *tensor.layout) for name, tensor in self.tensors.items()])
        alpha, beta = self.options.alpha, self.options.beta
        signs = copysign(1, alpha), beta is not None and copysign(1, beta)  # 0.0 and -0.0 are equal
        return layouts, self.options, tuple(map(type, self.options)), signs, self.arguments.key  # 1 and True are equal

    @property
    def addresses(self) -> Addresses:
        """Addresses that a launch reads and writes."""
        operand_addresses = [self.tensors[name].ptr if name in self.tensors else 0 for name in OPERANDS]
        return (*operand_addresses, *self.arguments.addresses)

    @property
    def places(self) -> tuple[str, ...]:
        """The caller's names of :attr:`addresses`; empty for an operand that the call does not have."""
        return (*[name if name in self.tensors else "" for name in OPERANDS], *self.arguments.values)
