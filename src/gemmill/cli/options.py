"""Arguments and options that several commands share, and the functions that resolve their values."""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from gemmill.cli import completion, output
from gemmill.cli.output import UsageError, usage
from gemmill.library.arch import Gpu, gpu_named
from gemmill.library.bits import BITS, fault_of
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import parse_name
from gemmill.library.errors import ConfigError, DeviceError, ExpressionError, ManifestError, PackError, ProblemError
from gemmill.library.files import ending
from gemmill.library.input import problem_words
from gemmill.library.input.group_sizes import checked_sizes
from gemmill.library.manifest import expression
from gemmill.library.manifest.kernelset import KernelSet
from gemmill.library.manifest.load import YAML, load_manifest, shipped_manifest, shipped_manifests
from gemmill.library.problem import GemmProblem, Regime, upconverts_a
from gemmill.profiler.imports.file_formats import NOTHING, Given
from gemmill.profiler.sweep.shape_suites import Shape, ShapeSuite, load_shapes, shipped_suites
from gemmill.profiler.sweep.units import refuse_nested
from gemmill.runtime.registry import Registry
from gemmill.runtime.storage.oci.reference import Reference
from gemmill.runtime.storage.oci.scheme import is_reference


def argument(metavar: str, says: str, complete: Callable[[str], list[str]]) -> Any:
    """An argument with shell completion."""
    return typer.Argument(metavar=metavar, help=says, autocompletion=complete)


def input_argument(says: str, metavar: str = "FILE") -> Any:
    """An argument for files that must exist."""
    return typer.Argument(metavar=metavar, exists=True, dir_okay=False, help=says)


def input_file(says: str, *names: str, metavar: str = "FILE") -> Any:
    """An option for a file that must exist."""
    return typer.Option(*names, metavar=metavar, exists=True, dir_okay=False, help=says)


def in_directory(path: Path | None) -> Path | None:
    """A file to write, after a check that its directory exists."""
    if path is not None and not path.parent.is_dir():
        raise typer.BadParameter(f"directory {str(path.parent)!r} does not exist")
    return path


def output_file(says: str, metavar: str = "FILE", *names: str) -> Any:
    """An option for a file to write; its default name is -o."""
    names = names or ("--output", "-o")
    return typer.Option(*names, metavar=metavar, dir_okay=False, callback=in_directory, help=says)


def numbers(text: str) -> list[str]:
    """The numbers of a text such as 512,768,256 or 512x768x256; empty if a part is not a number."""
    parts = [part.strip() for part in re.split("[,x]", text)]
    return parts if all(part.isdecimal() for part in parts) else []


def _filter(text: str | None) -> str | None:
    if text is not None:
        try:
            expression.parse(text)
        except ExpressionError as error:
            raise typer.BadParameter(f"{text!r}, column {error.column + 1}: {error}") from None
    return text


Manifest = Annotated[
    str,
    argument("MANIFEST", "Manifest file, or name of a shipped manifest.", completion.manifests),
]
Kernel = Annotated[
    str,
    argument("KERNEL", "Kernel name, or manifest with exactly one config.", completion.kernels),
]


def kernel_or_source(metavar: str) -> Any:
    """An argument for a kernel or an edited source file."""
    says = "Kernel name, manifest with exactly one config, or edited source file, FILE.cu."
    return argument(metavar, says, completion.kernels)


def _folder(text: str) -> Path:
    if not text:
        raise typer.BadParameter("an empty name is not a directory; pass one, or omit the option")
    path = Path(text)
    if (existing := next(filter(os.path.exists, (path, *path.parents)), None)) and not existing.is_dir():
        raise typer.BadParameter(f"{str(existing)!r} is not a directory")
    return path


StorePath = Annotated[
    Path | None,
    typer.Option(
        "--store",
        metavar="DIR",
        parser=_folder,
        help="Directory of the kernel store. Default: GEMMILL_STORE, or the user's cache.",
    ),
]


def _gpu(text: str) -> Gpu:
    """The GPU of this name in library/arch.py."""
    try:
        return gpu_named(text)
    except DeviceError as error:
        raise typer.BadParameter(str(error)) from None


Objective = Annotated[
    Regime,
    typer.Option(
        help="`sustained`: fastest in a program that runs for seconds under the power limit. `burst`: fastest in a "
        "single launch at full clock."
    ),
]


def _bits(text: str) -> str:
    if fault := fault_of(text):
        raise typer.BadParameter(fault.removeprefix("bits is "))
    return text


