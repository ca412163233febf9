"""What a kernel needs and a problem does not have, and whether the kernel supports the problem directly, transposed, or
with realigned operands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gemmill.library.arch import Gpu, serving
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name
from gemmill.library.config.scales import scale_block
from gemmill.library.decompositions.decomposition import decomposition_of
from gemmill.library.epilogues.parse import LINEAR, serves
from gemmill.library.errors import UnsupportedProblemError
from gemmill.library.legality.aligns import least_aligns
from gemmill.library.legality.quantities import TMA_ALIGN
from gemmill.library.problem import GemmProblem, upconverts_a
from gemmill.library.wording import one_of
from gemmill.runtime.select.kernels.formats import FIELDS, format_of, with_declared_scales

_ALIGNS = ("a_align", "b_align", "c_align", "d_align")


def faults(config: GemmConfig, problem: GemmProblem) -> list[str]:
    """Return, in words, what a kernel needs and a problem does not have; empty where the kernel supports the
    problem."""
    needs = []
    for field, required in zip(FIELDS, format_of(config), strict=True):
        actual = getattr(problem, field)
        if (
            actual != required
            and not (required in ("any", "general") and actual)
            and not (field == "epilogue" and serves(required, actual))
        ):
            needs.append(f"{_words(field)} {_value(required)} (the problem has {_value(actual)})")
    for field, align in zip(_ALIGNS, least_aligns(config), strict=True):
        if (actual := getattr(problem, field)) < align:
            needs.append(f"{_words(field)} of at least {align} bytes (the problem has {actual})")
    return needs


def needs_swap(config: GemmConfig, problem: GemmProblem) -> bool | None:
    """Return whether a kernel supports a problem only transposed; None where it does not support it at all."""
    if not faults(config, problem):
        return False
    return True if problem.can_transpose and not faults(config, problem.transposed) else None


def is_swapped(config: GemmConfig, problem: GemmProblem) -> bool:
    """Return whether a kernel that a caller names supports a problem only transposed.

    Raises:
        UnsupportedProblemError: it does not support it at all.
    """
    if (swapped := needs_swap(config, problem)) is None:
        lacks = " and ".join(faults(config, problem))
        raise UnsupportedProblemError(f"{kernel_name(config)} does not support {problem}: it needs {lacks}")
    return swapped


def runs_transposed(config: GemmConfig, problem: GemmProblem) -> bool:
    """Whether a kernel that was measured on a problem ran its transpose: D's major decides, except for kernels that
    take any."""
    major = config.d.major
    return needs_swap(config, problem) is True if major == "any" else major != problem.d_major


def realigned(config: GemmConfig, problem: GemmProblem) -> tuple[str, ...]:
    """Return which of ``a``, ``b`` and ``c`` of a problem are copied into aligned memory before a kernel that runs it
    directly; pass ``problem.transposed`` for one that runs the transpose. Split f32 is not copied besides."""
    is_split = config.a.type.component is not None
    operands = zip("abc", (*((None, None) if is_split else (config.a, config.b)), config.c), strict=True)
    return tuple(x for x, operand in operands if operand and getattr(problem, f"{x}_align") < operand.align)


def is_aligned(problem: GemmProblem) -> bool:
    """Whether all operands have the alignment that TMA needs."""
    return min(problem.a_align, problem.b_align, problem.c_align, problem.d_align) >= TMA_ALIGN


def refusal(configs: Mapping[str, GemmConfig], problem: GemmProblem, gpu: Gpu) -> UnsupportedProblemError:
    """Return the error for a problem that no kernel supports on a GPU; it names what the nearest kernel needs."""
    # Programs without refusals start faster.
    from gemmill.library.arithmetic import arithmetic_of
    from gemmill.library.legality.rules import verdicts

    if not configs:
        return UnsupportedProblemError(
            f"no kernel supports {problem}: this registry has none to select. Edited kernels run only by name: pass "
            "kernel=NAME"
        )
    targets = serving(gpu.capability)
    if not any(config.target in targets for config in configs.values()):
        target = ".".join(map(str, gpu.capability))
        return UnsupportedProblemError(
            f"none of {len(configs)} kernels supports {gpu.name} (compute capability {target})"
        )
    if fault := _lacks_scales(configs, problem):
        return UnsupportedProblemError(f"no kernel supports {problem}: {fault}")
    plain = with_declared_scales(problem.but(epilogue=LINEAR))
    needs_by_name = {name: faults(config, plain) for name, config in configs.items()}
    nearest = min(needs_by_name, key=lambda name: (len(needs_by_name[name]), name))
    if not needs_by_name[nearest]:
        config_of_nearest = configs[nearest]
        a, b = replace(config_of_nearest.a, scale=problem.a_scale), replace(config_of_nearest.b, scale=problem.b_scale)
        if refusals := verdicts(replace(config_of_nearest, a=a, b=b, epilogue=problem.epilogue)):
            return UnsupportedProblemError(f"no kernel supports {problem}: {nearest} is the nearest, but {refusals[0]}")
        additions = [] if problem.epilogue in (LINEAR, config_of_nearest.epilogue) else ["this epilogue"]
        additions += [] if (a, b) == (config_of_nearest.a, config_of_nearest.b) else ["scales of this type"]
        if not additions:  # its decomposition exists for its bits
            arithmetic = arithmetic_of(config_of_nearest, decomposition_of(config_of_nearest).slices[-1])
            return UnsupportedProblemError(
                f"no kernel supports {problem} with these bits: {nearest} is selected only for its own. Pass "
                f"bits='{arithmetic}', or a manifest in addition to the packs"
            )
        changes = " and ".join(additions)
        return UnsupportedProblemError(
            f"no kernel supports {problem}: {nearest} would support it with {changes}, but kernels of packs "
            f"cannot be changed: pass a manifest in addition to the packs, or pack kernels with {changes}"
        )
    needs = " and ".join(needs_by_name[nearest])
    if "alignment" in needs:
        needs += ": pad the contiguous extents to a multiple of it, or copy the operands into aligned memory"
    return UnsupportedProblemError(
        f"no kernel supports {problem}: the nearest of {len(needs_by_name)}, {nearest}, needs {needs}"
    )


def _lacks_scales(configs: Mapping[str, GemmConfig], problem: GemmProblem) -> str | None:
    """Return what to pass for a narrow operand that all kernels read with scales of groups along K; None for others."""
    for name, other in (("a", "b"), ("b", "a")):
        dtype, wide = getattr(problem, f"{name}_dtype"), getattr(problem, f"{other}_dtype")
        if upconverts_a(dtype, wide) and getattr(problem, f"{name}_scale") == "none":
            scales = {
                config.a.scale for config in configs.values() if (config.a.dtype, config.b.dtype) == (dtype, wide)
            }
            if scales and "none" not in scales:
                sizes = one_of(sorted({scale_block(scale)[1] for scale in scales}))
                return f"{dtype} needs scales: pass one for each group of {sizes} elements along K"
    return None


def _value(value: str | int | None) -> str:
    return "none" if value is None else str(value)


def _words(field: str) -> str:
    """Return ``a_major`` as ``A's major``."""
    operand, _, property_ = field.partition("_")
    return f"{operand.upper()}'s {'alignment' if property_ == 'align' else property_}" if property_ else field
