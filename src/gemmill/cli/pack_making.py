"""Makes packs: of the kernels of manifests, or of the few kernels that problems need, with their choice table."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic
from typing import Annotated

import typer

from gemmill.cli import output
from gemmill.cli.commands.compiling import compile_all, report_failures, tally
from gemmill.cli.kernel_sets import KernelSets
from gemmill.cli.options import Bits, CompileOptions, Objective, OnGpu, Sign, output_file
from gemmill.cli.output import usage
from gemmill.cli.set_choice import chosen_for
from gemmill.library.arithmetic import arithmetic_named
from gemmill.library.bits import ANY
from gemmill.library.config.model import GemmConfig
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.errors import PackError, SettingError
from gemmill.library.problem import GemmProblem
from gemmill.profiler.sweep.shape_suites import ShapeSuite
from gemmill.runtime.pack_choice import REGRET, Conditions, PackChoice
from gemmill.runtime.pack_tables import decisions_of, table_among
from gemmill.runtime.registry import Registry
from gemmill.runtime.select.choice_table import ChoiceTable
from gemmill.runtime.select.decisions import Decision, read_decisions
from gemmill.runtime.select.set_cover import regrets
from gemmill.runtime.settings import number_of_bytes
from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.pack import pack_parts, write_pack
from gemmill.runtime.storage.store import Store
from gemmill.runtime.storage.trust.signatures import SigningKey
from gemmill.runtime.storage.trust.signed_packs import sign_pack, signature_path


@dataclass(frozen=True)
class PackOutput:
    """The file to write, and the keys that sign it."""

    to: Annotated[Path, output_file("Pack to write.")]
    sign: Sign = field(default_factory=list)

    def keys(self) -> list[SigningKey]:
        """Load the keys of --sign."""
        return [SigningKey.load(path) for path in self.sign]

    @property
    def files(self) -> list[Path]:
        """Output files."""
        return [self.to, signature_path(self.to)] if self.sign else [self.to]


@dataclass(frozen=True)
class WorthOptions:
    """How many kernels a pack keeps for problems, and for which GPU."""

    regret: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="FRACTION",
            help="Maximum slowdown of a problem relative to its fastest kernel. Default: 0.01, for 1%.",
        ),
    ] = None
    budget: Annotated[str | None, typer.Option(metavar="BYTES", help="Maximum size of the pack, such as 20M.")] = None
    objective: Objective = "sustained"
    bits: Bits = ANY
    gpu: OnGpu = None

    def most_bytes(self) -> int | None:
        """The maximum size of the pack, in bytes; None without --budget."""
        with usage(SettingError):
            return None if self.budget is None else number_of_bytes("--budget", self.budget)


def write_declared(kernels: KernelSets, target: PackOutput, compiling: CompileOptions, records: Sequence[Path]) -> None:
    """Write and report the pack of all kernels of manifests, with the measurements of them in records."""
    start, keys, recorded = monotonic(), target.keys(), read_decisions(records)
    artifacts, compiled = _compiled(kernels.declared, compiling)
    _warn_of_left_out(artifacts, recorded)
    size = write_pack(target.to, artifacts, packed := decisions_of(artifacts, recorded))
    _sign(target, keys)
    text = f"{compiled}\n{_size_in_words(target.to, artifacts, size, start)}"
    output.print_result("pack.make", {**summary(target.to, size, artifacts, packed, None), "losses": {}}, text)


def write_for(
    suite: ShapeSuite,
    kernels: KernelSets,
    target: PackOutput,
    compiling: CompileOptions,
    worth: WorthOptions,
    records: Sequence[Path] = (),
) -> None:
    """Choose, compile, write and report the pack for the problems of a suite.

    Args:
        suite: the problems.
        kernels: the kernels to choose from.
        target: the file to write.
        compiling: how to compile.
        worth: how many kernels to keep, and what for.
        records: files of measurements that the choice prefers.

    Raises:
        PackError: --budget leaves problems without a kernel, or the file cannot be written.
        UnsupportedProblemError: no kernel supports any problem.
    """
    start, most, keys = monotonic(), worth.most_bytes(), target.keys()
    registry = Registry(kernels.limited, packs=(), store=compiling.store, gpu=worth.gpu, records=records)
    regret = REGRET if worth.regret is None else worth.regret
    chosen, counts = chosen_for(kernels, suite, Conditions(registry, worth.objective, regret, worth.bits))
    artifacts, compiled = _compiled(chosen.configs, compiling)
    measured = registry.recorded + chosen.shipped
    artifacts, table = _within(most, artifacts, measured, chosen, worth)
    _warn_of_left_out(artifacts, registry.recorded)
    size = write_pack(target.to, artifacts, packed := decisions_of(artifacts, measured), table)
    _sign(target, keys)
    lost = regrets(chosen.times, _names(artifacts))
    report = summary(target.to, size, artifacts, packed, table)
    report |= {"losses": {str(problem): loss for problem, loss in lost.items()}}
    words = compiled, _size_in_words(target.to, artifacts, size, start), _losses_in_words(lost, counts)
    output.print_result("pack.make", report, "\n".join(words))


def _compiled(configs: Sequence[GemmConfig], compiling: CompileOptions) -> tuple[list[Artifact], str]:
    """Compile kernels; returns them in order, and how many were compiled."""
    outcomes = compile_all(configs, compiling.jobs, Store(compiling.store))
    report_failures(outcomes)
    return [outcome.artifact for outcome in outcomes if outcome.artifact is not None], tally(outcomes)


def _within(
    most: int | None,
    artifacts: list[Artifact],
    measured: Sequence[Decision],
    chosen: PackChoice,
    worth: WorthOptions,
) -> tuple[list[Artifact], ChoiceTable]:
    """Return the first kernels, as many as fit into ``most`` bytes (None: all), and their choice table.

    Raises:
        PackError: some problem is left without a kernel.
    """

    def size(count: int, table: ChoiceTable | None = None) -> int:
        return sum(map(len, pack_parts(artifacts[:count], decisions_of(artifacts[:count], measured), table)))

    counts = range(1, len(artifacts) + 1)
    count = len(artifacts) if most is None else bisect_right(counts, most, key=size)
    while True:
        lost = regrets(chosen.times, _names(artifacts[:count]))
        if unserved := sum(loss is None for loss in lost.values()):
            left = f"{unserved} of {len(lost)} problems without a kernel"
            raise PackError(f"--budget {worth.budget} leaves {left}; raise --budget")
        kept = artifacts[:count]
        table = table_among(kept, decisions_of(kept, measured), chosen.times, worth.gpu, worth.objective, worth.bits)
        if most is None or size(count, table) <= most:
            return kept, table
        count -= 1


def _names(artifacts: Sequence[Artifact]) -> list[str]:
    return [artifact.name for artifact in artifacts]


def _warn_of_left_out(artifacts: Sequence[Artifact], recorded: Sequence[Decision]) -> None:
    if left_out := len(recorded) - len(decisions_of(artifacts, recorded)):
        output.complain(f"left out {left_out} of {len(recorded)} measurements, because the pack lacks their kernels")


def _sign(target: PackOutput, keys: Sequence[SigningKey]) -> None:
    if keys:
        sign_pack(target.to, keys)


def _size_in_words(path: Path, artifacts: Sequence[Artifact], size: int, start: float) -> str:
    return f"{path}: {len(artifacts)} kernels, {size:,} bytes, in {monotonic() - start:.1f} s"


def _losses_in_words(lost: Mapping[GemmProblem, float | None], counts: Mapping[GemmProblem, int]) -> str:
    """The maximum and the mean slowdown: of the problems, weighted by how often each runs, and of the sizes between."""
    losses = {problem: loss for problem, loss in lost.items() if loss is not None}
    runs = " over all runs" if len({*counts.values()}) > 1 else ""
    text = f"slowdown of {len(counts)} problems relative to the fastest kernel: {_most_and_mean(losses, counts)}{runs}"
    if between := dict.fromkeys(losses.keys() - counts.keys(), 1):
        text += (
            f"; of {len(between)} between them, with other sizes of the same layers: {_most_and_mean(losses, between)}"
        )
    return f"{text}; from the model where there is no measurement"


def _most_and_mean(losses: Mapping[GemmProblem, float], counts: Mapping[GemmProblem, int]) -> str:
    """The maximum and the weighted mean of the slowdowns of some problems."""
    mean = sum(losses[problem] * count for problem, count in counts.items()) / sum(counts.values())
    return f"at most {max(map(losses.__getitem__, counts)):.1%}, {mean:.1%} on average"


def summary(
    path: Path,
    size: int,
    artifacts: Sequence[Artifact],
    decisions: Sequence[Decision],
    choices: ChoiceTable | None,
) -> dict[str, object]:
    """What JSON says of a pack."""
    return {
        "file": str(path),
        "bytes": size,
        "kernels": [
            {
                "name": a.name,
                "arithmetic": arithmetic_of_artifact(a),
                "digest": a.digest,
                **asdict(a.resources),
                **asdict(a.provenance),
            }
            for a in artifacts
        ],
        "decisions": [*map(asdict, decisions)],
        "choices": choices and choices.to_json(),
    }


def arithmetic_of_artifact(artifact: Artifact) -> str | None:
    """The name of a kernel's arithmetic; None for an edited kernel, whose source may change it."""
    return arithmetic_named(SlicedKernel(artifact.name, 0))
