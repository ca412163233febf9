"""pack: ship compiled kernels in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gemmill.cli import output
from gemmill.cli.app import Commands, app
from gemmill.cli.compiling import compile_all, report_failures, tally
from gemmill.cli.options import Jobs, Json, Manifest, Preset, Records, StorePath, Where, kernel_set
from gemmill.cli.output import Status
from gemmill.runtime.decisions import read_decisions
from gemmill.runtime.pack import Pack, write_pack
from gemmill.runtime.store import Store


class PackCommands(Commands):
    """``pack MANIFEST`` is short for ``pack make MANIFEST``."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Put ``make`` in front of what starts with no command of this group."""
        if args and args[0] not in (*self.commands, "--help", "-h"):
            args = ["make", *args]
        return super().parse_args(ctx, args)


pack_app = typer.Typer(
    cls=PackCommands,
    help="""Ship compiled kernels in one file: `gemmill pack MANIFEST -o FILE`.

    A process that opens the file runs its kernels without NVRTC and headers:
    gemmill.Registry(packs=["quick.pack"]).

    \b
    Examples:
      gemmill pack bf16 --preset quick -o quick.pack
      gemmill pack inspect quick.pack
      gemmill pack verify quick.pack
    """,
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(pack_app, name="pack")
PackFile = Annotated[Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="A pack.")]


@pack_app.command()
def make(
    manifest: Manifest,
    to: Annotated[Path, typer.Option("--output", "-o", help="The pack to write.", dir_okay=False)],
    preset: Preset = None,
    where: Where = None,
    records: Records = [],  # noqa: B006 (typer copies it)
    jobs: Jobs = None,
    store: StorePath = None,
    as_json: Json = False,
) -> None:
    """Write a pack of a manifest's kernels, compiling what the store lacks. The command `pack` alone means this.

    With --records, measurements of these kernels go along, and the selector prefers them to its model.

    \b
    Examples:
      gemmill pack bf16 --preset quick -o quick.pack
      gemmill pack projections.yaml --records records.jsonl -o projections.pack
    """
    outcomes = compile_all(list(kernel_set(manifest).expand(preset, where)), jobs, Store(store))
    report_failures(outcomes)
    artifacts = [outcome.artifact for outcome in outcomes if outcome.artifact is not None]
    names = {artifact.name for artifact in artifacts}
    write_pack(to, artifacts, [decision for decision in read_decisions(records) if decision.kernel in names])
    if as_json:
        output.print_json(_summary(Pack.open(to)))
    else:
        typer.echo(f"{tally(outcomes)}\n{to}: {len(outcomes)} kernels, {to.stat().st_size:,} bytes")


@pack_app.command()
def inspect(file: PackFile, as_json: Json = False) -> None:
    """List the kernels of a pack, and what they were made with.

    \b
    Examples:
      gemmill pack inspect quick.pack --json
    """
    pack = Pack.open(file)
    if as_json:
        output.print_json(_summary(pack))
        return
    artifacts = [pack.get(name) for name in pack.names()]
    rows = [
        (a.name, a.resources.registers, f"{len(a.cubin):,}", a.provenance.nvrtc_version, a.provenance.cutlass_version)
        for a in artifacts
    ]
    output.print_table(("kernel", ">registers", ">cubin, B", "NVRTC", "CUTLASS"), rows)
    typer.echo(f"{file}: {len(rows)} kernels, {len(pack.decisions)} measurements, {file.stat().st_size:,} bytes")


@pack_app.command()
def verify(file: PackFile, as_json: Json = False) -> None:
    """Read every kernel of a pack and check it; exits with 1 if any is damaged.

    \b
    Examples:
      gemmill pack verify quick.pack
    """
    pack = Pack.open(file)
    faults = pack.verify()
    if as_json:
        output.print_json({"file": str(file), "kernels": len(pack.names()), "faults": faults})
    else:
        for fault in faults.values():
            output.complain(fault)
        typer.echo(f"{file}: {len(pack.names())} kernels, {len(faults)} damaged")
    if faults:
        raise typer.Exit(Status.WRONG)


def _summary(pack: Pack) -> dict[str, object]:
    artifacts = [pack.get(name) for name in pack.names()]
    return {
        "file": str(pack.path),
        "bytes": pack.path.stat().st_size,
        "kernels": [
            {"name": a.name, "digest": a.digest, **a.resources.model_dump(), **a.provenance.model_dump()}
            for a in artifacts
        ],
        "decisions": [decision.model_dump(mode="json") for decision in pack.decisions],
    }
