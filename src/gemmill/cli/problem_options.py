"""The options that describe a GEMM, the same for every command."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Annotated, Any, Literal, get_type_hints

import typer

from gemmill.cli import completion
from gemmill.cli.options import shape_suite
from gemmill.library.config.model import BatchingName, MajorCD
from gemmill.library.dtypes import DTYPES
from gemmill.library.errors import ProblemError
from gemmill.library.input import problem_words
from gemmill.library.problem import MAX_EXTENT, GemmProblem
from gemmill.library.wording import one_of


def _option(kind: Any, *names: str, **more: Any) -> Any:
    return Annotated[kind, typer.Option(*names, **more)]


def _type(says: str, *names: str) -> Any:
    return _option(str | None, *names, help=says, metavar="TYPE", autocompletion=completion.dtypes)


_FORMATS: dict[str, Any] = {
    "a_dtype": _type(f"Type of A: {one_of([*DTYPES])}. Default: bf16.", "--a-dtype", "--a"),
    "a_major": _option(Literal["k", "mn", "m", "any"] | None, help="Contiguous extent of A: k, or m (mn). Default: k."),
    "b_dtype": _type("Type of B; default: A's.", "--b-dtype", "--b"),
    "b_major": _option(Literal["k", "mn", "n", "any"] | None, help="Contiguous extent of B: k, or n (mn). Default: k."),
    "accumulator": _type("Type of sums; default: f32, s32 or f64, by the wider of A's and B's."),
    "promote": _option(bool, "--promote", "--promoted", help="Move fp8 sums to f32 registers now and then."),
    "block_scaled": _option(bool, "--block-scaled", help="Scale A in blocks of 1x128 and B of 128x128; promotes."),
    "a_scale": _option(
        str | None, metavar="BLOCK", help="Elements that share a scale of A, such as 1x128; 1x128e8: of ue8m0."
    ),
    "b_scale": _option(str | None, metavar="BLOCK", help="The same of B: 128x128, 128x128e8; of narrow weights 1x128."),
    "a_zero": _option(bool, "--a-zero", help="Narrow A has zero points beside its scales."),
    "b_zero": _option(bool, "--b-zero", help="Narrow B has zero points beside its scales."),
    "c_dtype": _type("Type of C; without it there is no C.", "--c-dtype", "--c"),
    "c_major": _option(MajorCD | None, help="Contiguous extent of C; default: D's."),
    "d_dtype": _type("Type of D; default: as wide as A and B; of fp8 bf16, of integers s32.", "--d-dtype", "--d"),
    "d_major": _option(MajorCD | None, help="Contiguous extent of D. Default: n."),
    "batching": _option(BatchingName | None, help="How the matrices of a batch are found. Default: strided."),
    "groups": _option(int | None, min=1, metavar="N", help="Groups of rows, slots or matrices, with --batching."),
    "epilogue": _option(str | None, metavar="TEXT", help="What is done to each sum: 'd = silu(acc + bias[n])'."),
}
"""Options that say what a problem is beside its extents."""
_OPTIONS: dict[str, Any] = {
    "mnkl": _option(list[str], metavar="M,N,K[,L]", help="Extents M,N,K and batch L (1 if left out)."),
    "problem": _option(
        str | None, metavar="TEXT", help="All in a line, as commands print it: '4096x7168x2048 e4m3 tn grouped=64'."
    ),
    **_FORMATS,
}


_SHAPES = _option(
    str | None,
    metavar="FILE",
    help="Many problems: a suite, by file or name, or another tool's list (gemmill shapes).",
    autocompletion=completion.suites,
)


_DEFAULTS: dict[Any, Any] = {bool: False, list[str]: []}
"""What options of a kind are where they are not given; None for others."""


def takes_problem(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that describe a GEMM, in place of its parameter ``problem``."""
    return _takes(command, "problem", _problem, _OPTIONS)


