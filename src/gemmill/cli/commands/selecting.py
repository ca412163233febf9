"""select, shapes: the best kernel for a problem, and the problems in a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from math import isnan
from typing import Annotated, Any

import typer

from gemmill.cli import completion, output
from gemmill.cli.app import app
from gemmill.cli.options import Bits, Objective, RegistryOptions, argument, shape_suite
from gemmill.cli.output import Status, UsageError
from gemmill.cli.problem_options import ProblemsOptions
from gemmill.library.arithmetic import arithmetic_named
from gemmill.library.bits import ANY, INVARIANT
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.errors import DeviceError, UnsupportedProblemError
from gemmill.library.problem import MAX_EXTENT, GemmProblem
from gemmill.profiler.imports.file_formats import FORMATS, Given
from gemmill.profiler.sweep.shape_suites import load_shapes, shipped_suites
from gemmill.runtime import driver
from gemmill.runtime.registry import Registry
from gemmill.runtime.select.choice import RUNNERS_UP, Choice

Top = Annotated[
    int,
    typer.Option(min=1, max=1 + RUNNERS_UP, metavar="N", help="Number of kernels to print, best first."),
]


@dataclass(frozen=True)
class SelectionOptions:
    """Requirements on the selected kernel."""

    bits: Bits = ANY
    batch_invariant: Annotated[
        bool, typer.Option("--batch-invariant", hidden=True, help="Another name for --bits invariant.")
    ] = False
    quick: Annotated[bool, typer.Option("--quick", hidden=True, help="Has no effect.")] = False
    objective: Objective = "sustained"


@app.command()
def select(
    options: ProblemsOptions,
    sources: RegistryOptions,
    how: SelectionOptions,
    top: Top = 1,
    why: Annotated[
        bool,
        typer.Option(
            "--why", help="Print why the kernel is the fastest, for which GPU, and what slows the problem down."
        ),
    ] = False,
) -> None:
    """Select the fastest kernel for a problem, or for many.

    The selector uses measurements where there are some, else the model of the GPU. It needs no GPU. With --shapes,
    select prints these lines for each problem. Exits with 1 if no kernel supports a problem.

    \b
    Examples:
      gemmill select --mnkl 4096,4096,4096,1 --why
      gemmill select --mnkl 128,8192,8192 --a-dtype f16 --b-major n --top 5
      gemmill select --mnkl 4096,4096,4096,1 --records records.jsonl --json
      gemmill select --mnkl 16,4096,4096 --bits invariant --why
      gemmill select --mnkl 8192,8192,8192 --objective burst --why
      gemmill select --mnkl 16384,8192,28672 --gpu H100
      gemmill select --mnkl 4096,4096,4096 --model models --why
      gemmill select --problem "8192x4096x7168 e4m3 tn grouped=64 a_scale=1x128 b_scale=128x128"
      gemmill select --mnkl 64,4096,4096 --b u4 --b-scale 1x128 --b-zero --epilogue "d = silu(acc)"
      gemmill select --shapes trace.json --json
      gemmill select --shapes large --top 3
    """
    problems = options.all(options.shapes)
    if how.quick:
        output.complain("--quick has no effect; omit it")
    if how.batch_invariant and how.bits not in (ANY, INVARIANT):
        raise UsageError(f"--batch-invariant means --bits invariant, but --bits is {how.bits}; omit --batch-invariant")
    bits = INVARIANT if how.batch_invariant else how.bits
    registry = sources.registry()

    def chosen(problem: GemmProblem) -> Choice:
        return registry.select(problem, None, bits, objective=how.objective)

    gpu = _gpu(registry, is_given=sources.gpu is not None) if why else None
    if len(problems) > 1:
        _select_many(problems, chosen, top, gpu)
        return
    [problem] = problems
    choice = chosen(problem)
    if output.is_json():
        output.print_json("select", _report(problem, choice, top))
        return
    if top == 1:
        typer.echo(choice.kernel)
    else:
        output.print_table(_COLUMNS, _rows(problem, choice, top))
    if gpu:
        typer.echo(f"{gpu}\n{choice.why}")


_COLUMNS = ("kernel", "arithmetic", ">us", ">TFLOP/s")


def _rows(problem: GemmProblem, choice: Choice, top: int) -> list[tuple[object, str, str, str]]:
    """The best kernels for a problem with their arithmetic, times and rates."""
    return [
        (
            kernel,
            arithmetic_named(kernel) or "",
            "" if us is None else f"{us:.1f}",
            f"{problem.expected_flops / us / 1e6:.0f}" if us else "",
        )
        for kernel, us in _ranked(choice, top)
    ]


def _gpu(registry: Registry, *, is_given: bool) -> str:
    """The GPU that a registry selects kernels for, and where that comes from."""
    if is_given:
        return f"GPU: {registry.gpu.name}, from --gpu"
    try:
        driver.device_name(0)
        found = "the GPU of this machine"
    except DeviceError:
        found = "assumed, because no GPU was found"
    return f"GPU: {registry.gpu.name}, {found}; --gpu selects another"


def _select_many(
    problems: Sequence[GemmProblem], chosen: Callable[[GemmProblem], Choice], top: int, gpu: str | None
) -> None:
    """Print the kernels of each problem and, with a GPU, the reasons; exit with 1 if no kernel supports one of them."""
    choices: list[Choice | UnsupportedProblemError] = []
    for problem in problems:
        try:
            choices.append(chosen(problem))
        except UnsupportedProblemError as error:
            choices.append(error)
    failed = [error for error in choices if isinstance(error, UnsupportedProblemError)]
    if output.is_json():
        output.print_json(
            "select",
            [
                _report(problem, choice, top)
                if isinstance(choice, Choice)
                else {"problem": asdict(problem), "text": str(problem), "error": str(choice)}
                for problem, choice in zip(problems, choices, strict=True)
            ],
        )
    else:
        found = [(p, choice) for p, choice in zip(problems, choices, strict=True) if isinstance(choice, Choice)]
        if gpu:
            typer.echo(gpu)
            for problem, choice in found:
                output.print_table(_COLUMNS, _rows(problem, choice, top), title=f"\n{problem}")
                typer.echo(choice.why)
        elif found:
            rows = [(problem, *row) for problem, choice in found for row in _rows(problem, choice, top)]
            output.print_table(("problem", *_COLUMNS), rows)
        for refusal in failed:
            output.complain(f"error: {refusal}")
    if failed:
        raise typer.Exit(Status.WRONG)


def _ranked(choice: Choice, top: int) -> list[tuple[SlicedKernel, float | None]]:
    ranked = ((choice.kernel, choice.predicted_us), *choice.runners_up)
    return [(kernel, None if isnan(us) else us) for kernel, us in ranked][:top]


def _report(problem: GemmProblem, choice: Choice, top: int) -> dict[str, Any]:
    report = {key: getattr(choice, key) for key in ("name", "slices", "reason", "source", "swap_ab")}
    report |= {"arithmetic": str(choice.arithmetic), "required": choice.required and str(choice.required)}
    ranking = [
        {**kernel._asdict(), "arithmetic": arithmetic_named(kernel), "us": us} for kernel, us in _ranked(choice, top)
    ]
    slow = choice.slow_path and {
        "factor": choice.slow_path.factor,
        "us": choice.slow_path.us,
        "advice": choice.slow_path.advice,
    }
    return {"problem": asdict(problem), "text": str(problem), **report, "ranking": ranking, "slow_path": slow}


def _extents(option: str, text: str | None) -> tuple[int, ...]:
    parts = text.split(",") if text else []
    if not all(part.strip().isdecimal() and len(part) < 12 and 1 <= int(part) <= MAX_EXTENT for part in parts):
        raise UsageError(f"{option} is {text!r:.80}; it must be a list of extents such as 1,16,4096")
    return tuple(map(int, parts))


_FORMATS = "\n".join(f"  - {form.name}: {form.sign}" for form in FORMATS)
_SHAPES_HELP = f"""Print the problems in a file, as a suite in YAML.