Bits = Annotated[
    str,
    typer.Option(
        "--bits",
        metavar="|".join((*BITS, "CLASS")),
        parser=_bits,
        autocompletion=completion.bits,
        help=f"Bits that D must have. {'; '.join(f'{word}: {says}' for word, says in BITS.items())}; CLASS: those of "
        "this arithmetic, such as k16 or k16/8.",
    ),
]


def gpu_option(says: str) -> Any:
    """The option --gpu, which takes the name of a GPU."""
    return typer.Option("--gpu", metavar="NAME", parser=_gpu, autocompletion=completion.gpus, help=says)


OnGpu = Annotated[
    Gpu | None,
    gpu_option(
        "Select kernels for this GPU, such as H200, H100 or H100-PCIe. Default: the GPU of this machine, else an H200."
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        "-j",
        min=1,
        metavar="N",
        help="Compile N kernels in parallel. Default: one per core, fewer if memory is short.",
    ),
]
Manifests = Annotated[
    list[str],
    typer.Option(
        "--manifest",
        metavar="MANIFEST",
        help="Select from this manifest instead of the shipped ones. Repeatable.",
        autocompletion=completion.manifests,
    ),
]


def _pack(text: str) -> str:
    """A pack: a file that must exist, or a reference to a registry."""
    if is_reference(text):
        with usage(PackError):
            Reference.of(text)
    elif not os.path.exists(text):
        raise typer.BadParameter(f"File {text!r} does not exist.")
    elif os.path.isdir(text):
        raise typer.BadParameter(f"File {text!r} is a directory.")
    return text


Packs = Annotated[
    list[str],
    typer.Option(
        "--pack",
        metavar="FILE",
        parser=_pack,
        help="Use the compiled kernels of this pack, a file or oci://HOST/NAME:TAG. Repeatable.",
    ),
]
Sign = Annotated[
    list[Path],
    input_file("Sign with this private key, from gemmill key new. Repeatable.", "--sign", metavar="KEY"),
]
RecordsFiles = Annotated[
    list[Path],
    input_argument("Records files, from gemmill profile or gemmill records pack.", "RECORDS"),
]
Records = Annotated[
    list[Path],
    input_file("Prefer the measurements in this records file to the model. Repeatable.", "--records"),
]


def _sizes(text: str) -> str:
    if not text:
        raise typer.BadParameter("'' must be balanced, zipf:S or a list such as 128,64,0,64")
    return text


Sizes = Annotated[
    str | None,
    typer.Option(
        "--sizes",
        metavar="SIZES",
        parser=_sizes,
        help="Group sizes: balanced, zipf:S with exponent S, or a list such as 128,64,0,64. Default: balanced.",
    ),
]


def is_file(source: str) -> bool:
    """Whether this names an existing file or pipe."""
    return os.path.exists(source) and not os.path.isdir(source)


def no_file(source: str, what: str) -> UsageError:
    """The error for an argument that names no file; ``what`` is what to pass."""
    return UsageError(f"{source!r} {'is a directory' if os.path.isdir(source) else 'does not exist'}; pass {what}")


def refuse_overwriting(outputs: Iterable[Path | None], inputs: Iterable[Path | str] = ()) -> None:
    """Refuse an output file that is also an input or another output."""
    taken = {Path(source).resolve() for source in inputs if is_file(str(source))}
    for path in filter(None, outputs):
        if path.resolve() in taken and (path.is_file() or not path.exists()):
            raise UsageError(f"{path} is also an input or another output of this command; use another file name")
        taken.add(path.resolve())


def is_manifest(source: str) -> bool:
    """Whether a MANIFEST argument names an existing file or a shipped manifest."""
    return is_file(source) or source in shipped_manifests()


def manifest_path(source: str) -> Path:
    """The file that a MANIFEST argument refers to."""
    if is_file(source):
        return Path(source)
    if source in shipped_manifests():
        return shipped_manifest(source)
    raise UsageError(
        f"{source!r} is neither a file nor a shipped manifest; shipped manifests: {', '.join(shipped_manifests())}"
    )


def kernel_set(source: str) -> KernelSet:
    """The kernel set of a MANIFEST argument."""
    return load_manifest(manifest_path(source))


def kernel(source: str) -> GemmConfig:
    """The config of a KERNEL argument; it may break a legality rule."""
    if not is_manifest(source):
        if "/" in source or ending(source) in YAML or os.path.isdir(source):
            raise no_file(source, "a kernel name or a manifest file")
        with usage(ConfigError):
            return parse_name(source)
    configs = list(itertools.islice(load_manifest(manifest_path(source), legal=False).expand(legal=False), 2))
    if len(configs) > 1:
        raise UsageError(
            f"manifest {source} has more than one config; pass one kernel name from `gemmill list {source}`"
        )
    return configs[0]


