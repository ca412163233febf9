"""pack: write, inspect and verify packs, which hold compiled kernels in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gemmill.cli import output
from gemmill.cli.app import Application, Commands, app
from gemmill.cli.kernel_sets import KernelSets
from gemmill.cli.options import (
    CompileOptions,
    Records,
    StorePath,
    SuiteOptions,
    input_argument,
    input_file,
    is_manifest,
    refuse_overwriting,
)
from gemmill.cli.output import UsageError
from gemmill.cli.pack_making import (
    PackOutput,
    WorthOptions,
    arithmetic_of_artifact,
    summary,
    write_declared,
    write_for,
)
from gemmill.library.errors import TrustError
from gemmill.library.file_kinds import wrong_kind
from gemmill.library.files import read_given
from gemmill.library.wording import suggest
from gemmill.runtime.select.choice_table import ChoiceTable
from gemmill.runtime.storage.pack import Pack
from gemmill.runtime.storage.store import Store
from gemmill.runtime.storage.trust.signatures import MAX_SEALED_BYTES, TrustedKeys
from gemmill.runtime.storage.trust.signed_packs import PackIndex


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
PackFile = Annotated[Path, input_argument("Pack, from gemmill pack.")]


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

    The choice table of the pack serves every M of a layer. So where shapes differ only in M, the kernels also run the
    powers of two between the smallest and the largest M within --regret, and other M between within 15%.

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
    refuse_overwriting(target.files, [*kernels.manifest, *records, *target.sign, *problems.files])
    if suite is None:
        write_declared(kernels, target, compiling, records)
    else:
        write_for(suite, kernels, target, compiling, worth, records)


@pack_app.command()
def inspect(file: PackFile) -> None:
    """List the kernels of a pack and the layers of its choice table.

    \b
    Examples:
      gemmill pack inspect quick.pack --json
    """
    pack = Pack.open(file, trusted=TrustedKeys.of_settings())
    artifacts = [pack.get(name) for name in pack.names()]
    if output.is_json():
        output.print_json("pack.inspect", summary(file, pack.bytes, artifacts, pack.decisions, pack.choices))
        return
    rows = [
        (
            a.name,
            arithmetic_of_artifact(a) or "",
            a.resources.registers,
            f"{len(a.cubin):,}",
            a.provenance.nvrtc_version,
            a.provenance.cutlass_version,
        )
        for a in artifacts
    ]
    output.print_table(("kernel", "arithmetic", ">registers", ">cubin, B", "NVRTC", "CUTLASS"), rows)
    if pack.choices:
        _print_choices(pack.choices)
    typer.echo(f"{file}: {len(rows)} kernels, {len(pack.decisions)} measurements, {pack.bytes:,} bytes")


def _print_choices(table: ChoiceTable) -> None:
    """Print the kernel of each range of each layer."""
    typer.echo(f"choices for {table.gpu} with objective {table.objective} and bits {table.bits}")
    for index, formats in enumerate(table.formats):
        rows = []
        for layer in table.layers:
            if layer.formats == index:
                starts = [i for i, kernel in enumerate(layer.kernel) if i == 0 or kernel != layer.kernel[i - 1]]
                rows += [(layer if i == 0 else "", layer.first[i], table.kernels[layer.kernel[i]]) for i in starts]
        output.print_table(("layer", ">from", "kernel"), rows, title=formats.word)


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