shapes lists on stderr what it leaves out and what it assumes. FILE is a suite, a folder of files, or one of:

\b
{_FORMATS}

Without FILE, shapes lists the shipped suites.

\b
Examples:
  gemmill shapes
  gemmill shapes moe
  gemmill shapes trace.json > shapes.yaml
  gemmill shapes weight_shapes.py --m 1,16,256,4096
  gemmill shapes cublaslt.log --json
"""


@app.command(help=_SHAPES_HELP)
def shapes(
    file: Annotated[
        str | None,
        argument(
            "FILE",
            "Suite (file or shipped name), or another tool's file. Without it: list the shipped suites.",
            completion.suites,
        ),
    ] = None,
    m: Annotated[str | None, typer.Option(metavar="M,...", help="Values of M for files without M.")] = None,
    k: Annotated[str | None, typer.Option(metavar="K,...", help="Values of K for files without K.")] = None,
    top_k: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=1024, help="Experts of each token, for vLLM's configs.")
    ] = None,
) -> None:
    """Print the problems in a file, as a suite in YAML, or list the shipped suites."""
    if file is None:
        _list_suites()
        return
    suite = shape_suite(file, Given(_extents("--m", m), _extents("--k", k), top_k))
    rows = [shape.words | {"count": suite.counts.get(shape, 1)} for shape in suite.shapes]
    report = {"name": suite.name, "format": suite.format, "shapes": rows}
    report |= {"left_out": suite.left_out, "assumed": suite.assumed}
    output.print_result("shapes", report, suite.as_yaml())


def _list_suites() -> None:
    """Print the shipped suites: the number of shapes, and the comment at the top of each file."""
    suites = []
    for name, path in shipped_suites().items():
        comment = takewhile(lambda line: line.startswith("#"), path.read_text(encoding="utf-8").splitlines())
        says = " ".join(line.lstrip("# ") for line in comment)
        suites.append({"name": name, "shapes": len(load_shapes(path).shapes), "says": says})
    rows = [
        (name, str(count), str(says).partition(". ")[0].removesuffix("."))
        for name, count, says in map(dict.values, suites)
    ]
    output.print_result("suites", suites, lambda: output.print_table(("suite", ">shapes", "content"), rows))
