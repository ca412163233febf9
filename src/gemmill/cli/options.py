"""Arguments and options that several commands share, and what they are turned into."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from gemmill.cli import completion, output
from gemmill.library.arch import Gpu, gpu_named
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import parse_name
from gemmill.library.errors import ExpressionError, ProblemError, UnsupportedProblemError
from gemmill.library.input.group_sizes import checked_sizes
from gemmill.library.manifest import expression
from gemmill.library.manifest.kernelset import KernelSet
from gemmill.library.manifest.load import load_manifest, shipped_manifest, shipped_manifests
from gemmill.library.problem import GemmProblem, Regime, upconverts_a
from gemmill.profiler.sweep.shape_suites import Shape, ShapeSuite, load_shapes, shipped_suites
from gemmill.profiler.sweep.units import refuse_nested, unserved
from gemmill.runtime.registry import Registry


def argument(metavar: str, says: str, complete: Callable[[str], list[str]]) -> Any:
    """An argument that shells complete."""
    return typer.Argument(metavar=metavar, help=says, autocompletion=complete)


def input_argument(says: str, metavar: str = "FILE") -> Any:
    """An argument of files that must be there."""
    return typer.Argument(metavar=metavar, exists=True, dir_okay=False, help=says or None)


def input_file(says: str, *names: str, metavar: str = "FILE") -> Any:
    """An option of a file that must be there."""
    return typer.Option(*names, metavar=metavar, exists=True, dir_okay=False, help=says)


def output_file(says: str, metavar: str | None = None, *names: str) -> Any:
    """An option of a file to write; by default -o."""
    return typer.Option(*(names or ("--output", "-o")), metavar=metavar, dir_okay=False, help=says)


def _filter(text: str | None) -> str | None:
    if text is not None:
        try:
            expression.parse(text)
        except ExpressionError as error:
            raise typer.BadParameter(f"{text!r}, column {error.column + 1}: {error}") from None
    return text


Manifest = Annotated[
    str,
    argument("MANIFEST", "A manifest file, or the name of one that ships.", completion.manifests),
]
Kernel = Annotated[
    str,
    argument("KERNEL", "A kernel name, or a manifest with exactly one config.", completion.kernels),
]
Page = Annotated[
    str,
    argument(
        "KERNEL", "A kernel name, a manifest with exactly one config, or an edited page, FILE.cu.", completion.kernels
    ),
]


def _folder(text: str) -> Path:
    if not text:
        raise typer.BadParameter("is empty; name a folder, or leave the option out")
    return Path(text)


StorePath = Annotated[
    Path | None,
    typer.Option("--store", metavar="FOLDER", parser=_folder, help="Folder of compiled kernels; default: the user's."),
]


def _gpu(text: str) -> Gpu:
    """The row of library/arch.py of this name, whatever the case, with or without the maker's."""
    try:
        return gpu_named(text)
    except LookupError as error:
        raise typer.BadParameter(error.args[0]) from None


Objective = Annotated[
    Regime, typer.Option(help="Fastest in a program that runs for seconds, or in a lone launch at full clock.")
]
OnGpu = Annotated[
    Gpu | None,
    typer.Option(
        "--gpu",
        metavar="NAME",
        parser=_gpu,
        autocompletion=completion.gpus,
        help="Choose for this GPU, such as H200 or H100-PCIe; default: that of this machine, or an H200.",
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        "-j",
        min=1,
        metavar="N",
        help="Processes that compile; default: one a core, fewer with little memory.",
    ),
]
Manifests = Annotated[
    list[str],
    typer.Option(
        "--manifest",
        metavar="MANIFEST",
        help="Consider the kernels of this manifest; may be repeated.",
        autocompletion=completion.manifests,
    ),
]
Packs = Annotated[
    list[Path],
    input_file("Consider the kernels of this pack; may be repeated.", "--pack"),
]
Sign = Annotated[
    list[Path],
    input_file("Sign with this private key (gemmill key new); may be repeated.", "--sign", metavar="KEY"),
]
RecordsFiles = Annotated[list[Path], input_argument("", "RECORDS...")]
Records = Annotated[
    list[Path],
    input_file("Prefer these measurements to the model.", "--records"),
]


