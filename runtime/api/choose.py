"""Chooses the kernel of a call: the one that the call names, or the one that the selector picks."""

from __future__ import annotations

from typing import NamedTuple

from gemmill.library.config.edited import is_edited, plain_name
from gemmill.library.config.names import parse_name, present_name
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.errors import UnsupportedProblemError
from gemmill.library.launch import NESTED_EXTENTS
from gemmill.library.problem import GemmProblem
from gemmill.runtime.operands.call_keywords import Options
from gemmill.runtime.operands.gemm import Gemm
from gemmill.runtime.registry import Registry
from gemmill.runtime.registry_inputs import kernel_named
from gemmill.runtime.select.choice import Choice


class Target(NamedTuple):
    """The kernel of a call."""

    kernel: SlicedKernel
    """The kernel and the slices of K of its launch."""
    swap_ab: bool
    """Whether it runs the transposed problem."""
    choice: Choice | None = None
    """The selection and its reason; None where the call names the kernel."""


def choose(gemm: Gemm, options: Options, registry: Registry, sm_count: int | None) -> Target:
    """Return the kernel of a registry for a GEMM.

    Raises:
        UnsupportedProblemError: there is none, or the named kernel does not support the problem. Also for a nested
            batch with too many extents.
    """
    if len(gemm.nested) > NESTED_EXTENTS:
        raise UnsupportedProblemError(f"a batch with {len(gemm.nested)} strides is not supported here")
    if options.kernel is not None:
        return _named(gemm.problem, options, registry)
    if gemm.is_prepared:  # f32 is not there to be multiplied as it is
        arithmetic = registry.arithmetic(gemm.problem, options.required_bits)
        choice = registry.selector_for(gemm.problem).select(gemm.problem, sm_count, arithmetic, options.objective)
        return Target(choice.kernel, choice.swap_ab, choice)
    choice = registry.select(gemm.problem, sm_count, options.required_bits, objective=options.objective)
    return Target(choice.kernel, choice.swap_ab, choice)


def _named(problem: GemmProblem, options: Options, registry: Registry) -> Target:
    """Return the kernel that a call names, with the slices of K that the call names or that the model picks."""
    name, requested_slices = present_name(kernel_named(options.kernel), options.slices)
    config = parse_name(plain_name(name))  # this also validates a config made by hand
    arithmetic = registry.arithmetic(problem, options.required_bits)
    if arithmetic is not None and is_edited(name):
        raise UnsupportedProblemError(
            f"kernel {name} is edited, so its order of sums is not known, and bits requires {arithmetic}: name "
            "a kernel that is not edited, or leave out bits"
        )
    from gemmill.runtime.select.selector import named_launch  # programs that choose by tables start faster

    slices, swap_ab = named_launch(config, requested_slices, problem, registry.gpu, arithmetic)
    return Target(SlicedKernel(name, slices), swap_ab)
