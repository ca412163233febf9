"""lock, warm: the same kernels, to the bit, where they are built, kept and run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from gemmill.cli import completion, output
from gemmill.cli.app import app
from gemmill.cli.commands.stores import check_kept
from gemmill.cli.options import (
    CompileOptions,
    Packs,
    RegistryOptions,
    SuiteOptions,
    argument,
    input_argument,
    output_file,
    refuse_overwriting,
)
from gemmill.runtime import kernel_lock
from gemmill.runtime.registry import Registry
from gemmill.runtime.storage.lockfile import Lock


@dataclass(frozen=True)
class LockedProblems(SuiteOptions):
    """Problems of a suite, as an argument, or in lines."""

    shapes: Annotated[
        str | None,
        argument("[PROBLEMS]", "A suite, by file or name, or another tool's list (gemmill shapes).", completion.suites),
    ] = None


@app.command()
def lock(
    to: Annotated[Path, output_file("The lock file to write.")],
    problems: LockedProblems,
    sources: RegistryOptions,
    compiling: CompileOptions,
) -> None:
    """Write down which kernels problems go to: name, key in stores, digest of the machine code, what it was made from.

    Kernels are selected as `gemmill select` does it, and compiled where neither packs nor the store have them. Equal
    problems, kernels and toolchains give equal files, so a second run and a diff say whether anything has changed.
    `gemmill warm` gets exactly these kernels. Exits with 1 if a problem has none.

    \b
    Examples:
      gemmill lock large -o kernels.lock
      gemmill lock trace.json --gpu "H100 80GB HBM3" -o kernels.lock
      gemmill lock --problem "4096x4096x4096 bf16 tn" --pack quick.pack -o kernels.lock
    """
    if (suite := problems.suite()) is None:
        raise typer.BadParameter("no problem is given: PROBLEMS, a file or suite, or --problem TEXT says what to lock")
    refuse_overwriting([to], [*sources.files, *problems.files])
    registry = sources.registry(compiling.store)
    shapes = [*dict.fromkeys(shape.problem for shape in suite.shapes)]
    with output.progress(compiling=len({registry.select(each).name for each in shapes})) as step:
        made = kernel_lock.lock(registry, shapes, compiling.jobs, lambda _: step("compiling"))
    made.write(to)
    output.print_result(
        "lock",
        {"file": str(to), **made.content},
        f"{to}: {len(made.problems)} problems on {made.gpu} go to {len(made.kernels)} kernels",
    )


@app.command()
def warm(
    file: Annotated[Path, input_argument("A lock file.")],
    compiling: CompileOptions,
    pack: Packs = [],  # noqa: B006 (typer copies it)
) -> None:
    """Have exactly the kernels of a lock file in the store: from packs, from GEMMILL_REMOTE, or compiled.

    Exits with 1 if what comes is not, to the bit, what the file names, and says what differs: versions of NVRTC, of
    headers, options; and if the store cannot be written.

    \b
    Examples:
      gemmill warm kernels.lock
      gemmill warm kernels.lock --pack quick.pack --store /srv/gemmill
    """
    named = Lock.read(file)
    with output.progress(compiling=len(named.kernels)) as step:
        registry = Registry(manifests=(), packs=pack, store=compiling.store)
        fetched = kernel_lock.fetch(registry, named, compiling.jobs, lambda _: step("compiling"))
    check_kept(registry.store)
    counts = Counter(kernel.source for kernel in fetched)
    output.print_result(
        "warm",
        [{"name": artifact.name, "key": artifact.key, "source": source} for artifact, source in fetched],
        f"{len(fetched)} kernels as locked: {counts['pack']} from packs, {counts['store']} already in the store, "
        f"{counts['remote']} from the remote, {counts['compiled']} compiled",
    )
