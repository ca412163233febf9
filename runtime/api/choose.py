"""Which kernel a call goes to: the one that it names, or the one that is selected."""

from __future__ import annotations

from typing import NamedTuple

from gemmill.library.config.edited import plain_name
from gemmill.library.config.names import kernel_name, parse_name, present_name
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.errors import UnsupportedProblemError
from gemmill.library.launch import NESTED_EXTENTS
from gemmill.library.problem import GemmProblem
from gemmill.runtime.operands.call_keywords import Options
from gemmill.runtime.operands.gemm import Gemm
from gemmill.runtime.registry import Registry
from gemmill.runtime.registry_inputs import kernel_named
from gemmill.runtime.select.choice import Choice
from gemmill.runtime.select.selector import named_launch, sums_in_one_cta


class Target(NamedTuple):
    """The kernel of a call."""

    kernel: SlicedKernel
    """The kernel and the slices of K of its launch."""
    swap_ab: bool
    """Whether it runs the transposed problem."""
    choice: Choice | None = None
    """Why it was selected; None where the call names it."""


def choose(gemm: Gemm, options: Options, registry: Registry, sm_count: int | None) -> Target:
    """The kernel of a registry that a GEMM goes to. UnsupportedProblemError where there is none, or where the one that
    the call names does not serve it; for a nested batch likewise where bits may not depend on the batch."""
    if gemm.nested and (options.batch_invariant or len(gemm.nested) > NESTED_EXTENTS):
        raise UnsupportedProblemError(f"no kernel takes a batch of {len(gemm.nested)} strides here")
    if options.kernel is not None:
        return _named(gemm.problem, options, registry)
    invariant_to = ("n" if gemm.is_transposed else "m") if options.batch_invariant else None
    choice = registry.select(gemm.problem, sm_count, invariant_to, objective=options.objective)  # type: ignore[arg-type]
    return Target(choice.kernel, choice.swap_ab, choice)


def _named(problem: GemmProblem, options: Options, registry: Registry) -> Target:
    """The kernel that a call names, in as many slices of K as the call, or else the model, has."""
    name, requested_slices = present_name(kernel_named(options.kernel), options.slices)
    config = parse_name(plain_name(name))  # which checks a config made by hand as well
    if options.batch_invariant and not sums_in_one_cta(config):
        raise UnsupportedProblemError(
            f"batch_invariant: kernel {kernel_name(config)} shares K between CTAs "
            f"({config.scheduler.decomposition}); name one that does not, or leave out batch_invariant"
        )
    slices, swap_ab = named_launch(config, requested_slices, problem, registry.gpu)
    return Target(SlicedKernel(name, slices), swap_ab)
