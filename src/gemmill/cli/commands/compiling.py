"""emit, build: from configs to CUDA C++ and to compiled kernels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from gemmill.cli import output
from gemmill.cli.app import app
from gemmill.cli.options import (
    Jobs,
    Json,
    Kernel,
    Manifest,
    Preset,
    StorePath,
    Where,
    kernel,
    kernel_set,
    refuse_overwriting,
)
from gemmill.emitters.emit import emit as emit_source
from gemmill.library.config.model import GemmConfig
from gemmill.library.errors import CompileError, StoreError
from gemmill.library.files import publish
from gemmill.runtime.compile.pool import Outcome, compile_many
from gemmill.runtime.storage.artifact import artifact_key
from gemmill.runtime.storage.store import Store


@app.command()
def emit(
    name_or_file: Kernel,
    to: Annotated[
        Path | None, typer.Option("--output", "-o", dir_okay=False, help="Write the text to this file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the CUDA C++ of a kernel.

    \b
    Examples:
      gemmill emit sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x256x64_2x1_cooperative_s4_m8_k1_linear
      gemmill emit one_config.yaml -o kernel.cu
      gemmill emit KERNEL --json        # with entry symbol, launch facts and digests
    """
    refuse_overwriting([to], [name_or_file])
    source = emit_source(kernel(name_or_file))
    text = source.text
    if to is not None:
        publish(to, [text.encode()])
    if as_json:
        report = {"name": source.name, "entry": source.entry, "launch": asdict(source.launch)}
        digests = {"digest": source.digest, "headers_digest": source.headers_digest}
        output.print_json("emit", {**report, **digests, "text": text})
    elif to is None:
        typer.echo(text, nl=False)


@app.command()
def build(
    manifest: Manifest,
    preset: Preset = None,
    where: Where = None,
    jobs: Jobs = None,
    store: StorePath = None,
    as_json: Json = False,
) -> None:
    """Compile the kernels of a manifest into the store, and say what each uses.

    Compiles only what the store lacks; Ctrl-C leaves the store sound, and what was compiled in it. Exits with 1 if any
    kernel fails.

    \b
    Examples:
      gemmill build bf16 --preset quick
      gemmill build projections.yaml --where "tile.m == 128" --jobs 2 --json
    """
    kept = Store(store)
    outcomes = compile_all(list(kernel_set(manifest).expand(preset, where)), jobs, kept)
    made = [outcome.artifact for outcome in outcomes if outcome.artifact]
    if lost := sum(not kept.holds(artifact_key(a.config, a.launch, a.provenance)) for a in made):
        why = kept.problem or f"the store holds at most {kept.max_bytes:,} bytes; raise GEMMILL_STORE_BYTES"
        raise StoreError(f"compiled, but not kept: {lost} of {len(made)} kernels; {why}")
    if as_json:
        output.print_json("build", [_outcome(outcome) for outcome in outcomes])
    else:
        print_resources(outcomes)
        typer.echo(tally(outcomes))
    report_failures(outcomes)


def compile_all(configs: Sequence[GemmConfig], jobs: int | None, store: Store) -> list[Outcome]:
    """Compile configs, or find them in the store, with a progress bar; one outcome for each, in order."""
    with output.progress(compiling=len(configs)) as step:
        return compile_many(configs, jobs=jobs, store=store, on_done=lambda outcome: step("compiling"))


def print_resources(outcomes: Iterable[Outcome]) -> None:
    """A table of what each compiled kernel uses."""
    rows = [
        (
            outcome.name,
            outcome.artifact.resources.registers,
            outcome.artifact.resources.spill_stores + outcome.artifact.resources.spill_loads,
            f"{outcome.artifact.resources.dynamic_shared_bytes:,}",
            outcome.artifact.launch.threads,
            outcome.artifact.config.stages,
            "store" if outcome.cached else f"{outcome.seconds:.1f} s",
        )
        for outcome in outcomes
        if outcome.artifact is not None
    ]
    output.print_table(("kernel", ">registers", ">spills", ">shared, B", ">threads", ">stages", ">compiled"), rows)


def tally(outcomes: Sequence[Outcome]) -> str:
    """How many kernels were compiled, found and failed."""
    cached = sum(outcome.cached for outcome in outcomes)
    failed = sum(outcome.error is not None for outcome in outcomes)
    text = f"{len(outcomes) - cached - failed} compiled, {cached} already in the store"
    return f"{text}, {failed} failed" if failed else text


def report_failures(outcomes: Iterable[Outcome]) -> None:
    """CompileError that names every kernel that failed, if there is one."""
    if failures := [str(outcome.error) for outcome in outcomes if outcome.error is not None]:
        raise CompileError("\n".join(failures))


def _outcome(outcome: Outcome) -> dict[str, object]:
    report: dict[str, object] = {"name": outcome.name, "cached": outcome.cached, "seconds": round(outcome.seconds, 3)}
    if outcome.artifact is None:
        return {**report, "error": str(outcome.error)}
    artifact = outcome.artifact
    return {**report, "digest": artifact.digest, "key": artifact.key, **asdict(artifact.resources)}
