"""Prepares a call for its launch: checks it, chooses, compiles and loads its kernel, and encodes its parameters. This
happens once for all calls with the same signature."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from math import isfinite

from gemmill.library.bits import ANY, INVARIANT, fault_of
from gemmill.library.config.model import GemmConfig
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.dtypes import MAX_FLOAT32
from gemmill.library.epilogues.tree import Epilogue
from gemmill.library.errors import CaptureError, OperandError, UnsupportedProblemError
from gemmill.library.problem import REGIMES
from gemmill.runtime import driver
from gemmill.runtime.api import caches
from gemmill.runtime.api.choose import Target, choose
from gemmill.runtime.api.explain import explain, warn_of
from gemmill.runtime.launch.kernel import Kernel, load
from gemmill.runtime.launch.launcher import Launcher, Launches, PreparedCall, Resets
from gemmill.runtime.operands.call import GemmCall
from gemmill.runtime.operands.call_keywords import IEEE, Options, check_precision
from gemmill.runtime.operands.gemm import Gemm
from gemmill.runtime.operands.overlap import MemoryCheck
from gemmill.runtime.registry import Registry
from gemmill.runtime.select.choice import warn_of_quick
from gemmill.runtime.select.kernels.faults import needs_swap, realigned

_FLAGS = ("tf32", "fast_accumulation", "symmetric", "deterministic", "batch_invariant", "quick")


def prepare(call: GemmCall) -> PreparedCall:
    """Return a prepared call: the cached one of the same signature, or a new one. Prints the choice where the call says
    ``explain``.

    Raises:
        The errors of :func:`gemmill.matmul`.
    """
    if call.arguments.outputs:
        _check_determinism(call.arguments.epilogue)
    if call.options.quick is True:  # warn at each call, cached or not
        warn_of_quick()
    try:
        entry = caches.prepared(call.signature)
    except TypeError:  # an unhashable value is not a valid option
        _check_options(call.options)
        raise
    if entry.value is None:
        check(call)
        entry.value = _prepared(call)
    if call.explain:
        explain(entry.value)
    return entry.value


def launch(call: GemmCall) -> PreparedCall:
    """Launch a call on its stream, and prepare it first if it is not cached."""
    prepared = prepare(call)
    prepared.launcher.launch(call.stream, call.addresses)
    return prepared


def check(call: GemmCall) -> None:
    """Check the options of a call.

    Raises:
        OperandError: an option has an invalid value, options contradict each other, or the epilogue or operands do not
            allow them.
    """
    _check_options(call.options)
    _check_promises(call)
    _check_factors(call)


def _check_options(options: Options) -> None:
    """Raise OperandError for an option with an invalid value."""
    for name in _FLAGS:
        if (value := getattr(options, name)) not in (True, False):
            raise OperandError(f"{name} is {value!r:.80}; it must be True or False")
    check_precision("precision", options.precision)
    if options.tf32 and options.precision not in (IEEE, "tf32"):
        raise OperandError(f"tf32 is True and precision is {options.precision!r}: pass one of them")
    if fault := fault_of(options.bits):
        raise OperandError(fault)
    if options.batch_invariant and options.bits not in (ANY, INVARIANT):
        raise OperandError(
            f"batch_invariant is another name for bits='invariant', and bits is {options.bits!r}: pass one of them"
        )
    if options.objective not in REGIMES:
        words = " or ".join(map(repr, REGIMES))
        raise OperandError(f"objective is {options.objective!r:.80}; it must be {words}")
    if not isinstance(options.kernel, str | GemmConfig | None):
        raise OperandError(f"kernel is {options.kernel!r:.80}; it must be the name of a kernel or a GemmConfig")
    if (slices := options.slices) is not None:
        if type(slices) is not int or slices < 1:
            raise OperandError(
                f"slices is {slices!r:.80}; it must be a positive integer, or None for the model's choice"
            )
        if options.kernel is None:
            raise OperandError(
                "slices is for a split-K kernel that the call names, and kernel is missing: pass kernel="
            )
    if not isinstance(options.registry, Registry | None):
        raise OperandError(f"registry is {options.registry!r:.80}; it must be a gemmill.Registry or None")


def _check_promises(call: GemmCall) -> None:
    """Raise OperandError where options contradict each other, or where the epilogue cannot give what they guarantee."""
    options = call.options
    if options.deterministic or options.required_bits != ANY:
        option = "deterministic" if options.deterministic else f"bits={options.required_bits!r}"
        _refuse_atomic_sums(call.arguments.epilogue, option)
    if options.autotune is not None:
        _check_autotune(call)


def _check_autotune(call: GemmCall) -> None:
    options = call.options
    count = options.autotune
    if type(count) is not int or count < 1:
        raise OperandError(
            f"autotune is {count!r}; it must be a positive integer (the number of kernels to time) or None"
        )
    if options.kernel is not None:
        raise OperandError(
            "kernel and autotune are both passed; autotune searches for the fastest kernel: pass one of them"
        )
    if options.deterministic and options.required_bits == ANY:
        raise OperandError(
            "autotune and deterministic are both passed; the fastest kernel may change with the timing, and kernels "
            "sum in different orders: pass one of them, kernel=, or bits='invariant' too"
        )
    if "addresses" in call.tensors:
        raise OperandError(
            "autotune is not supported with addresses: kernels are timed on scratch outputs, but addresses locates the "
            "outputs. Leave out autotune"
        )


def _refuse_atomic_sums(epilogue: Epilogue, option: str) -> None:
    """Raise OperandError where the last bits of the epilogue's outputs change between runs, which ``option``
    forbids."""
    for output in epilogue.outputs:
        if output.role == "sum":
            raise OperandError(
                f"{option}: `{output}` sums atomically, in an order that changes between runs: write the values to a "
                f"matrix, as in `{output.name}[m, n] = ...`, and sum that (max and min are allowed)"
            )


def _check_determinism(epilogue: Epilogue) -> None:
    """Apply ``torch.use_deterministic_algorithms(True)``: raise OperandError for what ``deterministic`` refuses, or
    warn where PyTorch is set to warn only."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.are_deterministic_algorithms_enabled():
        return
    try:
        _refuse_atomic_sums(epilogue, "torch.use_deterministic_algorithms(True)")
    except OperandError as error:
        if not torch.is_deterministic_algorithms_warn_only_enabled():
            raise
        warnings.warn(str(error), UserWarning, stacklevel=5)


