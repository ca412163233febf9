"""What options of a call contradict each other, its epilogue or its operands."""

from __future__ import annotations

import sys
import warnings
from math import isfinite

from gemmill.library.config.model import GemmConfig
from gemmill.library.dtypes import MAX_FLOAT32, DTypeName
from gemmill.library.errors import OperandError
from gemmill.library.problem import REGIMES
from gemmill.runtime.api.invariance import refuse_atomic_sums
from gemmill.runtime.operands.call import GemmCall, Options
from gemmill.runtime.registry import Registry

_FLAGS = ("tf32", "fast_accumulation", "deterministic", "batch_invariant", "quick")


def check_options(options: Options) -> None:
    """OperandError where an option is no value of its kind."""
    for name in _FLAGS:
        if (value := getattr(options, name)) not in (True, False):
            raise OperandError(f"{name} is {value!r:.80}; it must be True or False")
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
            raise OperandError("slices is of the split-K kernel that kernel names, and none is named: pass kernel=")
    if not isinstance(options.registry, Registry | None):
        raise OperandError(f"registry is {options.registry!r:.80}; it must be a gemmill.Registry, or None")


def check_promises(call: GemmCall) -> None:
    """OperandError where options contradict each other, or an epilogue cannot keep what they promise."""
    options = call.options
    for option in ("deterministic", "batch_invariant"):
        if getattr(options, option):
            refuse_atomic_sums(call.arguments.epilogue, option)
    if options.autotune is not None:
        _check_autotune(call)


def _check_autotune(call: GemmCall) -> None:
    options = call.options
    count = options.autotune
    if type(count) is not int or count < 1:
        raise OperandError(f"autotune is {count!r}; it must be a positive integer, how many kernels to time, or None")
    if options.kernel is not None:
        raise OperandError("kernel names the kernel, and autotune looks for the fastest: pass one of them")
    for option in ("deterministic", "batch_invariant"):
        if getattr(options, option):
            raise OperandError(
                f"autotune and {option} are both given, but kernels sum in different orders, and which of them is the "
                "fastest may change with the timing and with M: pass one of them, or kernel="
            )
    if "addresses" in call.tensors:
        raise OperandError(
            "autotune is given with addresses, but while kernels are timed results must be written elsewhere than "
            "addresses says: leave out autotune"
        )


def check_determinism(call: GemmCall) -> None:
    """Under ``torch.use_deterministic_algorithms(True)``: OperandError, or a warning where PyTorch is to warn only, for
    what ``deterministic`` refuses."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.are_deterministic_algorithms_enabled():
        return
    try:
        refuse_atomic_sums(call.arguments.epilogue, "torch.use_deterministic_algorithms(True)")
    except OperandError as error:
        if not torch.is_deterministic_algorithms_warn_only_enabled():
            raise
        warnings.warn(str(error), UserWarning, stacklevel=5)


def check_values(call: GemmCall) -> tuple[float, float]:
    """Alpha and beta of a kernel; OperandError where an option has a value that no kernel takes."""
    options, d_dtype = call.options, call.tensors["out"].dtype
    beta_is_read = _check_factors(call)
    alpha, beta = options.alpha, options.beta
    for factor, value in (("alpha", alpha), ("beta", beta)):
        _check_range(factor, value, call.accumulator)
    sm_count = options.sm_count
    if sm_count is not None and (type(sm_count) is not int or sm_count < 1):
        raise OperandError(f"sm_count is {sm_count!r}; it must be a positive integer, or None for all SMs")
    if beta is None:
        beta = 1.0 if beta_is_read else 0.0
    if d_dtype == "s32":
        for factor, value in (("alpha", alpha), ("beta", beta)):
            if not value.is_integer() or abs(value) >= 1 << 31:
                raise OperandError(
                    f"{factor} is {value}; an s32 D is exact and takes whole numbers below 2^31: use out_dtype='f32'"
                )
    return alpha, beta


def _check_range(factor: str, value: float | None, accumulator: DTypeName) -> None:
    """Kernels with sums of f64 take doubles."""
    if accumulator != "f64" and value is not None and isfinite(value) and abs(value) > MAX_FLOAT32:
        raise OperandError(f"{factor} is {value}; kernels take a float32, at most {MAX_FLOAT32:.4g}")


def _check_factors(call: GemmCall) -> bool:
    """Whether beta scales anything; OperandError where C, alpha or beta is passed and not read, or C is missing."""
    alpha, beta, has_c = call.options.alpha, call.options.beta, "c" in call.tensors
    epilogue = call.arguments.epilogue
    if call.arguments.text is not None and epilogue.reads_c != has_c:
        if has_c:
            raise OperandError(f"c is passed, but the epilogue `{epilogue}` does not read it")
        raise OperandError(f"the epilogue `{epilogue}` reads c: pass c=")
    if alpha != 1 and "alpha" not in epilogue.factors:
        raise OperandError(f"alpha is {alpha}, but the epilogue `{epilogue}` does not read it")
    beta_is_read = "beta" in epilogue.factors and (has_c or not epilogue.reads_c)
    if beta and not beta_is_read:
        if "beta" not in epilogue.factors:
            raise OperandError(f"beta is {beta}, but the epilogue `{epilogue}` does not read it")
        raise OperandError(f"beta is {beta}, but there is no c to scale: pass c=, or leave beta out")
    return beta_is_read
