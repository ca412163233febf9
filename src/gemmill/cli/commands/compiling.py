"""build: compile the kernels of a manifest, or an edited source file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from gemmill.cli import completion, output
from gemmill.cli.app import app
from gemmill.cli.options import CompileOptions, KernelFilter, argument
from gemmill.cli.output import UsageError
from gemmill.cli.pages import PageOptions, build_page, is_page
from gemmill.library.config.model import GemmConfig
from gemmill.library.errors import CompileError, StoreError
from gemmill.runtime.compile.pool import Outcome, compile_many
from gemmill.runtime.storage.artifact import Artifact, artifact_key
from gemmill.runtime.storage.store import Store


@app.command()
def build(
    manifest: Annotated[
        str,
        argument(
            "MANIFEST",
            "Manifest file, name of a shipped manifest, or edited source file, FILE.cu.",
            completion.buildable,
        ),
    ],
    kernels: KernelFilter,
    compiling: CompileOptions,
    page: PageOptions,
) -> None:
    """Compile the kernels of a manifest into the store.

    Prints the registers, spills, shared memory and threads of each kernel. Kernels that are already in the store are
    not compiled again. After Ctrl-C the store is valid and keeps the finished kernels. Exits with 1 if a kernel fails.

    build also compiles a source file that `gemmill emit KERNEL -o FILE.cu` wrote and you edited. Its entry symbol,
    exported constants, threads, parameters and shared memory must match those of KERNEL. The edited kernel is named
    KERNEL+src.DIGEST. With --mnkl or --problem, gemmill verifies it on the GPU and compares its time with that of
    KERNEL; this needs PyTorch. See docs/editing.md.

    \b
    Examples:
      gemmill build bf16 --preset quick
      gemmill build projections.yaml --where "tile.m == 128" --jobs 2 --json
      gemmill build kernel.cu
      gemmill build kernel.cu --mnkl 4096,4096,4096 -o kernel.pack
    """
    if is_page(manifest):
        if kernels.given or compiling.jobs is not None:
            raise UsageError(f"--preset, --where and --jobs need a manifest, but {manifest} is one source file")
        build_page(manifest, page, compiling.store)
        return
    if page != PageOptions():
        raise UsageError(
            f"--kernel, --mnkl, --problem and -o need a source file, FILE.cu, but {manifest} is a manifest; "
            "use `gemmill pack` to pack the kernels of a manifest"
        )
    store = Store(compiling.store)
    outcomes = compile_all(kernels.configs(manifest), compiling.jobs, store)
    made = [outcome.artifact for outcome in outcomes if outcome.artifact]
    _check_kept(store, made)
    output.print_result("build", [_outcome(outcome) for outcome in outcomes], lambda: print_resources(outcomes))
    report_failures(outcomes)


def compile_all(configs: Sequence[GemmConfig], jobs: int | None, store: Store) -> list[Outcome]:
    """Compile configs that are not in the store, with a progress bar. Returns one outcome per config, in order."""
    with output.progress(compiling=len(configs)) as step:
        return compile_many(configs, jobs=jobs, store=store, on_done=lambda outcome: step("compiling"))


def print_resources(outcomes: Sequence[Outcome]) -> None:
    """Print a table of the resources of each compiled kernel, and the counts of :func:`tally`."""
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
    typer.echo(tally(outcomes))


def tally(outcomes: Sequence[Outcome]) -> str:
    """How many kernels were compiled, found in the store, and failed."""
    cached = sum(outcome.cached for outcome in outcomes)
    failed = sum(outcome.error is not None for outcome in outcomes)
    text = f"{len(outcomes) - cached - failed} compiled, {cached} already in the store"
    return f"{text}, {failed} failed" if failed else text


def report_failures(outcomes: Iterable[Outcome]) -> None:
    """Raise a CompileError that lists every failed kernel, if there are any."""
    if failures := [str(outcome.error) for outcome in outcomes if outcome.error is not None]:
        raise CompileError("\n".join(failures))


def _outcome(outcome: Outcome) -> dict[str, object]:
    report: dict[str, object] = {"name": outcome.name, "cached": outcome.cached, "seconds": round(outcome.seconds, 3)}
    if outcome.artifact is None:
        return {**report, "error": str(outcome.error)}
    artifact = outcome.artifact
    return {**report, "digest": artifact.digest, "key": artifact.key, **asdict(artifact.resources)}


def _check_kept(store: Store, made: Sequence[Artifact]) -> None:
    """Raise a StoreError if the store cannot keep the compiled kernels; report kernels that were removed."""
    if not (lost := [a for a in made if not store.holds(artifact_key(a.config, a.launch, a.provenance))]):
        return
    count = f"{len(lost)} of {len(made)} kernels"
    if store.problem or not store.has_room_for(lost):
        why = store.problem or f"the size limit of the store is {store.max_bytes:,} bytes; raise GEMMILL_STORE_BYTES"
        raise StoreError(f"the store did not keep {count} after compilation: {why}")
    output.complain(f"another process has removed {count} from the store after compilation")
