"""The options that describe a GEMM, the same for every command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

import typer

from gemmill.cli import completion
from gemmill.cli.options import Shapes, numbers, shape_suite
from gemmill.cli.output import UsageError, usage
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
    """One GEMM problem: extents or one line of text, and options for its formats."""

    mnkl: Annotated[
        list[str],
        typer.Option(
            metavar="M,N,K[,L]", help="Extents M, N, K in elements, and batch L. Default of L: 1. Also MxNxK[xL]."
        ),
    ] = field(default_factory=list)
    problem: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="Whole problem in one line, as commands print it: '4096x7168x2048 e4m3 tn grouped=64'."
        ),
    ] = None
    a_dtype: Annotated[str | None, _type(f"Type of A: {one_of([*DTYPES])}. Default: bf16.", "--a-dtype", "--a")] = None
    a_major: Annotated[
        Literal["k", "mn", "m", "any"] | None,
        typer.Option(help="Contiguous dimension of A: k, or m (also mn). Default: k."),
    ] = None
    b_dtype: Annotated[str | None, _type("Type of B. Default: type of A.", "--b-dtype", "--b")] = None
    b_major: Annotated[
        Literal["k", "mn", "n", "any"] | None,
        typer.Option(help="Contiguous dimension of B: k, or n (also mn). Default: k."),
    ] = None
    accumulator: Annotated[
        str | None, _type("Accumulator type. Default: f32, s32 or f64, from the wider type of A and B.")
    ] = None
    promote: Annotated[
        bool,
        typer.Option("--promote", "--promoted", help="Two-level accumulation: add fp8 partial sums in f32 registers."),
    ] = False
    block_scaled: Annotated[
        bool,
        typer.Option(
            "--block-scaled", help="Scale A in blocks of 1x128 and B in blocks of 128x128; implies --promote."
        ),
    ] = False
    a_scale: Annotated[
        str | None,
        typer.Option(
            metavar="BLOCK",
            autocompletion=completion.scale_blocks,
            help="Block of A elements that share an f32 scale, such as 1x128. 1x128e8: ue8m0 scale.",
        ),
    ] = None
    b_scale: Annotated[
        str | None,
        typer.Option(
            metavar="BLOCK",
            autocompletion=completion.scale_blocks,
            help="Block of B elements that share a scale: 128x128, 128x128e8; 1x128 for narrow weights.",
        ),
    ] = None
    a_zero: Annotated[bool, typer.Option("--a-zero", help="Narrow weights A have a zero point for each scale.")] = False
    b_zero: Annotated[bool, typer.Option("--b-zero", help="Narrow weights B have a zero point for each scale.")] = False
    c_dtype: Annotated[str | None, _type("Type of C. Default: no C.", "--c-dtype", "--c")] = None
    c_major: Annotated[MajorCD | None, typer.Option(help="Contiguous dimension of C. Default: that of D.")] = None
    d_dtype: Annotated[
        str | None,
        _type("Type of D. Default: the wider of A and B; bf16 for fp8, s32 for integers.", "--d-dtype", "--d"),
    ] = None
    d_major: Annotated[MajorCD | None, typer.Option(help="Contiguous dimension of D. Default: n.")] = None
    batching: Annotated[
        BatchingName | None, typer.Option(help="Memory layout of a batch or of groups. Default: strided.")
    ] = None
    groups: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Number of groups or matrices of --batching.")
    ] = None
    epilogue: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Expression for each element of D, such as 'd = silu(acc + bias[n])'."),
    ] = None

    def single(self) -> GemmProblem:
        """The problem of the options, for a command that takes one problem."""
        if len(self.mnkl) > 1:
            raise UsageError(
                f"--mnkl is given {len(self.mnkl)} times; pass it once, because the command takes one problem"
            )
        return self.all()[0]

    def all(self, shapes: str | None = None) -> list[GemmProblem]:
        """The problems of the options or of a suite; options override the text or the suite."""
        return [problem for problem, _ in self.with_sizes(shapes)]

    def with_sizes(self, shapes: str | None = None) -> list[tuple[GemmProblem, str | None]]:
        """The problems of :meth:`all`, each with the sizes of its groups in the suite; None without a suite."""
        sources = (("--mnkl", self.mnkl), ("--problem", self.problem), ("--shapes", shapes))
        named = [name for name, value in sources if value]
        if not named:
            raise UsageError("no problem is given; pass --mnkl M,N,K[,L] or --problem TEXT")
        if len(named) > 1:
            raise UsageError(f"both {' and '.join(named)} are given; pass only one")
        with usage(ProblemError):
            problem_words.check_epilogue(self.epilogue)
            if shapes:
                return [(self._problem(each.problem.to_dict()), each.sizes) for each in shape_suite(shapes).shapes]
            words = [problem_words.read_text(self.problem)] if self.problem else [*map(extents, self.mnkl)]
            problem_words.check_epilogue(words[0].get("epilogue"))
            return [(self._problem(keywords), None) for keywords in words]

    def _problem(self, words: Mapping[str, Any]) -> GemmProblem:
        """The problem of these keywords, overridden by the options."""
        options: dict[str, Any] = {option.name: getattr(self, option.name) for option in fields(ProblemOptions)[2:]}
        promote, block_scaled = options.pop("promote"), options.pop("block_scaled")
        for x in "ab":
            if options.pop(f"{x}_zero"):
                if not options[f"{x}_scale"]:
                    raise UsageError(f"--{x}-zero needs --{x}-scale: each scale block has one zero point")
                options[f"{x}_scale"] += "z"
        if block_scaled:
            options |= {"a_scale": "1x128", "b_scale": "128x128"}
        options["promote"] = 4 if promote else None
        problem = GemmProblem(
            **problem_words.merged(words, {name: value for name, value in options.items() if value is not None})
        )
        for option, is_given in (("--promote", promote), ("--block-scaled", block_scaled)):
            if is_given and not {problem.a_dtype, problem.b_dtype} <= {*FP8}:
                types = f"A is {problem.a_dtype} and B is {problem.b_dtype}"
                raise UsageError(f"{option} is for fp8, but {types}; both must be {one_of(FP8)}")
        return problem


@dataclass(frozen=True)
class ProblemsOptions(ProblemOptions):
    """One or many GEMM problems."""

    shapes: Shapes = None


def extents(text: str) -> dict[str, int]:
    """The extents m, n, k, and batch if given, of the text M,N,K[,L] or MxNxK[xL]."""
    parts = numbers(text)
    if len(parts) not in (3, 4):
        raise UsageError(
            f"--mnkl is {text!r:.80}; it must be M,N,K or M,N,K,L, such as 4096,4096,4096,1 or 4096x4096x4096"
        )
    if too_large := [part for part in parts if len(part) > 10 or int(part) > MAX_EXTENT]:
        shown = f"{', '.join(too_large):.80}"
        raise UsageError(f"--mnkl has {shown}; an extent must be at most {MAX_EXTENT:,}; split the problem")
    return dict(zip(("m", "n", "k", "batch"), map(int, parts), strict=False))
