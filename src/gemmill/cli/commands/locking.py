"""lock, warm: pin the kernels of problems in a lock file, and get exactly these kernels."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from gemmill.cli import completion, output
from gemmill.cli.app import app
from gemmill.cli.commands.stores import check_kept
from gemmill.cli.options import (
    Bits,
    CompileOptions,
    Packs,
    RegistryOptions,
    SuiteOptions,
    argument,
    input_argument,
    output_file,
    refuse_overwriting,
)
from gemmill.cli.output import UsageError
from gemmill.library.bits import ANY
from gemmill.runtime import kernel_lock
from gemmill.runtime.registry import Registry
from gemmill.runtime.storage.lockfile import Lock


@dataclass(frozen=True)
class LockedProblems(SuiteOptions):
    """Problems: a suite as an argument, or one per line."""

    shapes: Annotated[
        str | None,
        argument(
            "PROBLEMS",
            "Suite (file or shipped name), or another tool's file that gemmill shapes reads.",
            completion.suites,
        ),
    ] = None


@app.command()
def lock(
    to: Annotated[Path, output_file("Lock file to write.")],
    problems: LockedProblems,
    sources: RegistryOptions,
    compiling: CompileOptions,
    bits: Bits = ANY,
) -> None:
    """Pin the selected kernel of each problem in a lock file.

    lock selects kernels as `gemmill select` does, and compiles those that are not in a pack or the store. The file
    records each kernel's name, store key, digest of its machine code, and the versions that it was built from. Equal
    problems, kernels and toolchains give equal files, so a diff shows every change. `gemmill warm` gets exactly these
    kernels. Exits with 1 if no kernel supports a problem.

    \b
    Examples:
      gemmill lock large -o kernels.lock
      gemmill lock trace.json --gpu H100 -o kernels.lock
      gemmill lock trace.json --bits invariant -o kernels.lock
      gemmill lock --problem "4096x4096x4096 bf16 tn" --pack quick.pack -o kernels.lock
    """
    if (suite := problems.suite()) is None:
        raise UsageError("no problem is given; pass PROBLEMS, a file or shipped suite, or --problem TEXT")
    refuse_overwriting([to], [*sources.files, *problems.files])
    registry = sources.registry(compiling.store)
    shapes = [*dict.fromkeys(shape.problem for shape in suite.shapes)]
    with output.progress(compiling=len({registry.select(each, bits=bits).name for each in shapes})) as step:
        made = kernel_lock.lock(registry, shapes, compiling.jobs, lambda _: step("compiling"), bits)
    made.write(to)
    output.print_result(
        "lock",
        {"file": str(to), **made.content, "arithmetic": made.arithmetic},
        f"{to}: {len(made.kernels)} kernels for {len(made.problems)} problems on {made.gpu}",
    )


@app.command()
def warm(
    file: Annotated[Path, input_argument("Lock file, from gemmill lock.")],
    compiling: CompileOptions,
    pack: Packs = [],  # noqa: B006 (typer copies it)
) -> None:
    """Fetch or compile the kernels of a lock file.

    warm takes each kernel from a pack, the store or the remote GEMMILL_REMOTE, or compiles it, and keeps it in the
    store. Exits with 1 if a kernel is not bit-identical to the locked one, and prints the difference: NVRTC version,
    headers or options. Also exits with 1 if the store cannot be written.

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
        {
            "items": [{"name": artifact.name, "key": artifact.key, "source": source} for artifact, source in fetched],
            "arithmetic": named.arithmetic,
        },
        f"{len(fetched)} locked kernels: {counts['pack']} from packs, {counts['store']} already in the store, "
        f"{counts['remote']} from the remote, {counts['compiled']} compiled",
    )
