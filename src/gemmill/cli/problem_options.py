"""The options that describe a GEMM, the same for every command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

import typer

from gemmill.cli import completion
from gemmill.cli.options import Shapes, shape_suite
from gemmill.library.config.model import BatchingName, MajorCD
from gemmill.library.dtypes import DTYPES, FP8
from gemmill.library.errors import ProblemError
from gemmill.library.input import problem_words
from gemmill.library.problem import MAX_EXTENT, GemmProblem
from gemmill.library.wording import one_of


def _type(says: str, *names: str) -> Any:
    return typer.Option(*names, help=says, metavar="TYPE", autocompletion=completion.dtypes)


@dataclass(frozen=True)
class ProblemOptions:
    """A GEMM: its extents, or a line that says all, and what else it is."""

    mnkl: Annotated[list[str], typer.Option(metavar="M,N,K[,L]", help="Extents M,N,K and batch L (1 if left out).")] = (
        field(default_factory=list)
    )
    problem: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="All in a line, as commands print it: '4096x7168x2048 e4m3 tn grouped=64'."),
    ] = None
    a_dtype: Annotated[str | None, _type(f"Type of A: {one_of([*DTYPES])}. Default: bf16.", "--a-dtype", "--a")] = None
    a_major: Annotated[
        Literal["k", "mn", "m", "any"] | None, typer.Option(help="Contiguous extent of A: k, or m (mn). Default: k.")
    ] = None
    b_dtype: Annotated[str | None, _type("Type of B; default: A's.", "--b-dtype", "--b")] = None
    b_major: Annotated[
        Literal["k", "mn", "n", "any"] | None, typer.Option(help="Contiguous extent of B: k, or n (mn). Default: k.")
    ] = None
    accumulator: Annotated[
        str | None, _type("Type of sums; default: f32, s32 or f64, by the wider of A's and B's.")
    ] = None
    promote: Annotated[
        bool, typer.Option("--promote", "--promoted", help="Move fp8 sums to f32 registers now and then.")
    ] = False
    block_scaled: Annotated[
        bool, typer.Option("--block-scaled", help="Scale A in blocks of 1x128 and B of 128x128; promotes.")
    ] = False
    a_scale: Annotated[
        str | None,
        typer.Option(metavar="BLOCK", help="Elements that share a scale of A, such as 1x128; 1x128e8: of ue8m0."),
    ] = None
    b_scale: Annotated[
        str | None,
        typer.Option(metavar="BLOCK", help="The same of B: 128x128, 128x128e8; of narrow weights 1x128."),
    ] = None
    a_zero: Annotated[bool, typer.Option("--a-zero", help="Narrow A has zero points beside its scales.")] = False
    b_zero: Annotated[bool, typer.Option("--b-zero", help="Narrow B has zero points beside its scales.")] = False
    c_dtype: Annotated[str | None, _type("Type of C; without it there is no C.", "--c-dtype", "--c")] = None
    c_major: Annotated[MajorCD | None, typer.Option(help="Contiguous extent of C; default: D's.")] = None
    d_dtype: Annotated[
        str | None,
        _type("Type of D; default: as wide as A and B; of fp8 bf16, of integers s32.", "--d-dtype", "--d"),
    ] = None
    d_major: Annotated[MajorCD | None, typer.Option(help="Contiguous extent of D. Default: n.")] = None
    batching: Annotated[
        BatchingName | None, typer.Option(help="How the matrices of a batch are found. Default: strided.")
    ] = None
    groups: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Groups of rows, slots or matrices, with --batching.")
    ] = None
    epilogue: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What is done to each sum: 'd = silu(acc + bias[n])'.")
    ] = None

    def single(self) -> GemmProblem:
        """The one problem of the options."""
        if len(self.mnkl) > 1:
            raise typer.BadParameter(f"--mnkl is given {len(self.mnkl)} times, and run takes one problem")
        return self.all()[0]

    def all(self, shapes: str | None = None) -> list[GemmProblem]:
        """The problems of the options, or those of shapes, of which options say what is to be otherwise."""
        sources = (("--mnkl", self.mnkl), ("--problem", self.problem), ("--shapes", shapes))
        named = [name for name, value in sources if value]
        if not named:
            raise typer.BadParameter("no problem is given: --mnkl M,N,K[,L] or --problem TEXT says what is multiplied")
        if len(named) > 1:
            raise typer.BadParameter(f"{' and '.join(named)} both say what is multiplied: give one")
        try:
            if shapes:
                words = [shape.problem.to_dict() for shape in shape_suite(shapes).shapes]
            else:
                words = [problem_words.read_text(self.problem)] if self.problem else [*map(extents, self.mnkl)]
            return [self._problem(keywords) for keywords in words]
        except ProblemError as error:
            raise typer.BadParameter(str(error)) from None

    def _problem(self, words: Mapping[str, Any]) -> GemmProblem:
        """The problem of keywords, and of options that stand for them."""
        options: dict[str, Any] = {option.name: getattr(self, option.name) for option in fields(ProblemOptions)[2:]}
        promote, block_scaled = options.pop("promote"), options.pop("block_scaled")
        for x in "ab":
            if options.pop(f"{x}_zero"):
                if not options[f"{x}_scale"]:
                    raise typer.BadParameter(f"--{x}-zero needs --{x}-scale: zero points are of its groups")
                options[f"{x}_scale"] += "z"
        if block_scaled:
            options |= {"a_scale": "1x128", "b_scale": "128x128"}
        options["promote"] = 4 if promote else None
        problem = GemmProblem(
            **problem_words.merged(words, {name: value for name, value in options.items() if value is not None})
        )
        for option, is_given in (("--promote", promote), ("--block-scaled", block_scaled)):
            if is_given and not {problem.a_dtype, problem.b_dtype} <= {*FP8}:
                raise typer.BadParameter(f"{option} is for fp8: A and B must be {one_of(FP8)}")
        return problem


@dataclass(frozen=True)
class ProblemsOptions(ProblemOptions):
    """One GEMM or many."""

    shapes: Shapes = None


def extents(text: str) -> dict[str, int]:
    """M, N, K and the batch, if it is there, of M,N,K[,L]."""
    parts = text.split(",")
    if len(parts) not in (3, 4) or not all(part.strip().isdecimal() for part in parts):
        raise typer.BadParameter(f"{text!r} is not M,N,K or M,N,K,L, such as 4096,4096,4096,1")
    if too_large := [part.strip() for part in parts if len(part.strip()) > 10 or int(part) > MAX_EXTENT]:
        raise typer.BadParameter(f"{', '.join(too_large)}: extents are at most {MAX_EXTENT:,}; split the problem")
    return dict(zip(("m", "n", "k", "batch"), map(int, parts), strict=False))