def takes_problems(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that describe one GEMM or many, in place of its parameter ``problems``."""
    return _takes(command, "problems", _problems, {**_OPTIONS, "shapes": _SHAPES})


def _takes(
    command: Callable[..., None], name: str, make: Callable[..., object], options: Mapping[str, Any]
) -> Callable[..., None]:
    @wraps(command)
    def with_options(**arguments: Any) -> None:
        described = {option: arguments.pop(option) for option in options}
        command(**{name: make(**described)}, **arguments)

    hints = get_type_hints(command, include_extras=True)
    own = [
        parameter.replace(annotation=hints[parameter.name], kind=parameter.KEYWORD_ONLY)
        for parameter in inspect.signature(command).parameters.values()
        if parameter.name != name
    ]
    given = [
        inspect.Parameter(
            option, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=_DEFAULTS.get(kind.__origin__)
        )
        for option, kind in options.items()
    ]
    with_options.__signature__ = inspect.Signature([*given, *own])  # type: ignore[attr-defined]
    with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in (*given, *own)}
    return with_options


def extents(text: str) -> dict[str, int]:
    """M, N, K and the batch, if it is there, of M,N,K[,L]."""
    parts = text.split(",")
    if len(parts) not in (3, 4) or not all(part.strip().isdecimal() for part in parts):
        raise typer.BadParameter(f"{text!r} is not M,N,K or M,N,K,L, such as 4096,4096,4096,1")
    if too_large := [part.strip() for part in parts if len(part.strip()) > 10 or int(part) > MAX_EXTENT]:
        raise typer.BadParameter(f"{', '.join(too_large)}: extents are at most {MAX_EXTENT:,}; split the problem")
    return dict(zip(("m", "n", "k", "batch"), map(int, parts), strict=False))


def _problem(*, mnkl: list[str], **options: Any) -> GemmProblem:
    """The problem of the options."""
    if len(mnkl) > 1:
        raise typer.BadParameter(f"--mnkl is given {len(mnkl)} times, and run takes one problem")
    return _problems(shapes=None, mnkl=mnkl, **options)[0]


def _problems(*, shapes: str | None, mnkl: list[str], problem: str | None, **options: Any) -> list[GemmProblem]:
    """The problems of the options, or those of the shapes, of which options say what is to be otherwise."""
    given = [name for name, value in (("--mnkl", mnkl), ("--problem", problem), ("--shapes", shapes)) if value]
    if not given:
        raise typer.BadParameter("no problem is given: --mnkl M,N,K[,L] or --problem TEXT says what is multiplied")
    if len(given) > 1:
        raise typer.BadParameter(f"{' and '.join(given)} both say what is multiplied: give one")
    try:
        if shapes:
            words = [shape.problem.to_dict() for shape in shape_suite(shapes).shapes]
        else:
            words = [problem_words.read_text(problem)] if problem else [*map(extents, mnkl)]
        return [_made(each, **options) for each in words]
    except ProblemError as error:
        raise typer.BadParameter(str(error)) from None


def _made(words: Mapping[str, Any], *, promote: bool, block_scaled: bool, **options: Any) -> GemmProblem:
    """The problem of keywords, and of options that stand for them."""
    for x in "ab":
        if options.pop(f"{x}_zero"):
            if not options[f"{x}_scale"]:
                raise typer.BadParameter(f"--{x}-zero needs --{x}-scale: zero points are of its groups")
            options[f"{x}_scale"] += "z"
    if block_scaled:
        options |= {"a_scale": "1x128", "b_scale": "128x128"}
    options["promote"] = 4 if promote else None
    said = {name: value for name, value in options.items() if value is not None}
    described = GemmProblem(**problem_words.merged(words, said))
    for option, given in (("--promote", promote), ("--block-scaled", block_scaled)):
        if given and not {described.a_dtype, described.b_dtype} <= {"e4m3", "e5m2"}:
            raise typer.BadParameter(f"{option} is for fp8: A and B must be e4m3 or e5m2")
    return described
