"""Arguments and options that several commands share, and what they are turned into."""

from __future__ import annotations

import inspect
import itertools
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Annotated, Literal, get_type_hints

import typer

from gemmill.library.arch import GPUS, Gpu, gpu_called
from gemmill.library.config.model import GemmConfig, MajorCD
from gemmill.library.config.names import parse_name
from gemmill.library.dtypes import DTYPES, DTypeName, default_accumulator, default_output
from gemmill.library.errors import ExpressionError
from gemmill.library.manifest import expression
from gemmill.library.manifest.kernelset import KernelSet
from gemmill.library.manifest.load import load_manifest, shipped_manifest, shipped_manifests
from gemmill.library.problem import MAX_EXTENT, GemmProblem
from gemmill.profiler.sweep.shapes import Shape, load_shapes, shipped_suites


def _filter(text: str | None) -> str | None:
    if text is not None:
        try:
            expression.parse(text)
        except ExpressionError as error:
            raise typer.BadParameter(f"{text!r}, column {error.column + 1}: {error}") from None
    return text


Manifest = Annotated[str, typer.Argument(metavar="MANIFEST", help="A manifest file, or the name of one that ships.")]
Kernel = Annotated[str, typer.Argument(metavar="KERNEL", help="A kernel name, or a manifest with exactly one config.")]
Preset = Annotated[str | None, typer.Option(help="A preset of the manifest, such as quick.", metavar="NAME")]
Where = Annotated[
    str | None,
    typer.Option(
        metavar="FILTER",
        callback=_filter,
        help="Keep configs for which this holds, such as \"tile.n >= 128 and schedule == 'pingpong'\".",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


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
        return GPUS[gpu_called(text, GPUS)]
    except LookupError as error:
        raise typer.BadParameter(f"no GPU with figures of its own: {error.args[0]}") from None


OnGpu = Annotated[
    Gpu | None,
    typer.Option(
        "--gpu",
        metavar="NAME",
        parser=_gpu,
        help="Choose for this GPU, such as H200 or 'H100 PCIe'; default: that of this machine, or an H200.",
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
    typer.Option("--manifest", metavar="MANIFEST", help="Consider the kernels of this manifest; may be repeated."),
]
Model = Annotated[
    Path | None,
    typer.Option(
        "--model",
        metavar="DIR",
        exists=True,
        file_okay=False,
        help="Choose by this model, which gemmill train made, instead of the one that ships.",
    ),
]
Packs = Annotated[
    list[Path],
    typer.Option(
        "--pack",
        metavar="FILE",
        exists=True,
        dir_okay=False,
        help="Consider the kernels of this pack; may be repeated.",
    ),
]
Records = Annotated[
    list[Path],
    typer.Option(
        "--records", metavar="FILE", exists=True, dir_okay=False, help="Prefer these measurements to the model."
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
            raise typer.BadParameter(f"there is no file {source!r}")
        return parse_name(source)
    configs = list(itertools.islice(load_manifest(manifest_path(source), legal=False).expand(legal=False), 2))
    if len(configs) > 1:
        raise typer.BadParameter(f"{source} holds more than one config; name one (gemmill list {source})")
    return configs[0]


def shape_suite(source: str) -> tuple[Shape, ...]:
    """The shapes of a file, or of the suite that ships under a name."""
    if _is_file(source):
        return load_shapes(Path(source)).shapes
    shipped = shipped_suites()
    if source not in shipped:
        raise typer.BadParameter(f"{source!r} is neither a file nor a suite that ships; these do: {', '.join(shipped)}")
    return load_shapes(shipped[source]).shapes


def takes_problem(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that describe a GEMM, in place of its parameter ``problem``."""

    @wraps(command)
    def with_options(**arguments: object) -> None:
        described = {name: arguments.pop(name) for name in problem_parameters}
        command(problem=_problem(**described), **arguments)  # type: ignore[arg-type]

    def parameters(function: Callable[..., object]) -> dict[str, inspect.Parameter]:
        hints = get_type_hints(function, include_extras=True)
        signature = inspect.signature(function).parameters
        return {name: signature[name].replace(annotation=hints[name]) for name in signature}

    problem_parameters = parameters(_problem)
    own = {name: parameter for name, parameter in parameters(command).items() if name != "problem"}
    merged = [p.replace(kind=p.KEYWORD_ONLY) for p in (problem_parameters | own).values()]
    with_options.__signature__ = inspect.Signature(merged)  # type: ignore[attr-defined]
    with_options.__annotations__ = {p.name: p.annotation for p in merged}
    return with_options


def _extents(text: str) -> tuple[int, int, int, int]:
    parts = text.split(",")
    if len(parts) not in (3, 4) or not all(part.strip().isdecimal() for part in parts):
        raise typer.BadParameter(f"{text!r} is not M,N,K or M,N,K,L, such as 4096,4096,4096,1")
    if too_large := [part.strip() for part in parts if len(part.strip()) > 10 or int(part) > MAX_EXTENT]:
        raise typer.BadParameter(f"{', '.join(too_large)}: extents are at most {MAX_EXTENT:,}; split the problem")
    m, n, k, batch = (*map(int, parts), 1)[:4]
    return m, n, k, batch


def _problem(
    mnkl: Annotated[str, typer.Option(help="Extents M,N,K and batch L (1 if left out).", metavar="M,N,K[,L]")],
    a_dtype: Annotated[DTypeName, typer.Option(help="Type of A.")] = "bf16",
    a_major: Annotated[Literal["k", "mn", "m"], typer.Option(help="Contiguous extent of A: k, or m (mn).")] = "k",
    b_dtype: Annotated[DTypeName | None, typer.Option(help="Type of B; default: A's.")] = None,
    b_major: Annotated[Literal["k", "mn", "n"], typer.Option(help="Contiguous extent of B: k, or n (mn).")] = "k",
    accumulator: Annotated[
        DTypeName | None, typer.Option(help="Type of sums; default: f32, s32 or f64, by the wider of A's and B's.")
    ] = None,
    promoted: Annotated[bool, typer.Option("--promoted", help="Move fp8 sums to f32 registers now and then.")] = False,
    block_scaled: Annotated[
        bool, typer.Option("--block-scaled", help="Scale A in blocks of 1x128 and B of 128x128; promotes.")
    ] = False,
    c_dtype: Annotated[DTypeName | None, typer.Option(help="Type of C; without it there is no C.")] = None,
    c_major: Annotated[MajorCD | None, typer.Option(help="Contiguous extent of C; default: D's.")] = None,
    d_dtype: Annotated[
        DTypeName | None, typer.Option(help="Type of D; default: as wide as A and B; of fp8 bf16, of integers s32.")
    ] = None,
    d_major: Annotated[MajorCD, typer.Option(help="Contiguous extent of D.")] = "n",
) -> GemmProblem:
    for option, given in (("--promoted", promoted), ("--block-scaled", block_scaled)):
        if given and not {a_dtype, b_dtype or a_dtype} <= {"e4m3", "e5m2"}:
            raise typer.BadParameter(f"{option} is for fp8: A and B must be e4m3 or e5m2")
    if c_major and not c_dtype:
        raise typer.BadParameter("--c-major is of no use without --c-dtype")
    wider = max(a_dtype, b_dtype or a_dtype, key=lambda dtype: DTYPES[dtype].bits)
    problem = GemmProblem.packed(
        _extents(mnkl),
        (a_dtype, "k" if a_major == "k" else "mn"),
        (b_dtype or a_dtype, "k" if b_major == "k" else "mn"),
        accumulator or default_accumulator(wider),
        (c_dtype, c_major or d_major) if c_dtype else None,
        (d_dtype or default_output(DTYPES[wider].stored_as or wider), d_major),
    )
    if block_scaled:
        return replace(problem, a_scale="1x128", b_scale="128x128", promote=4)
    return replace(problem, promote=4 if promoted else 0)
