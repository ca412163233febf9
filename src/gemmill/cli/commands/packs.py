"""pack: ship compiled kernels in one file."""

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
from gemmill.cli.options import (
    CompileOptions,
    KernelFilter,
    Manifest,
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
from gemmill.cli.set_choice import Conditions, SuiteTimes, kernels_for
from gemmill.library.errors import PackError, SettingError
from gemmill.library.files import read_given
from gemmill.library.problem import GemmProblem
from gemmill.library.wording import suggest
from gemmill.runtime.host_gpu import detect
from gemmill.runtime.select.decisions import Decision, read_decisions
from gemmill.runtime.select.set_cover import regrets
from gemmill.runtime.settings import number_of_bytes
from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.pack import Pack, pack_parts, write_pack
from gemmill.runtime.storage.store import Store
from gemmill.runtime.storage.trust.signatures import MAX_SEALED_BYTES, SigningKey, TrustedKeys
from gemmill.runtime.storage.trust.signed_packs import PackIndex, sign_pack, signature_path


class PackCommands(Commands):
    """``pack MANIFEST`` is short for ``pack make MANIFEST``."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Put ``make`` in front of what starts with no command of this group, but for one that is misspelt."""
        if args and args[0] not in (*self.commands, "--help", "-h"):
            if (meant := suggest(args[0], self.commands)) and not is_manifest(args[0]):
                ctx.fail(f"{args[0]!r} is neither a command nor a manifest{meant}")
            args = ["make", *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """What may come first: a command of this group, or a manifest."""
        manifest = next(each for each in self.commands["make"].params if each.name == "manifest")
        return [*super().shell_complete(ctx, incomplete), *manifest.shell_complete(ctx, incomplete)]


pack_app = Application(
    """Ship compiled kernels in one file: `gemmill pack MANIFEST -o FILE`.

    A process that opens the file runs its kernels without NVRTC and headers:
    gemmill.Registry(packs=["quick.pack"]).

    \b
    Examples:
      gemmill pack bf16 --preset quick -o quick.pack
      gemmill pack inspect quick.pack
      gemmill pack verify quick.pack
    """,
    PackCommands,
)
app.add_typer(pack_app, name="pack")
REGRET = 0.03
"""What a shape may lose where no option says."""
PackFile = Annotated[Path, input_argument("A pack.")]


@dataclass(frozen=True)
class PackOutput:
    """The file to write, and the keys that sign it."""

    to: Annotated[Path, output_file("The pack to write.")]
    sign: Sign = field(default_factory=list)

    def keys(self) -> list[SigningKey]:
        """The keys."""
        return [SigningKey.load(path) for path in self.sign]

    @property
    def files(self) -> list[Path]:
        """What is written."""
        return [self.to, signature_path(self.to)] if self.sign else [self.to]


@dataclass(frozen=True)
class WorthOptions:
    """How many kernels the problems of a suite are worth, and on which GPU."""

    regret: Annotated[
        float | None,
        typer.Option(min=0, help="With --shapes: the most that a shape may lose, as part of the least time (0.03)."),
    ] = None
    budget: Annotated[
        str | None, typer.Option(metavar="BYTES", help="With --shapes: the most that the file may take, such as 20M.")
    ] = None
    objective: Objective = "sustained"
    gpu: OnGpu = None

    def most_bytes(self) -> int | None:
        """Most bytes of the file."""
        try:
            return None if self.budget is None else number_of_bytes("--budget", self.budget)
        except SettingError as error:
            raise typer.BadParameter(str(error)) from None


@pack_app.command()
def make(
    manifest: Manifest,
    target: PackOutput,
    kernels: KernelFilter,
    compiling: CompileOptions,
    problems: SuiteOptions,
    worth: WorthOptions,
    records: Records = [],  # noqa: B006 (typer copies it)
) -> None:
    """Write a pack of a manifest's kernels, compiling what the store lacks. The command `pack` alone means this.

    With --records, measurements of these kernels go along, and the selector prefers them to its model. With --shapes or
    --problem, the pack has about as few kernels as solve every shape of a suite, or of another tool's list, within
    --regret of the fastest of the manifest: by the measurements of --records where there are some, by those that ship
    with gemmill where it has some of the shape, which go along too, and elsewhere by the model, for the GPU of --gpu;
    where its power limit holds a shape, for long runs, unless --objective is burst. A shape that says an expression or
    groups gets the kernel that a registry over the manifest would take; without such shapes, kernels for groups or
    arrays, or with an expression, are left out. With --budget, those come first that serve the most shapes, each
    counted as often as it ran or is listed, as many as fit; what shapes then lose is printed. With --sign, FILE.sig is
    written beside it: who trusts the key (GEMMILL_TRUSTED_KEYS) takes no other pack.

    \b
    Examples:
      gemmill pack bf16 --preset quick -o quick.pack
      gemmill pack projections.yaml --records records.jsonl -o projections.pack
      gemmill pack bf16 --shapes large --regret 0.05 --budget 20M -o large.pack
      gemmill pack bf16 --shapes large --gpu "H100 80GB HBM3" -o h100.pack
      gemmill pack bf16 --shapes trace.json --budget 20M -o trace.pack
      gemmill pack bf16 --preset quick --sign release.pem -o quick.pack
      gemmill pack bf16 --problem "4096x28672x4096 bf16 tn epilogue='d = silu(gate) * up'" -o swiglu.pack
    """
    suite = problems.suite()
    if suite is None and worth != WorthOptions():
        raise typer.BadParameter("--regret, --budget, --objective and --gpu need --shapes: what kernels are worth")
    most, keys = worth.most_bytes(), target.keys()
    refuse_overwriting(target.files, [manifest, *records, *target.sign, *problems.files])
    configs = kernels.configs(manifest)
    decisions = read_decisions(records)
    times = SuiteTimes({}, {}, [])
    if suite is not None:
        regret = REGRET if worth.regret is None else worth.regret
        conditions = Conditions(decisions, worth.gpu or detect(), worth.objective)
        configs, times = kernels_for(configs, suite, conditions, regret)
        decisions += times.shipped
    outcomes = compile_all(configs, compiling.jobs, Store(compiling.store))
    report_failures(outcomes)
    artifacts = [outcome.artifact for outcome in outcomes if outcome.artifact is not None]
    if most is not None:
        counts = range(1, len(artifacts) + 1)
        artifacts = artifacts[: bisect_right(counts, most, key=lambda count: _bytes(artifacts[:count], decisions))]
    lost = regrets(times.times, (artifact.name for artifact in artifacts))
    if unserved := sum(loss is None for loss in lost.values()):
        left = f"{unserved} of {len(lost)} problems without a kernel"
        raise PackError(f"a pack of {worth.budget} leaves {left}: raise --budget")
    packed = _of(artifacts, decisions)
    if left_out := len(decisions) - len(packed):
        output.complain(f"{left_out} of {len(decisions)} measurements are left out: the pack has not their kernels")
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
    """Say what problems lose, in the mean of all that ran."""
    if losses := {problem: loss for problem, loss in lost.items() if loss is not None}:
        mean = sum(loss * counts[problem] for problem, loss in losses.items()) / sum(map(counts.__getitem__, losses))
        runs = " of all runs" if len({*counts.values()}) > 1 else ""
        typer.echo(
            f"{len(losses)} problems lose {max(losses.values()):.1%} of time at most, {mean:.1%} in the mean{runs}, by "
            "the model where nothing was measured"
        )


def _bytes(artifacts: Sequence[Artifact], decisions: Sequence[Decision]) -> int:
    """Bytes of a pack of these kernels."""
    return sum(map(len, pack_parts(artifacts, _of(artifacts, decisions))))


def _of(artifacts: Sequence[Artifact], decisions: Sequence[Decision]) -> list[Decision]:
    """The measurements of these kernels."""
    names = {artifact.name for artifact in artifacts}
    return [decision for decision in decisions if decision.kernel in names]


@pack_app.command()
def inspect(file: PackFile) -> None:
    """List the kernels of a pack, and what they were made with.

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
        (a.name, a.resources.registers, f"{len(a.cubin):,}", a.provenance.nvrtc_version, a.provenance.cutlass_version)
        for a in artifacts
    ]
    output.print_table(("kernel", ">registers", ">cubin, B", "NVRTC", "CUTLASS"), rows)
    typer.echo(f"{file}: {len(rows)} kernels, {len(pack.decisions)} measurements, {pack.bytes:,} bytes")


@pack_app.command()
def verify(
    file: PackFile,
    index: Annotated[
        Path | None,
        input_file("A signed index (gemmill pack index) that must list it."),
    ] = None,
    store: StorePath = None,
) -> None:
    """Read every kernel of a pack and check it; exits with 1 if any is damaged.

    Where GEMMILL_TRUSTED_KEYS names keys, one of them must have signed the pack. With --index, one must have signed
    that as well, it must not have expired nor be older than one that this store has seen, and must list the pack.

    \b
    Examples:
      gemmill pack verify quick.pack
      gemmill pack verify quick.pack --index packs.index
    """
    trusted = TrustedKeys.of_settings()
    pack = Pack.open(file, trusted=trusted)
    if index is not None:
        if trusted is None:
            raise typer.BadParameter("--index needs GEMMILL_TRUSTED_KEYS: whose signatures count")
        PackIndex.accept(read_given(index, MAX_SEALED_BYTES), trusted, Store(store)).check(pack, trusted)
    faults = pack.verify()
    report = {"file": str(file), "kernels": len(pack.names()), "faults": faults}
    text = f"{file}: {len(pack.names())} kernels, {len(faults)} damaged"
    output.print_faults("pack.verify", report, [*faults.values()], text)


def _summary(path: Path, size: int, artifacts: Sequence[Artifact], decisions: Sequence[Decision]) -> dict[str, object]:
    return {
        "file": str(path),
        "bytes": size,
        "kernels": [
            {"name": a.name, "digest": a.digest, **asdict(a.resources), **asdict(a.provenance)} for a in artifacts
        ],
        "decisions": [*map(asdict, decisions)],
    }
