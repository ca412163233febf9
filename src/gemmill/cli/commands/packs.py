"""pack: write, inspect and verify packs, which hold compiled kernels in one file."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from gemmill.cli import output
from gemmill.cli.app import Application, Commands, app
from gemmill.cli.commands.compiling import compile_all, report_failures, tally
from gemmill.cli.kernel_sets import KernelSets
from gemmill.cli.options import (
    Bits,
    CompileOptions,
    Objective,
    OnGpu,
    Records,
    Sign,
    StorePath,
    SuiteOptions,
    input_argument,
    input_file,
    is_manifest,
    output_file,
    refuse_overwriting,
)
from gemmill.cli.output import UsageError, usage
from gemmill.cli.set_choice import Conditions, SuiteTimes, kernels_for
from gemmill.library.arithmetic import arithmetic_named
from gemmill.library.bits import ANY
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.errors import PackError, SettingError, TrustError
from gemmill.library.file_kinds import wrong_kind
from gemmill.library.files import read_given
from gemmill.library.problem import GemmProblem
from gemmill.library.wording import suggest
from gemmill.runtime.registry import Registry
from gemmill.runtime.select.decisions import Decision, read_decisions
from gemmill.runtime.select.set_cover import regrets
from gemmill.runtime.settings import number_of_bytes
from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.pack import Pack, pack_parts, write_pack
from gemmill.runtime.storage.store import Store
from gemmill.runtime.storage.trust.signatures import MAX_SEALED_BYTES, SigningKey, TrustedKeys
from gemmill.runtime.storage.trust.signed_packs import PackIndex, sign_pack, signature_path


class PackCommands(Commands):
    """``pack MANIFEST...`` is short for ``pack make MANIFEST...``."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Insert ``make`` unless the first word is a command of this group; report a misspelt command."""
        if args and args[0] not in (*self.commands, "--help", "-h"):
            if (meant := suggest(args[0], self.commands)) and not is_manifest(args[0]):
                ctx.fail(f"{args[0]!r} is neither a command nor a manifest{meant}")
            args = ["make", *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Complete a command of this group, or a manifest."""
        manifest = next(each for each in self.commands["make"].params if each.name == "manifest")
        return [*super().shell_complete(ctx, incomplete), *manifest.shell_complete(ctx, incomplete)]


pack_app = Application(
    """Write compiled kernels to one file, to ship them.

    `gemmill pack MANIFEST... -o FILE` writes a pack. A process that opens it runs the kernels without NVRTC and
    headers: `gemmill.Registry(packs=["quick.pack"])`.

    \b
    Examples:
      gemmill pack bf16 --preset quick -o quick.pack
      gemmill pack --shapes trace.json -o model.pack
      gemmill pack inspect quick.pack
      gemmill pack verify quick.pack
    """,
    PackCommands,
)
app.add_typer(pack_app, name="pack")
REGRET = 0.03
"""Default of --regret."""
PackFile = Annotated[Path, input_argument("Pack, from gemmill pack.")]


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
    """How many kernels a pack keeps for the problems of a suite, and for which GPU."""

    regret: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="FRACTION",
            help="With --shapes: maximum slowdown of a problem relative to its fastest kernel. Default: 0.03, for 3%.",
        ),
    ] = None
    budget: Annotated[
        str | None, typer.Option(metavar="BYTES", help="With --shapes: maximum size of the pack, such as 20M.")
    ] = None
    objective: Objective = "sustained"
    bits: Bits = ANY
    gpu: OnGpu = None

    def most_bytes(self) -> int | None:
        """The maximum size of the pack, in bytes; None without --budget."""
        with usage(SettingError):
            return None if self.budget is None else number_of_bytes("--budget", self.budget)


@pack_app.command()
def make(
    kernels: KernelSets,
    target: PackOutput,
    compiling: CompileOptions,
    problems: SuiteOptions,
    worth: WorthOptions,
    records: Records = [],  # noqa: B006 (typer copies it)
) -> None:
    """Write a pack; `gemmill pack` is short for this.

    The pack has the kernels of manifests; gemmill compiles those that are not in the store. With --records, the pack
    also contains the measurements of its kernels, and the selector prefers them to its model.

    With --shapes or --problem, the pack has only the few kernels that run each problem within --regret of the fastest
    kernel of the manifests, or without MANIFEST of all shipped ones. So one pack serves a model whose layers have
    different types. A shape without formats gets kernels for every format of MANIFEST, or without MANIFEST for the
    default formats.

    Times come from --records, else from the shipped measurements, else from the model, for the GPU of --gpu. The pack
    then contains the shipped measurements, too. By default, times are those of a long run at the power limit; see
    --objective.

    With --bits, the pack has only kernels that calls with these bits= may use.

    With --budget, the pack keeps as many kernels as fit, first those for the most frequent problems, and prints the
    slowdown of the problems. With --sign, gemmill also writes the signature FILE.sig. A machine that sets
    GEMMILL_TRUSTED_KEYS accepts only packs signed by one of these keys.

    \b
    Examples:
      gemmill pack bf16 --preset quick -o quick.pack
      gemmill pack projections.yaml --records records.jsonl -o projections.pack
      gemmill pack --shapes trace.json -o model.pack
      gemmill pack bf16 --shapes large --regret 0.05 --budget 20M -o large.pack
      gemmill pack bf16 --shapes large --gpu H100 -o h100.pack
      gemmill pack --shapes trace.json --bits invariant -o invariant.pack
      gemmill pack bf16 fp8 --shapes trace.json --budget 20M -o trace.pack
      gemmill pack bf16 --preset quick --sign release.pem -o quick.pack
      gemmill pack bf16 --problem "4096x28672x4096 bf16 tn epilogue='d = silu(gate) * up'" -o swiglu.pack
    """
    suite = problems.suite()
    if suite is None and worth != WorthOptions():
        raise UsageError("--regret, --budget, --objective, --bits and --gpu need --shapes or --problem")
    if suite is None and not kernels.manifest:
        raise UsageError("no kernels are named; pass MANIFEST, or --shapes FILE or --problem TEXT to choose them")
    most, keys = worth.most_bytes(), target.keys()
    refuse_overwriting(target.files, [*kernels.manifest, *records, *target.sign, *problems.files])
    times = SuiteTimes({}, {}, [])
    if suite is None:
        configs, recorded = kernels.declared, read_decisions(records)
    else:
        registry = Registry(kernels.limited, packs=(), store=compiling.store, gpu=worth.gpu, records=records)
        regret = REGRET if worth.regret is None else worth.regret
        configs, times = kernels_for(kernels, suite, Conditions(registry, worth.objective, regret, worth.bits))
        recorded = registry.recorded
    outcomes = compile_all(configs, compiling.jobs, Store(compiling.store))
    report_failures(outcomes)
    artifacts = [outcome.artifact for outcome in outcomes if outcome.artifact is not None]
    if most is not None:
        counts = range(1, len(artifacts) + 1)
        artifacts = artifacts[
            : bisect_right(counts, most, key=lambda count: _bytes(artifacts[:count], recorded + times.shipped))
        ]
    lost = regrets(times.times, (artifact.name for artifact in artifacts))
    if unserved := sum(loss is None for loss in lost.values()):
        left = f"{unserved} of {len(lost)} problems without a kernel"
        raise PackError(f"--budget {worth.budget} leaves {left}; raise --budget")
    packed = _of(artifacts, recorded + times.shipped)
    if left_out := len(recorded) - len(_of(artifacts, recorded)):
        output.complain(f"left out {left_out} of {len(recorded)} measurements, because the pack lacks their kernels")
    size = write_pack(target.to, artifacts, packed)
    if keys:
        sign_pack(target.to, keys)
    if output.is_json():
        losses_by_problem = {str(problem): loss for problem, loss in lost.items()}
        output.print_json("pack.make", {**_summary(target.to, size, artifacts, packed), "losses": losses_by_problem})
        return
    typer.echo(f"{tally(outcomes)}\n{target.to}: {len(artifacts)} kernels, {size:,} bytes")
    _print_losses(lost, times.counts)


def _print_losses(lost: Mapping[GemmProblem, float | None], counts: Mapping[GemmProblem, int]) -> None:
    """Print the maximum and the mean slowdown of the problems, weighted by how often each runs."""
    if losses := {problem: loss for problem, loss in lost.items() if loss is not None}:
        mean = sum(loss * counts[problem] for problem, loss in losses.items()) / sum(map(counts.__getitem__, losses))
        runs = " over all runs" if len({*counts.values()}) > 1 else ""
        typer.echo(
            f"slowdown of {len(losses)} problems relative to the fastest kernel: at most {max(losses.values()):.1%}, "
            f"{mean:.1%} on average{runs}; from the model where there is no measurement"
        )


def _bytes(artifacts: Sequence[Artifact], decisions: Sequence[Decision]) -> int:
    """The size in bytes of a pack of these kernels."""
    return sum(map(len, pack_parts(artifacts, _of(artifacts, decisions))))


def _of(artifacts: Sequence[Artifact], decisions: Sequence[Decision]) -> list[Decision]:
    """The measurements of these kernels."""
    names = {artifact.name for artifact in artifacts}
    return [decision for decision in decisions if decision.kernel in names]


@pack_app.command()
def inspect(file: PackFile) -> None:
    """List the kernels of a pack, and their NVRTC and CUTLASS versions.

    \b
    Examples:
      gemmill pack inspect quick.pack --json
    """
    pack = Pack.open(file, trusted=TrustedKeys.of_settings())
    artifacts = [pack.get(name) for name in pack.names()]
    if output.is_json():
        output.print_json("pack.inspect", _summary(file, pack.bytes, artifacts, pack.decisions))
        return
    rows = [
        (
            a.name,
            _arithmetic(a) or "",
            a.resources.registers,
            f"{len(a.cubin):,}",
            a.provenance.nvrtc_version,
            a.provenance.cutlass_version,
        )
        for a in artifacts
    ]
    output.print_table(("kernel", "arithmetic", ">registers", ">cubin, B", "NVRTC", "CUTLASS"), rows)
    typer.echo(f"{file}: {len(rows)} kernels, {len(pack.decisions)} measurements, {pack.bytes:,} bytes")


@pack_app.command()
def verify(
    file: PackFile,
    index: Annotated[
        Path | None,
        input_file("Signed index, from gemmill pack index, that must list the pack."),
    ] = None,
    store: StorePath = None,
) -> None:
    """Read and check every kernel of a pack.

    Exits with 1 if a kernel is damaged. If GEMMILL_TRUSTED_KEYS is set, one of its keys must have signed the pack. With
    --index, one of them must also have signed the index, and the index must list the pack. The index must not have
    expired, and must not be older than one that this store has accepted.

    \b
    Examples:
      gemmill pack verify quick.pack
      gemmill pack verify quick.pack --index packs.index
    """
    trusted = TrustedKeys.of_settings()
    pack = Pack.open(file, trusted=trusted)
    if index is not None:
        if trusted is None:
            raise UsageError("--index needs trusted keys; set GEMMILL_TRUSTED_KEYS")
        try:
            PackIndex.accept(read_given(index, MAX_SEALED_BYTES), trusted, Store(store)).check(pack, trusted)
        except TrustError as error:
            says = wrong_kind(index, "index")
            raise TrustError(f"{index} {says}" if says else f"{index}: {error}", error.reason) from None
    faults = pack.verify()
    report = {"file": str(file), "kernels": len(pack.names()), "faults": faults}
    text = f"{file}: {len(pack.names())} kernels, {len(faults)} damaged"
    output.print_faults("pack.verify", report, [*faults.values()], text)


def _arithmetic(artifact: Artifact) -> str | None:
    """The name of a kernel's arithmetic; None for an edited kernel, whose source may change it."""
    return arithmetic_named(SlicedKernel(artifact.name, 0))


def _summary(path: Path, size: int, artifacts: Sequence[Artifact], decisions: Sequence[Decision]) -> dict[str, object]:
    return {
        "file": str(path),
        "bytes": size,
        "kernels": [
            {
                "name": a.name,
                "arithmetic": _arithmetic(a),
                "digest": a.digest,
                **asdict(a.resources),
                **asdict(a.provenance),
            }
            for a in artifacts
        ],
        "decisions": [*map(asdict, decisions)],
    }