def _sizes(text: str) -> str:
    if not text:
        raise typer.BadParameter("is empty; it takes balanced, zipf:S or a list of sizes")
    return text


Sizes = Annotated[
    str | None,
    typer.Option(
        "--sizes",
        metavar="SIZES",
        parser=_sizes,
        help="Sizes of groups: balanced, zipf:1.1, or 128,64,0,64. Default: balanced.",
    ),
]


def _is_file(source: str) -> bool:
    """Whether this names a file, or a pipe that holds what one would."""
    return os.path.exists(source) and not os.path.isdir(source)


def refuse_overwriting(outputs: Iterable[Path | None], inputs: Iterable[Path | str] = ()) -> None:
    """Refuse outputs that are each other, or what is read."""
    taken = {Path(source).resolve() for source in inputs if _is_file(str(source))}
    for path in filter(None, outputs):
        if path.resolve() in taken and (path.is_file() or not path.exists()):
            raise typer.BadParameter(f"{path} is read by this command, or is another of its outputs: name another file")
        taken.add(path.resolve())


def is_manifest(source: str) -> bool:
    """Whether a MANIFEST argument means a file, or one that ships."""
    return _is_file(source) or source in shipped_manifests()


def manifest_path(source: str) -> Path:
    """The file that a MANIFEST argument means."""
    if _is_file(source):
        return Path(source)
    if source in shipped_manifests():
        return shipped_manifest(source)
    raise typer.BadParameter(
        f"{source!r} is neither a file nor a manifest that ships; these do: {', '.join(shipped_manifests())}"
    )


def kernel_set(source: str) -> KernelSet:
    """The kernel set that a MANIFEST argument means."""
    return load_manifest(manifest_path(source))


def kernel(source: str) -> GemmConfig:
    """The config that a KERNEL argument means; it may break a legality rule."""
    if not is_manifest(source):
        if "/" in source or source.endswith((".yaml", ".yml")):
            what = f"{source!r} is a folder, and a manifest is a file" if Path(source).is_dir() else None
            raise typer.BadParameter(what or f"there is no file {source!r}")
        return parse_name(source)
    configs = list(itertools.islice(load_manifest(manifest_path(source), legal=False).expand(legal=False), 2))
    if len(configs) > 1:
        raise typer.BadParameter(f"{source} holds more than one config; name one (gemmill list {source})")
    return configs[0]


def read_problem(text: str) -> GemmProblem:
    """The problem of a line."""
    try:
        return GemmProblem.from_text(text)
    except ProblemError as error:
        raise typer.BadParameter(str(error)) from None


def measurable(problem: GemmProblem) -> GemmProblem:
    """The same work on operands that measuring makes, with narrow weights as A; ProblemError where it makes none."""
    refuse_nested(problem)
    problem = problem.with_narrow_a
    return problem.transposed if upconverts_a(problem.b_dtype, problem.a_dtype) else problem


_MOST_SHOWN = 3
"""Things left out of a list that are printed; `gemmill shapes FILE --json` prints all."""


def shape_suite(source: str, m: Sequence[int] = (), k: Sequence[int] = ()) -> ShapeSuite:
    """The shapes of a file, or of the suite that ships under a name; what else a file has is complained of."""
    if _is_file(source):
        suite = load_shapes(Path(source), m=m, k=k)
        for says in suite.left_out[:_MOST_SHOWN]:
            output.complain(f"left out: {says}")
        if (more := len(suite.left_out) - _MOST_SHOWN) > 0:
            output.complain(f"left out: {more} things more; all of them: gemmill shapes {source} --json")
        return suite
    shipped = shipped_suites()
    if source not in shipped:
        raise typer.BadParameter(f"{source!r} is neither a file nor a suite that ships; these do: {', '.join(shipped)}")
    return load_shapes(shipped[source])


Shapes = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Many problems: a suite, by file or name, or another tool's list (gemmill shapes).",
        autocompletion=completion.suites,
    ),
]
ProblemLine = Annotated[str | None, typer.Option(metavar="TEXT", help="A problem in a line: '4096x7168x2048 bf16 tn'.")]


