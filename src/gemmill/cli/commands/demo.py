"""demo: a tour from a manifest to a pack, and to a verified and timed run if there is a GPU."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from gemmill.cli import completion, output
from gemmill.cli.app import app
from gemmill.cli.commands.compiling import compile_all, print_resources, report_failures
from gemmill.cli.commands.problems import measure, report_measurements
from gemmill.cli.options import CompileOptions, KernelFilter, argument, kernel_set, manifest_path, shape_suite
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name
from gemmill.library.errors import DeviceError
from gemmill.library.legality.explanation import explanation
from gemmill.library.legality.rules import verdicts
from gemmill.profiler.sweep.shape_suites import Shape
from gemmill.profiler.sweep.units import problem_of, units
from gemmill.runtime.registry import Registry
from gemmill.runtime.storage.pack import Pack, write_pack
from gemmill.runtime.storage.store import Store

PRESET = "quick"


@app.command(has_json=False)
def demo(
    compiling: CompileOptions,
    manifest: Annotated[
        str,
        argument("MANIFEST", "Manifest file or shipped manifest with a preset `quick`.", completion.manifests),
    ] = "bf16",
) -> None:
    """Show what gemmill does, in six steps.

    The steps are: validate a manifest, explain a rejected config, compile, select kernels, pack, and run. The last step
    verifies and times the kernels; it needs a Hopper GPU and PyTorch, and is skipped without them.

    \b
    Examples:
      gemmill demo
    """
    started = time.monotonic()
    configs = _validate(manifest)
    _explain(configs[0])
    _compile(configs, compiling)
    _select(manifest, configs[0])
    with tempfile.TemporaryDirectory() as folder:
        _pack(configs, Store(compiling.store), Path(folder) / "quick.pack")
        _run(configs, compiling, Path(folder) / "records.jsonl")
    typer.echo(f"\nDone in {time.monotonic() - started:.0f} s. Run `gemmill --help` for all commands.")


def _heading(number: int, text: str) -> None:
    output.console().print(f"\n{number}. {text}", style="bold", markup=False, soft_wrap=True)


def _validate(manifest: str) -> list[GemmConfig]:
    _heading(1, f"Validate and expand the manifest {manifest}")
    kernels = KernelFilter(PRESET).checked(kernel_set(manifest))
    count = kernels.count()
    refused = sum(count.refused_by_rule.values())
    typer.echo(f"{kernels.description} {count.candidates} candidates, {refused} rejected, {count.legal} kernels.")
    configs = list(kernels.expand(PRESET))
    typer.echo(f"The preset {PRESET} has {len(configs)} of them. A name contains every field of the config:")
    for config in configs:
        typer.echo(f"  {kernel_name(config)}")
    return configs


def _explain(config: GemmConfig) -> None:
    _heading(2, "Explain why a rule rejects a config")
    large = replace(config, tile=replace(config.tile, m=256, n=256))
    typer.echo(explanation(large, verdicts(large)))


def _compile(configs: list[GemmConfig], options: CompileOptions) -> None:
    _heading(3, f"Compile the preset {PRESET} with NVRTC into the store {Store(options.store).path}")
    started = time.monotonic()
    outcomes = compile_all(configs, options.jobs, Store(options.store))
    print_resources(outcomes)
    typer.echo(f"in {time.monotonic() - started:.1f} s")
    report_failures(outcomes)


def _select(manifest: str, like: GemmConfig) -> None:
    registry = Registry(manifests=[manifest_path(manifest)])
    _heading(4, f"Select kernels for some problems on {registry.gpu.name}")
    for shape in shape_suite("quick").shapes:
        choice = registry.select(problem_of(like, shape))
        typer.echo(f"{shape}: {choice.kernel}\n  {choice.reason}")


def _pack(configs: list[GemmConfig], store: Store, path: Path) -> None:
    _heading(5, "Pack the kernels into one file, and verify it")
    write_pack(path, Registry(packs=(), store=store).warm(configs))
    pack = Pack.open(path)
    faults = pack.verify()
    typer.echo(f"{len(pack.names())} kernels in {path.stat().st_size:,} bytes, {len(faults)} damaged")
    shape = Shape(4096, 4096, 4096)
    choice = Registry(packs=[path]).select(problem_of(configs[0], shape))
    typer.echo(f"A registry with only this pack never compiles; for {shape} it selects {choice.kernel}")


def _run(configs: list[GemmConfig], options: CompileOptions, records: Path) -> None:
    _heading(6, "Run the kernels: verify against float64, and compare with cuBLAS")
    try:
        found = measure(units(configs, [Shape(4096, 4096, 4096)]), records, options)
    except DeviceError as error:
        typer.echo(f"skipped: {error}")
        return
    report_measurements(found)
