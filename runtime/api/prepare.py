"""From a call to its launch: its kernel selected, built, loaded and bound, once for all calls of its signature."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

from gemmill.library.config.edited import plain_name
from gemmill.library.config.names import kernel_name, parse_name
from gemmill.library.decompositions.launched import in_slices, is_open
from gemmill.library.errors import CaptureError, UnsupportedProblemError
from gemmill.library.launch import NESTED_EXTENTS
from gemmill.library.problem import GemmProblem
from gemmill.runtime import driver
from gemmill.runtime.api import caches
from gemmill.runtime.api.checks import check_determinism, check_options, check_promises, check_values
from gemmill.runtime.api.explain import explain, warn_of
from gemmill.runtime.api.invariance import of_any_rows, refuse_shared_k
from gemmill.runtime.launch.kernel import Kernel, load
from gemmill.runtime.launch.launcher import Launcher, Launches, PreparedCall, Resets, is_empty
from gemmill.runtime.operands.binding import Gemm
from gemmill.runtime.operands.call import GemmCall, Options, signature
from gemmill.runtime.operands.overlap import MemoryCheck
from gemmill.runtime.registry import Registry
from gemmill.runtime.registry_inputs import kernel_named
from gemmill.runtime.select.choice import Choice, Rows, warn_of_quick
from gemmill.runtime.select.kernels.faults import faults, needs_swap, realigned
from gemmill.runtime.select.selector import with_number


def prepare(call: GemmCall) -> PreparedCall:
    """A call made ready to launch: as one before it of the same signature, or now. Says of it what the call asks.

    Raises what :func:`gemmill.matmul` does.
    """
    if call.arguments.outputs:
        check_determinism(call)
    if call.options.quick is True:  # at each call, also where one like it was made ready before
        warn_of_quick()
    try:
        entry = caches.prepared(signature(call))
    except TypeError:  # what has no hash is no option
        check_options(call.options)
        raise
    if entry.value is None:
        entry.value = _prepared(call)
    if call.explain:
        explain(entry.value)
    return entry.value


def launch(call: GemmCall) -> PreparedCall:
    """Launch a call on its stream, made ready if need be."""
    prepared = prepare(call)
    prepared.launcher.launch(call.stream, call.addresses)
    return prepared


def _prepared(call: GemmCall) -> PreparedCall:
    options = call.options
    check_options(options)
    check_promises(call)
    alpha, beta = check_values(call)
    gemm, arguments = call.bound
    device, memory = call.tensors["a"].device, MemoryCheck(call)
    memory(call.addresses)
    if is_empty(gemm.problem):
        return PreparedCall(gemm.problem, None, None, memory, functools.partial(Resets, device, arguments, memory))
    if options.batch_invariant:
        gemm = of_any_rows(gemm)
    registry = caches.default_registry() if options.registry is None else options.registry
    sm_count = options.sm_count
    if sm_count is not None and sm_count >= driver.sm_count(device):
        sm_count = None  # no bound

    problem, parts = gemm.problem, 1
    new: Callable[..., Launches] = functools.partial(Launcher, memory=memory)
    if gemm.nested and not _takes_nested(call, registry, problem, sm_count):
        from gemmill.runtime.launch.batch_parts import launch_parts  # as few calls need it

        (gemm, arguments, shifts), new = launch_parts(call, gemm, arguments, memory)
        parts = len(shifts)

    def launcher(name: str, swap_ab: bool) -> functools.partial[Launches]:
        kernel, own = _load(registry, name, device, call.stream), gemm.transposed if swap_ab else gemm
        _refuse_to_load_copies(kernel, own, call.stream)
        return functools.partial(new, own, kernel, alpha, beta, sm_count, arguments)

    if options.kernel is not None:
        name, swap_ab = _named(registry, options, gemm.problem)
        return PreparedCall(problem, name, None, memory, launcher(name, swap_ab))
    if options.autotune is not None:
        from gemmill.runtime.api.autotune import autotuned_call

        choice = autotuned_call(call, registry, gemm.problem, sm_count, launcher)
    else:
        choice = _selected(call, registry, gemm, sm_count)
    if parts > 1:
        strides = f"no kernel here takes a batch of {len(call.bound.gemm.nested)} strides as it is asked for"
        choice = replace(choice, reason=f"{choice.reason}; in {parts} launches of {gemm.problem.batch}, as {strides}")
    if gemm.is_transposed:
        choice = choice.of_transposed
    warn_of(choice)
    return PreparedCall(problem, choice.name, choice, memory, launcher(choice.name, choice.swap_ab))


def kernel_for(call: GemmCall) -> str | None:
    """The name of the kernel that a call is to name so as to get what would be selected for it, with or without a GPU:
    nothing is compiled or loaded. None where none is to be named: D is empty, a batch may go in parts, or the name does
    not say whether the transpose is computed.

    Raises what :func:`gemmill.matmul` does before it compiles.
    """
    check_options(call.options)
    if call.options.quick:
        warn_of_quick()
    check_promises(call)
    check_values(call)
    gemm, options = call.bound.gemm, call.options
    if is_empty(gemm.problem) or gemm.nested:
        return None
    if options.batch_invariant:
        gemm = of_any_rows(gemm)
    registry = caches.default_registry() if options.registry is None else options.registry
    if options.kernel is not None:
        return _named(registry, options, gemm.problem)[0]
    choice = _selected(call, registry, gemm, options.sm_count)
    warn_of(choice.of_transposed if gemm.is_transposed else choice)
    return choice.name if needs_swap(choice.config, gemm.problem) == choice.swap_ab else None


def _takes_nested(call: GemmCall, registry: Registry, problem: GemmProblem, sm_count: int | None) -> bool:
    """Whether a kernel takes the nested batch of a call whole. Its parts, otherwise, go to kernels whose bits do not
    depend on the batch."""
    options = call.options
    if len(call.bound.gemm.nested) > NESTED_EXTENTS or options.batch_invariant:
        return False
    if options.kernel is not None:
        return needs_swap(parse_name(plain_name(kernel_named(options.kernel))), problem) is not None
    try:
        registry.select(problem, sm_count, None, objective=options.objective)
    except UnsupportedProblemError:
        return False
    return True


def _selected(call: GemmCall, registry: Registry, gemm: Gemm, sm_count: int | None) -> Choice:
    rows: Rows = "n" if gemm.is_transposed else "m"
    invariant_to = rows if call.options.batch_invariant else None
    return registry.select(gemm.problem, sm_count, invariant_to, objective=call.options.objective)


def _named(registry: Registry, options: Options, problem: GemmProblem) -> tuple[str, bool]:
    """The name of the kernel that a call names, in as many slices of K as the call, or else the model, has, and whether
    it is to run the transposed problem."""
    name = kernel_named(options.kernel)
    plain = plain_name(name)
    config = parse_name(plain)  # which checks a config made by hand as well
    if options.batch_invariant:
        refuse_shared_k(config)
    swap_ab = needs_swap(config, problem)
    if swap_ab is None:
        raise UnsupportedProblemError(f"kernel {name} does not fit: it needs {' and '.join(faults(config, problem))}")
    if options.slices is not None:
        config = in_slices(config, options.slices)
    elif is_open(config):
        config = with_number(config, problem, swap_ab, registry.gpu)
    return kernel_name(config) + name.removeprefix(plain), swap_ab


def _load(registry: Registry, name: str, device: int, stream: int) -> Kernel:
    """A kernel of a registry on a GPU, compiled and loaded if need be, but not while the stream is being captured."""
    kernels = caches.of_registry(registry).kernels
    kernel = kernels.get((device, name))
    if kernel is None:
        if driver.is_capturing(device, stream):
            raise _not_loaded(f"kernel {name}", device)
        kernel = kernels[device, name] = load(device, registry.get(name))
    return kernel


def _refuse_to_load_copies(kernel: Kernel, gemm: Gemm, stream: int) -> None:
    """CaptureError where the kernel that copies unaligned operands is to be loaded while the stream is captured."""
    if realigned(kernel.config, gemm.problem):
        from gemmill.runtime.launch.realign import is_loaded  # as few launches need it

        if not is_loaded(kernel.device) and driver.is_capturing(kernel.device, stream):
            raise _not_loaded("the kernel that copies operands that are not aligned", kernel.device)


def _not_loaded(kernel: str, device: int) -> CaptureError:
    return CaptureError(
        f"{kernel} is not loaded on GPU {device} yet, and cannot be while the stream is captured into a CUDA graph: "
        "before the capture, call gemmill.plan(...) or gemmill.matmul(...) once with operands of these shapes, strides "
        "and dtypes"
    )