def read_problem(text: str) -> GemmProblem:
    """The problem that a line describes."""
    with usage(ProblemError):
        problem_words.check_epilogue(problem_words.read_text(text).get("epilogue"))
        return GemmProblem.from_text(text)


def measurable(problem: GemmProblem) -> GemmProblem:
    """An equivalent problem that the profiler can make operands for: narrow weights are A.

    Raises:
        ProblemError: the profiler cannot make operands for it.
    """
    refuse_nested(problem)
    problem = problem.with_narrow_a
    return problem.transposed if upconverts_a(problem.b_dtype, problem.a_dtype) else problem


def shape_suite(source: str, given: Given = NOTHING) -> ShapeSuite:
    """The shapes of a file, a folder or a shipped suite; prints to stderr what a file has beyond its shapes, and what
    it lacks."""
    shipped = shipped_suites()
    if is_file(source) or (source not in shipped and os.path.isdir(source)):
        suite = load_shapes(Path(source), given)
        for says in suite.left_out:
            output.complain(f"left out: {says}")
        for says in suite.assumed:
            output.complain(f"assumed: {says}")
        return suite
    if source not in shipped:
        raise UsageError(f"{source!r} is neither a file nor a shipped suite; shipped suites: {', '.join(shipped)}")
    return load_shapes(shipped[source])


Shapes = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Many problems: a suite (file or shipped name), or another tool's file that gemmill shapes reads.",
        autocompletion=completion.suites,
    ),
]
ProblemLine = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Problem in one line, such as '4096x7168x2048 bf16 tn'.")
]


@dataclass(frozen=True)
class SuiteOptions:
    """Problems of a suite, or one per line."""

    shapes: Shapes = None
    problem: Annotated[
        list[str],
        typer.Option(
            metavar="TEXT",
            help="Problem in one line, such as '4096x7168x2048 bf16 tn'. Repeatable.",
        ),
    ] = field(default_factory=list)

    def suite(self) -> ShapeSuite | None:
        """The shapes of --shapes or --problem, without duplicates, with counts; None if neither option is given."""
        if self.shapes is not None and self.problem:
            raise UsageError("both a suite and --problem are given; pass only one")
        if not self.problem:
            return None if self.shapes is None else shape_suite(self.shapes)
        problems = map(read_problem, self.problem)
        counts = Counter(Shape.of(problem, checked_sizes(problem, None)) for problem in problems)
        return ShapeSuite("--problem", tuple(counts), counts)

    @property
    def files(self) -> list[str]:
        """Input files."""
        return [] if self.shapes is None else [self.shapes]


@dataclass(frozen=True)
class KernelFilter:
    """Options that select kernels of a manifest."""

    preset: Annotated[
        str | None,
        typer.Option(
            help="Use only the configs of this preset, such as quick.",
            metavar="NAME",
            autocompletion=completion.presets,
        ),
    ] = None
    where: Annotated[
        str | None,
        typer.Option(
            metavar="FILTER",
            callback=_filter,
            help="Use only configs that match, such as \"tile.n >= 128 and schedule == 'pingpong'\".",
        ),
    ] = None

    @property
    def given(self) -> list[str]:
        """The options that are given, with their values."""
        options = (("--preset", self.preset), ("--where", self.where))
        return [f"{name} {value!r}" for name, value in options if value is not None]

    def configs(self, manifest: str) -> list[GemmConfig]:
        """The configs of a MANIFEST argument."""
        return [*self.checked(kernel_set(manifest)).expand(self.preset, self.where)]

    def checked(self, kernels: KernelSet) -> KernelSet:
        """The kernel set, after a check that it has the preset."""
        with usage(ManifestError):
            kernels.choice(self.preset)
        return kernels


@dataclass(frozen=True)
class CompileOptions:
    """How many kernels compile in parallel, and the store that keeps them."""

    jobs: Jobs = None
    store: StorePath = None


@dataclass(frozen=True)
class RegistryOptions:
    """Kernels, measurements and model for the selector."""

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
            help="Select with the model in this directory, from gemmill train. Default: the shipped model.",
        ),
    ] = None

    @property
    def files(self) -> list[str | Path]:
        """Input files."""
        return [*self.manifest, *self.pack, *self.records]

    def registry(self, store: Path | None = None) -> Registry:
        """A registry over these manifests and packs; without any, over GEMMILL_PACKS or the shipped manifests."""
        return Registry(
            manifests=[manifest_path(source) for source in self.manifest] or None,
            packs=self.pack or None,
            store=store,
            gpu=self.gpu,
            records=self.records,
            model=self.model,
        )
