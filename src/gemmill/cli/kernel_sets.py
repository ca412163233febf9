"""The kernel sets of a command, and the problems and kernels that they give for a list of shapes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated

from gemmill.cli import completion, output
from gemmill.cli.options import KernelFilter, argument, kernel_set, measurable
from gemmill.cli.output import UsageError
from gemmill.library.bits import ANY
from gemmill.library.config.model import GemmConfig
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.errors import ManifestError, UnsupportedProblemError
from gemmill.library.manifest.kernelset import KernelSet
from gemmill.library.manifest.load import shipped_manifests
from gemmill.library.problem import GemmProblem
from gemmill.library.wording import suggest
from gemmill.profiler.measure.messages import Unit
from gemmill.profiler.sweep.shape_suites import Shape, ShapeSuite
from gemmill.profiler.sweep.units import is_plain, units, unserved, with_arithmetic
from gemmill.runtime.registry import Registry


@dataclass(frozen=True)
class KernelSets(KernelFilter):
    """The kernels of manifests, or of all shipped ones."""

    manifest: Annotated[
        list[str],
        argument(
            "MANIFEST",
            "Manifest files, or names of shipped manifests. Default with problems: all shipped manifests.",
            completion.manifests,
        ),
    ] = field(default_factory=list)

    @cached_property
    def limited(self) -> list[KernelSet] | None:
        """The kernel sets, with only the kernels of --preset and --where; None for all kernels of all shipped sets.

        Raises:
            UsageError: there is no such preset.
            ManifestError: a manifest is invalid, or has no such kernel; without a manifest, no shipped one has.
        """
        if self.manifest:
            named = [self.checked(kernel_set(source)) for source in dict.fromkeys(self.manifest)]
            return [each.limited(self.preset, self.where) for each in named]
        if not self.given:
            return None
        shipped, limited = [*map(kernel_set, shipped_manifests())], []
        presets = sorted({name for each in shipped for name in each.presets})
        if self.preset is not None and self.preset not in presets:
            hint = suggest(self.preset, presets) or ";"
            raise UsageError(f"no shipped manifest has preset {self.preset!r}{hint} presets: {', '.join(presets)}")
        for each in shipped:
            with suppress(ManifestError):  # this one has no such kernel
                limited.append(each.limited(self.preset, self.where))
        if not limited:
            limits = " and ".join(self.given)
            raise ManifestError(f"no shipped manifest has a kernel of {limits}; `gemmill list MANIFEST` lists kernels")
        return limited

    @cached_property
    def declared(self) -> list[GemmConfig]:
        """Every kernel of the sets, once."""
        sets = map(kernel_set, shipped_manifests()) if self.limited is None else self.limited
        return [*dict.fromkeys(config for each in sets for config in each.expand())]

    @cached_property
    def _plain(self) -> list[GemmConfig]:
        return [*filter(is_plain, self.declared)]

    def problems_of(self, shape: Shape) -> list[GemmProblem]:
        """The problems of a shape: with every format of the named manifests that the shape leaves open, or else with
        default formats."""
        declared = [unit.problem for unit in units(self._plain, [shape])] if self.manifest else []
        return declared or [shape.problem]

    def units_of(self, shapes: Sequence[Shape]) -> tuple[list[Unit], list[Shape]]:
        """The units to measure, and the shapes that no kernel supports.

        A unit has the kernels that the sets declare for its formats. Where they declare none, it has those that the
        selector derives from others, as for a call.
        """
        if not self.manifest:  # default formats
            shapes = [Shape.of(shape.problem, shape.sizes) for shape in shapes]
        found = {(unit.problem, unit.sizes): unit for unit in units(self.declared, shapes, varies=True)}
        registry, missing = Registry(self.limited, packs=()), list[Shape]()
        for shape in unserved(self.declared, shapes, varies=True):
            problem, kernels = measurable(shape.problem), tuple[SlicedKernel, ...]()
            with suppress(UnsupportedProblemError):
                kernels = tuple(registry.selector_for(problem).times(problem))
            if kernels:
                found.setdefault((problem, shape.sizes), Unit(problem, kernels, sizes=shape.sizes))
            else:
                missing.append(shape)
        return [*found.values()], missing


def of_bits(chosen: Sequence[Unit], bits: str, sets: KernelSets) -> list[Unit]:
    """The units with only the kernels of the arithmetic that ``bits`` requires. Lists on stderr the problems without
    such a kernel; UnsupportedProblemError if these are all problems."""
    if bits == ANY:
        return [*chosen]
    registry, limited, lacking = Registry(sets.limited, packs=()), list[Unit](), list[str]()
    for unit in chosen:
        try:
            arithmetic = registry.arithmetic(unit.problem, bits)
        except UnsupportedProblemError as error:
            lacking.append(str(error))
            continue
        if (required := with_arithmetic(unit, arithmetic)).kernels:
            limited.append(required)
        else:
            lacking.append(f"no kernel for {unit.problem} has arithmetic {arithmetic}")
    more = "; ..." if len(lacking) > 3 else ""
    says = f"--bits {bits} leaves out {len(lacking):,} of {len(chosen):,} problems: {'; '.join(lacking[:3])}{more}"
    if not limited:
        raise UnsupportedProblemError(says)
    if lacking:
        output.complain(says)
    return limited


def warn_unsupported(missing: Sequence[Shape], suite: ShapeSuite, sets: KernelSets, bits: str = ANY) -> None:
    """List on stderr the shapes that no kernel supports; UnsupportedProblemError if these are all shapes."""
    option = "" if bits == ANY else f" --bits {bits}"
    with_bits = option and f" with{option}"
    some = "; ".join(map(str, missing[:3]))
    if limits := [*sets.manifest, *sets.given]:
        way = f"; omit {' '.join(limits)} to use all shipped kernels"
    else:
        way = f"; `gemmill select{option}` prints the reason for each problem"
    if len(missing) == len(suite.shapes):
        raise UnsupportedProblemError(
            f"no kernel supports the formats of the shapes of {suite.name}{with_bits}, such as {some}{way}. To print "
            "what gemmill read from the file, as YAML: gemmill shapes FILE"
        )
    of, more = f"{len(missing):,} of {len(suite.shapes):,} shapes", " ..." if len(missing) > 3 else ""
    output.complain(f"left out {of}, because no kernel supports their formats{with_bits}: {some}{more}{way}")