@dataclass(frozen=True)
class SuiteOptions:
    """Problems of a suite, or in lines."""

    shapes: Shapes = None
    problem: Annotated[
        list[str],
        typer.Option(
            metavar="TEXT", help="A problem in a line, in place of --shapes: '4096x7168x2048 bf16 tn'. Repeats."
        ),
    ] = field(default_factory=list)

    def suite(self) -> ShapeSuite | None:
        """The shapes of the file, or those of the lines, each once with a count; None where neither is given."""
        if self.shapes is not None and self.problem:
            raise typer.BadParameter("--shapes and --problem both say what is multiplied: give one")
        if not self.problem:
            return None if self.shapes is None else shape_suite(self.shapes)
        problems = map(read_problem, self.problem)
        counts = Counter(Shape.of(problem, checked_sizes(problem, None)) for problem in problems)
        return ShapeSuite("--problem", tuple(counts), counts)

    @property
    def files(self) -> list[str]:
        """What is read."""
        return [] if self.shapes is None else [self.shapes]


@dataclass(frozen=True)
class KernelFilter:
    """Which kernels of a manifest are taken."""

    preset: Annotated[str | None, typer.Option(help="A preset of the manifest, such as quick.", metavar="NAME")] = None
    where: Annotated[
        str | None,
        typer.Option(
            metavar="FILTER",
            callback=_filter,
            help="Keep configs for which this holds, such as \"tile.n >= 128 and schedule == 'pingpong'\".",
        ),
    ] = None

    @property
    def is_set(self) -> bool:
        """Whether any is."""
        return (self.preset, self.where) != (None, None)

    def configs(self, manifest: str) -> list[GemmConfig]:
        """The configs of a MANIFEST argument."""
        return [*kernel_set(manifest).expand(self.preset, self.where)]


@dataclass(frozen=True)
class CompileOptions:
    """How kernels are compiled, and where they are kept."""

    jobs: Jobs = None
    store: StorePath = None


@dataclass(frozen=True)
class RegistryOptions:
    """Kernels and measurements to choose by."""

    manifest: Manifests = field(default_factory=list)
    pack: Packs = field(default_factory=list)
    records: Records = field(default_factory=list)
    gpu: OnGpu = None
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            exists=True,
            file_okay=False,
            help="Choose by this model, which gemmill train made, instead of the one that ships.",
        ),
    ] = None

    @property
    def files(self) -> list[str | Path]:
        """What is read."""
        return [*self.manifest, *self.pack, *self.records]

    def registry(self, store: Path | None = None) -> Registry:
        """A registry over them; without any manifest or pack, over the manifests that ship."""
        return Registry(
            manifests=[manifest_path(source) for source in self.manifest] or None,
            packs=self.pack,
            store=store,
            gpu=self.gpu,
            records=self.records,
            model=self.model,
        )


def served_shapes(configs: Sequence[GemmConfig], suite: ShapeSuite) -> tuple[Shape, ...]:
    """The shapes whose formats some of the kernels have, be it with another expression; that there are others is
    complained of.

    Raises:
        UnsupportedProblemError: no kernel has the formats of any.
    """
    without = dict.fromkeys(unserved(configs, suite.shapes, varies=True))
    if without:
        warn_unserved([*without], suite)
    return tuple(shape for shape in suite.shapes if shape not in without)


def warn_unserved(without: Sequence[Shape], suite: ShapeSuite) -> None:
    """Complain of shapes whose formats no kernel has; UnsupportedProblemError where those are all."""
    some = "; ".join(map(str, without[:3]))
    if len(without) == len(suite.shapes):
        raise UnsupportedProblemError(
            f"no kernel here has the formats of the shapes of {suite.name}, such as {some}. What was understood of the "
            "file, as YAML: gemmill shapes FILE"
        )
    of, more = f"{len(without):,} of {len(suite.shapes):,} shapes", " ..." if len(without) > 3 else ""
    output.complain(f"no kernel here has the formats of {of}, which are left out: {some}{more}")
