"""Variations that derive a kernel from another: with other types or scale types, with another epilogue, or for nested
batches. All go through one check of legality, so that the model, measurements and autotuning derive the same
kernels."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from gemmill.library.config.model import GemmConfig, ScaleName
from gemmill.library.config.names import kernel_name
from gemmill.library.dtypes import DTYPES, compatible_types
from gemmill.library.epilogues.parse import LINEAR, unstaged
from gemmill.library.problem import GemmProblem
from gemmill.runtime.select.kernels.formats import (
    A_SCALE,
    B_SCALE,
    BATCHING,
    EPILOGUE,
    OUTPUTS,
    A,
    B,
    Format,
    declared_scales,
    format_of,
    format_of_problem,
    types_of,
)


def with_epilogue(config: GemmConfig, epilogue: str) -> GemmConfig | None:
    """Return a linear kernel with another epilogue; None where rules refuse it.

    Matrices that TMA cannot move for it are read and written at any strides. :func:`_refitted` describes the stages.
    """
    for text in dict.fromkeys((epilogue, unstaged(epilogue))):
        if changed := _refitted(config, replace(config, epilogue=text)):
            return changed
    return None


def with_types(
    config: GemmConfig, a_dtype: Any, b_dtype: Any, c_dtype: Any, c_major: Any, d_dtype: Any
) -> GemmConfig | None:
    """Return a kernel with other types of A, B and D and another C (None for none); None where rules refuse it.

    C has the alignment of D. :func:`_refitted` describes the stages.
    """
    a, b = replace(config.a, dtype=a_dtype), replace(config.b, dtype=b_dtype)
    d = replace(config.d, dtype=d_dtype)
    c = None if c_dtype is None else replace(d, dtype=c_dtype, major=c_major)
    return _refitted(config, replace(config, a=a, b=b, c=c, d=d))


def with_types_of(config: GemmConfig, problem: GemmProblem) -> GemmConfig | None:
    """Return a kernel with the types, scales and C of a problem that it runs directly."""
    p = problem
    retyped = with_types(config, p.a_dtype, p.b_dtype, p.c_dtype, p.c_major, p.d_dtype)
    return retyped and with_scales(retyped, p.a_scale, p.b_scale)


def with_scales(config: GemmConfig, a_scale: ScaleName, b_scale: ScaleName) -> GemmConfig | None:
    """Return a kernel with other types of scales; None where rules refuse it."""
    if (a_scale, b_scale) == (config.a.scale, config.b.scale):
        return config
    return _refitted(config, replace(config, a=replace(config.a, scale=a_scale), b=replace(config.b, scale=b_scale)))


def _refitted(config: GemmConfig, changed: GemmConfig) -> GemmConfig | None:
    """Return a changed kernel with at most the stages of ``stages: auto``, unless it had more before and still fits;
    None where rules refuse it."""
    # Imported on demand, so that programs start faster whose kernels need no variation.
    from gemmill.library.families.families import new_plan
    from gemmill.library.legality.rules import legal

    if (stages := new_plan(changed).auto_stages) < config.stages:
        deeper = config.stages > new_plan(config).auto_stages
        if not (deeper and legal(changed)):
            changed = replace(changed, stages=stages)
    return changed if legal(changed) else None


def nested(config: GemmConfig) -> GemmConfig | None:
    """Return a kernel for batches with several strides, from one for batches with one stride; None where rules refuse
    it."""
    return _refitted(config, replace(config, scheduler=replace(config.scheduler, batching="nested")))


def named(configs: Iterable[GemmConfig | None]) -> dict[str, GemmConfig]:
    """Return the kernels that are not None, by name."""
    return {kernel_name(config): config for config in configs if config is not None}


class Variants:
    """Kernels by their formats: the declared ones, and their variations.

    Args:
        configs: the declared kernels by name.
        varies: whether they may also be used with the epilogue of a problem and with other types: any C and D,
            compatible types of A and B, and other types of block scales than f32. Some declared kernel must have the
            types, though possibly with other majors.
    """

    def __init__(self, configs: Mapping[str, GemmConfig], varies: bool) -> None:
        members: dict[Format, dict[str, GemmConfig]] = defaultdict(dict)
        for name in sorted(configs):
            members[format_of(configs[name])][name] = configs[name]
        self._declared: Mapping[Format, Mapping[str, GemmConfig]] = dict(members)
        self._types = {types_of(key) for key in members} if varies else set()
        self.varies = varies
        self._found: dict[Format, Mapping[str, GemmConfig]] = {}
        """Filled on demand."""

    def has_types_of(self, problem: GemmProblem) -> bool:
        """Whether kernels may be used with the types of a problem."""
        return types_of(declared_scales(format_of_problem(problem))) in self._types

    def of(self, formats: Format, epilogue: str) -> Mapping[str, GemmConfig]:
        """Return the kernels with some formats, by name, in order. For the epilogue of a problem these are the kernels
        declared with it; without any, and where kernels may vary, the linear ones with that epilogue, as far as rules
        allow."""
        declared = self._declared.get(formats, {})
        if not self.varies or formats[EPILOGUE] != epilogue or (declared and epilogue != LINEAR):
            return declared
        variants: Mapping[str, GemmConfig]
        if formats not in self._found:
            if (in_f32 := declared_scales(formats)) != formats:
                a_scale: Any = formats[A_SCALE]
                b_scale: Any = formats[B_SCALE]
                f32_scaled = self.of(in_f32, epilogue)
                variants = {
                    **named(with_scales(config, a_scale, b_scale) for config in f32_scaled.values()),
                    **declared,
                }
            elif formats[BATCHING] == "nested":
                one_stride = self.of((*formats[:BATCHING], "strided", *formats[BATCHING + 1 :]), epilogue)
                variants = {**named(nested(config) for config in one_stride.values()), **declared}
            elif epilogue == LINEAR:
                variants = {**declared, **self._retyped(formats)} if types_of(formats) in self._types else declared
            else:
                linear = self.of((*formats[:EPILOGUE], LINEAR), LINEAR)
                variants = named(with_epilogue(config, epilogue) for config in linear.values())
            self._found[formats] = {name: variants[name] for name in sorted(variants)}
        return self._found[formats]

    def _retyped(self, formats: Format) -> Mapping[str, GemmConfig]:
        """Return kernels without C for some majors, with the types of ``formats`` instead of theirs. They come from
        the types with the most kernels: A and B of the same or compatible types, and any type of D."""
        a_dtype: Any = formats[A]
        b_dtype: Any = formats[B]
        c_dtype, c_major, d_dtype, d_major = formats[OUTPUTS]
        after_a, after_b, after_outputs = formats[A + 1 : B], formats[B + 1 : OUTPUTS.start], formats[OUTPUTS.stop :]
        compatible = (
            self._declared.get((a, *after_a, b, *after_b, None, None, d, d_major, *after_outputs), {})
            for a, b, d in itertools.product(compatible_types(a_dtype), compatible_types(b_dtype), DTYPES)
        )
        most = max(compatible, key=len)
        if d_major == "any" or most is self._declared.get(formats):
            return {}
        return named(with_types(config, a_dtype, b_dtype, c_dtype, c_major, d_dtype) for config in most.values())
