"""bench: verify and time the selected kernels, a named one or all on some problems, next to other libraries."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from gemmill.cli import completion, output
from gemmill.cli.app import app
from gemmill.cli.commands.problems import TimedRegime, group_sizes, measure, report_measurements
from gemmill.cli.dsl import ClusterShape, DslCommand, TileShape, kernels_of
from gemmill.cli.options import (
    Bits,
    CompileOptions,
    Manifests,
    Records,
    RegistryOptions,
    Sizes,
    kernel,
    measurable,
    output_file,
    refuse_overwriting,
)
from gemmill.cli.output import Status, UsageError, usage
from gemmill.cli.problem_options import ProblemsOptions
from gemmill.library.arithmetic import arithmetic_of
from gemmill.library.bits import ANY
from gemmill.library.config.edited import plain_name
from gemmill.library.config.names import kernel_name, parse_name, present_name
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.errors import ConfigError, DeviceError, UnsupportedProblemError
from gemmill.library.files import publish
from gemmill.library.input.group_sizes import BALANCED
from gemmill.library.oracle.problems import check_supported
from gemmill.library.problem import GemmProblem, Regime
from gemmill.library.records import Measurement
from gemmill.profiler.analysis.measured import as_csv, as_svg
from gemmill.profiler.measure.messages import Unit
from gemmill.profiler.sweep.sweep import DEFAULT_OPTIONS
from gemmill.runtime.host_gpu import detect
from gemmill.runtime.registry import Registry
from gemmill.runtime.select.selector import named_launch

ALL = "all"
"""The value of --kernel for every kernel that can run a problem."""


@dataclass(frozen=True)
class KernelChoice:
    """The kernels to run: one by name, the best with a tile, the selected ones, or all."""

    name: Annotated[
        str | None,
        typer.Option(
            "--kernel",
            metavar="KERNEL|all",
            help="Run this kernel (name or manifest with one config), or all that can, instead of the selected one.",
            autocompletion=completion.kernels,
        ),
    ] = None
    slices: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Number of K slices for a split-K --kernel. Default: chosen by the model."
        ),
    ] = None
    tile: TileShape = None
    cluster: ClusterShape = None
    manifest: Manifests = field(default_factory=list)
    records: Records = field(default_factory=list)
    bits: Bits = ANY
    top: Annotated[
        int, typer.Option(min=1, metavar="N", help="Number of kernels to run, the best predicted first.")
    ] = 1

    def kernels(self, problem: GemmProblem) -> tuple[SlicedKernel, ...]:
        """The kernels for a problem, best first.

        Raises:
            UnsupportedProblemError: no kernel supports it, or the named one does not.
        """
        if self.cluster and not self.tile:
            raise UsageError("--cluster needs --tile; pass --tile M,N,K")
        if self.name is not None and self.top != 1:
            raise UsageError("--kernel selects the kernels; omit --top")
        if self.name not in (None, ALL):
            return (self._named(problem),)
        if self.slices is not None:
            raise UsageError("--slices needs a split-K kernel; pass its name as --kernel")
        registry = self._registry(problem)
        if self.name == ALL:
            return tuple(each.kernel for each in registry.candidates(problem, sys.maxsize, bits=self.bits))
        choice = registry.select(problem, bits=self.bits)
        best = [choice.kernel, *(runner_up for runner_up, _ in choice.runners_up)]
        if self.top > len(best):
            best += (each.kernel for each in registry.candidates(problem, self.top, bits=self.bits))
        kernels = tuple(dict.fromkeys(best))[: self.top]
        if len(kernels) < self.top:
            output.complain(f"--top is {self.top}, but only {len(kernels)} of the kernels can run {problem}")
        return kernels

    def _named(self, problem: GemmProblem) -> SlicedKernel:
        if self.manifest or self.records or self.tile:
            raise UsageError("--kernel selects the kernel; omit --manifest, --records and --tile")
        with usage(ConfigError):
            name, requested_slices = present_name(str(self.name), self.slices)
            config = kernel(name)
            arithmetic = Registry(manifests=()).arithmetic(problem, self.bits)
            slices, _ = named_launch(config, requested_slices, problem, detect(), arithmetic)
        return SlicedKernel(kernel_name(config), slices)

    def _registry(self, problem: GemmProblem) -> Registry:
        if not self.tile:
            return RegistryOptions(self.manifest, records=self.records).registry()
        if self.manifest or self.records:
            raise UsageError("--tile selects among all legal kernels; omit --manifest and --records")
        return Registry([kernels_of(problem, self.tile, self.cluster or (1, 1))])


@app.command(cls=DslCommand)
def bench(
    options: ProblemsOptions,
    choice: KernelChoice,
    compiling: CompileOptions,
    verify: Annotated[
        Literal["bound", "bits"],
        typer.Option(help="`bound`: D is within its error bound. `bits`: it also has the bits of `gemmill oracle`."),
    ] = "bound",
    regime: TimedRegime = "burst",
    sizes: Sizes = None,
    to_csv: Annotated[
        Path | None, output_file("CSV file to write, one line per kernel and problem.", "FILE", "--csv")
    ] = None,
    to_svg: Annotated[
        Path | None,
        output_file("SVG to write: the fraction of the roofline of each kernel.", "FILE", "--svg"),
    ] = None,
) -> None:
    """Time kernels on problems: verify, compare with cuBLAS.

    bench selects the kernel of each problem, verifies its result against float64, and compares its time with the
    installed baselines, such as cuBLAS, in the same rounds. With --top N, it also runs the N - 1 kernels that are
    predicted to be the next best. With --kernel all, it runs every kernel that can; those that are slow in a first
    short pass are not timed further. With --verify bits, the CPU also computes D to the bit; 512 x 512 x 4096 takes it
    about a second. All operands are random, also scales and operands of the epilogue, and aligned as the problem says.
    They are not in the L2 cache when a launch starts. For groups, TFLOP/s counts only the rows of --sizes. Needs a
    Hopper GPU and PyTorch. Exits with 1 if a result is wrong or no kernel supports a problem.

    To keep measurements for the selector, or to continue an interrupted run, use `gemmill profile`.

    bench also accepts the options of CuTe DSL's Hopper example as spelled there: --tile_shape_mnk, --cluster_shape_mn,
    --a_dtype, --acc_dtype, --a_major and so on. The example's C is the output, which is D here.

    \b
    Examples:
      gemmill bench --mnkl 4096,4096,4096,1 --a-dtype bf16 --a-major k --b-major k
      gemmill bench --mnkl 8192,8192,8192 --tile 128,256,64 --cluster 2,1
      gemmill bench --mnkl 4096,4096,4096,1 --top 5 --svg top.svg
      gemmill bench --mnkl 4096,4096,4096,1 --kernel all --csv all.csv
      gemmill bench --shapes llm --regime sustained --csv llm.csv
      gemmill bench --mnkl 16,4096,4096 --bits invariant
      gemmill bench --mnkl 512,512,4096 --verify bits
      gemmill bench --mnkl 1000,3000,1024 --kernel my_kernel.yaml --json
      gemmill bench --mnkl 4096,4096,4096 --epilogue "d = gelu(acc + bias.bf16[n])"
      gemmill bench --problem "8192x4096x7168 e4m3 tn grouped=64 a_scale=1x128 b_scale=128x128" --sizes zipf:1.1
    """
    inputs: list[Path | str] = [*filter(None, [options.shapes, choice.name]), *choice.manifest, *choice.records]
    refuse_overwriting([to_csv, to_svg], inputs)
    listed = options.with_sizes(options.shapes)
    units, refused = _units(listed, choice, sizes, with_bits=verify == "bits")
    found = _measured(units, compiling, regime, with_bits=verify == "bits", all_kernels=choice.name == ALL)
    if to_csv is not None:
        publish(to_csv, [as_csv(found).encode(errors="backslashreplace")])
    if to_svg is not None:
        publish(to_svg, [as_svg(found).encode()])
    report_measurements(found)
    if verify == "bits":
        output.complain(f"D of {sum(len(unit.kernels) for unit in units)} kernels has the bits of the oracle")
    if refused:
        raise typer.Exit(Status.WRONG)


def _of_oracle(unit: Unit) -> tuple[SlicedKernel, ...]:
    """The kernels of which the oracle computes the bits; lists the others on stderr.

    Raises:
        UnsupportedProblemError: there is none.
    """
    kept, refused = list[SlicedKernel](), list[str]()
    for each in unit.kernels:
        try:
            check_supported(unit.problem, arithmetic_of(parse_name(plain_name(each.name)), each.slices))
        except UnsupportedProblemError as error:
            refused.append(f"{each}: {error}")
        else:
            kept.append(each)
    if not kept:
        raise UnsupportedProblemError(refused[0])
    for refusal in refused:
        output.complain(f"not measured: {refusal}")
    return tuple(kept)


def _units(
    listed: Sequence[tuple[GemmProblem, str | None]], choice: KernelChoice, sizes: str | None, *, with_bits: bool
) -> tuple[list[Unit], int]:
    """The problems with their kernels, and how many problems no kernel supports; lists these on stderr.

    Raises:
        UnsupportedProblemError: no kernel supports any of them.
    """
    units, refused = dict[Unit, None](), list[UnsupportedProblemError]()
    for problem, own in listed:
        try:
            of_groups = group_sizes(problem, sizes if own in (None, BALANCED) else own)
            unit = Unit(measurable(problem), choice.kernels(problem), sizes=of_groups)
            if with_bits:
                unit = replace(unit, kernels=_of_oracle(unit))
        except UnsupportedProblemError as error:
            refused.append(error)
        else:
            units[unit] = None
    if not units:
        raise UnsupportedProblemError("\n".join(map(str, refused)))
    for refusal in refused:
        output.complain(f"error: {refusal}")
    return [*units], len(refused)


def _measured(
    units: Sequence[Unit], compiling: CompileOptions, regime: Regime, *, with_bits: bool, all_kernels: bool
) -> list[Measurement]:
    """Measure the units. Kernels that the caller lists are all timed at length."""
    finalists = DEFAULT_OPTIONS.finalists if all_kernels else None
    measuring = replace(DEFAULT_OPTIONS, bits=with_bits, regime=regime, finalists=finalists)
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = measure(units, Path(folder) / "records.jsonl", compiling, options=measuring)
        except DeviceError as error:
            raise DeviceError(f"{error}; without a GPU, `gemmill select --top 5` predicts times") from None
    if not found:
        way = "; pass --regime burst" if regime == "sustained" else ""
        raise UnsupportedProblemError(
            f"no kernel was measured on {', '.join(str(unit.problem) for unit in units)}{way}"
        )
    return found