def _check_factors(call: GemmCall) -> None:
    """Raise OperandError where C, alpha or beta is passed but not read, where C is missing, or where a factor,
    ``sm_count`` or, with an s32 D, a scalar of the epilogue is out of range."""
    options, epilogue, has_c = call.options, call.arguments.epilogue, "c" in call.tensors
    if call.arguments.text is not None and epilogue.reads_c != has_c:
        if has_c:
            raise OperandError(f"c is passed, but the epilogue `{epilogue}` does not read it: leave out c")
        raise OperandError(f"the epilogue `{epilogue}` reads c: pass c=")
    if options.alpha != 1 and "alpha" not in epilogue.factors:
        raise OperandError(
            f"alpha is {options.alpha}, but the epilogue `{epilogue}` does not read it: use alpha in it, or leave it "
            "out"
        )
    if options.beta and not call.scales_c:
        if "beta" not in epilogue.factors:
            raise OperandError(
                f"beta is {options.beta}, but the epilogue `{epilogue}` does not read it: use beta in it, or leave it "
                "out"
            )
        raise OperandError(f"beta is {options.beta}, but there is no c to scale: pass c=, or leave beta out")
    factors = (("alpha", options.alpha), ("beta", options.beta or 0.0))
    takes_doubles = call.accumulator == "f64"
    for name, value in factors:
        if not takes_doubles and isfinite(value) and abs(value) > MAX_FLOAT32:
            raise OperandError(f"{name} is {value}; it must fit in a float32, at most {MAX_FLOAT32:.4g}")
    sm_count = options.sm_count
    if sm_count is not None and (type(sm_count) is not int or sm_count < 1):
        raise OperandError(f"sm_count is {sm_count!r}; it must be a positive integer, or None for all SMs")
    if call.tensors["out"].dtype == "s32":
        numbers = ((name, x) for name, x in call.arguments.values.items() if isinstance(x, float))
        for name, value in (*factors, *numbers):
            if not value.is_integer() or abs(value) >= 1 << 31:
                raise OperandError(
                    f"{name} is {value}; for an s32 D it must be a whole number below 2^31: use out_dtype='f32'"
                )


def _prepared(call: GemmCall) -> PreparedCall:
    gemm, options, device = call.bound, call.options, call.tensors["a"].device
    problem, memory = gemm.problem, MemoryCheck.of(call)
    memory(call.addresses)
    if gemm.is_empty:
        return PreparedCall(problem, None, None, memory, functools.partial(Resets, device, gemm.arguments, memory))
    registry = _registry(options)
    sm_count = options.sm_count
    if sm_count is not None and sm_count >= driver.sm_count(device):
        sm_count = None  # no limit
    new_launches: Callable[..., Launches] = functools.partial(Launcher, memory=memory)
    further = _written_as_real(gemm)
    try:
        target = choose(gemm, options, registry, sm_count)
    except UnsupportedProblemError:
        if not gemm.nested:
            raise
        from gemmill.runtime.launch.batch_parts import PartLaunches, parts_of  # deferred: few calls need it

        strides = len(gemm.nested)
        gemm, shifts = parts_of(gemm)
        target = choose(gemm, options, registry, sm_count)
        new_launches = functools.partial(PartLaunches, shifts=shifts, memory=memory)
        launches = f"{len(shifts)} launches of {gemm.problem.batch}"
        further += f"; in {launches}, because no kernel supports a batch with {strides} strides with these options"

    def launcher(chosen: SlicedKernel, swap_ab: bool) -> Callable[[], Launches]:
        oriented = gemm.transposed if swap_ab else gemm
        kernel = _load(registry, chosen, oriented, device, call.stream)
        return functools.partial(new_launches, oriented, kernel, sm_count)

    if options.autotune is not None:
        from gemmill.runtime.api.autotune import autotuned, time_kernels

        gpu, time = driver.device_name(device), functools.partial(time_kernels, call, registry, launcher)
        choice = autotuned(registry, gemm.problem, options.autotune, sm_count, gpu, time, options.required_bits)
        target = Target(choice.kernel, choice.swap_ab, choice)
    if (selected := target.choice) is not None:
        if further:
            reason = selected.explain() + further
            selected = replace(selected, explain=lambda: reason)
        selected = selected.of_transposed if gemm.is_transposed else selected
        warn_of(selected)
    return PreparedCall(problem, target.kernel, selected, memory, launcher(target.kernel, target.swap_ab))


def _written_as_real(gemm: Gemm) -> str:
    """Return what a reason adds for complex operands that a kernel first writes as real ones."""
    names = sorted(x.name.upper() for x in (gemm.a, gemm.b) if x.real_form)
    return (
        f"; gemmill first writes {' and '.join(names)} as {'a real matrix' if len(names) == 1 else 'real matrices'}"
        if names
        else ""
    )


def kernel_for(call: GemmCall) -> SlicedKernel | None:
    """Return the kernel and slices of K that would be selected for a call, so that another call can name them.

    It works with or without a GPU: nothing is compiled or loaded. None where no name gives the same launch: D is empty,
    a batch may run in parts, or the name does not determine whether the transpose is computed.

    Raises:
        The errors of :func:`gemmill.matmul` that come before compilation.
    """
    check(call)
    if call.options.quick:
        warn_of_quick()
    gemm = call.bound
    if gemm.is_empty or gemm.nested:
        return None
    target = choose(gemm, call.options, _registry(call.options), call.options.sm_count)
    if (choice := target.choice) is None:
        return target.kernel
    warn_of(choice.of_transposed if gemm.is_transposed else choice)
    return target.kernel if needs_swap(choice.config, gemm.problem) == choice.swap_ab else None


def _registry(options: Options) -> Registry:
    return caches.default_registry() if options.registry is None else options.registry


def _load(registry: Registry, chosen: SlicedKernel, gemm: Gemm, device: int, stream: int) -> Kernel:
    """Return a loaded kernel of a registry on a GPU, compiling it if needed.

    Raises:
        CaptureError: something is not loaded yet and the stream is being captured.
    """
    kernels = caches.of_registry(registry).kernels
    kernel = kernels.get((device, chosen))
    missing, problem = f"kernel {chosen}" if kernel is None else "", gemm.problem
    if kernel is not None and realigned(kernel.config, problem):
        from gemmill.runtime.launch import realign  # deferred: few launches need it

        missing = "" if realign.kernel_of(device).is_loaded(device) else "the kernel that copies unaligned operands"
    if kernel is not None and not missing and kernel.config.a.type.component:
        from gemmill.runtime.launch import split  # deferred likewise

        are_loaded = all(x.is_loaded(device) for x in split.kernels_of(problem.a_dtype))
        missing = "" if are_loaded else "the kernel that splits operands"
    if kernel is not None and not missing and (gemm.a.real_form or gemm.b.real_form):
        from gemmill.runtime.launch import real_forms  # deferred likewise

        is_loaded = real_forms.kernel_of(gemm.a.dtype).is_loaded(device)
        missing = "" if is_loaded else "the kernel that writes complex operands as real ones"
    if missing and driver.is_capturing(device, stream):
        raise CaptureError(
            f"{missing} is not loaded on GPU {device} and cannot be loaded while the stream is captured into a CUDA "
            "graph: before the capture, call gemmill.plan(...) or gemmill.matmul(...) once with operands of the same "
            "shapes, strides and dtypes"
        )
    if kernel is None:
        kernel = kernels[device, chosen] = load(device, registry.get(chosen.name), chosen.slices)
    return kernel
