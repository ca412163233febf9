"""Edited source files: read, compile, check and pack them, and compare them with the original kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from gemmill.cli import completion, output
from gemmill.cli.commands.problems import table_columns, table_row
from gemmill.cli.options import is_file, kernel, measurable, no_file, output_file, read_problem, refuse_overwriting
from gemmill.cli.output import Status, UsageError
from gemmill.cli.problem_options import extents
from gemmill.emitters.edited_page import MAX_BYTES, config_of_page, edited
from gemmill.emitters.emit import SOURCE_FILE, EmittedSource, emit
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name
from gemmill.library.errors import CompileError, ConfigError
from gemmill.library.files import ending, read_given
from gemmill.library.problem import GemmProblem
from gemmill.library.records import Measurement
from gemmill.profiler.sweep.shape_suites import Shape
from gemmill.profiler.sweep.sweep import measured_beside
from gemmill.profiler.sweep.units import problem_of, refuse_nested
from gemmill.runtime.registry import Registry
from gemmill.runtime.select.kernels.faults import is_swapped
from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.pack import write_pack


def is_page(argument: str) -> bool:
    """Whether an argument names a CUDA C++ file, such as `emit` writes."""
    return ending(argument) == ".cu"


def source(argument: str) -> tuple[EmittedSource, GemmConfig]:
    """The source of a KERNEL argument: emitted from a config, or an edited file; and the config."""
    if not is_page(argument):
        config = kernel(argument)
        return emit(config), config
    text = _read(argument)
    with citing(argument):
        config = config_of_page(text)
        return edited(config, text), config


@contextmanager
def citing(argument: str) -> Iterator[None]:
    """Name the file of an argument in errors of its source."""
    try:
        yield
    except (CompileError, ConfigError) as error:
        if not is_page(argument):
            raise
        says = str(error).replace(f"{SOURCE_FILE}:", f"{argument}:")
        raise type(error)(says if says.startswith(f"{argument}:") else f"{argument}: {says}") from None


def compiled(page: EmittedSource, config: GemmConfig) -> Artifact:
    """The compiled kernel of a source, from the store or newly compiled and stored."""
    registry = Registry(manifests=[])
    return registry.add_source(config, page.text) if page.is_edited else registry.get(config)


@dataclass(frozen=True)
class PageOptions:
    """Options for an edited source file: its original kernel, the problem to run, and the pack to write."""

    of: Annotated[
        str | None,
        typer.Option(
            "--kernel",
            metavar="KERNEL",
            help="With FILE.cu: name of the original kernel, if the file does not contain it.",
            autocompletion=completion.kernels,
        ),
    ] = None
    mnkl: Annotated[
        str | None,
        typer.Option(
            metavar="M,N,K[,L]", help="With FILE.cu: verify and time it on this problem, in the formats of KERNEL."
        ),
    ] = None
    problem: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="With FILE.cu: verify and time it on this problem, such as '4096x7168x2048 bf16 tn'."
        ),
    ] = None
    to: Annotated[Path | None, output_file("With FILE.cu: write the kernel to this pack.", "PACK")] = None

    def config(self, content: str) -> GemmConfig:
        """The original kernel of the file."""
        return kernel(self.of) if self.of is not None else config_of_page(content)


def build_page(file: str, page: PageOptions, store: Path | None) -> None:
    """Run `gemmill build FILE.cu`; exit with 1 if a result is wrong."""
    to = page.to
    refuse_overwriting([to], [file])
    content = _read(file)
    with citing(file):
        config = page.config(content)
    problem = _problem(config, page.mnkl, page.problem)
    registry = Registry(manifests=[], store=store)
    with citing(file):
        artifact = registry.add_source(config, content)
    size = write_pack(to, [artifact]) if to is not None else 0
    if not output.is_json():
        typer.echo(artifact.name)
        used, threads = artifact.resources, artifact.launch.threads
        typer.echo(
            f"{used.registers} registers, no spills, {used.dynamic_shared_bytes:,} bytes of shared memory, {threads} "
            "threads; same launch as the original kernel"
        )
        if to is not None:
            typer.echo(f"{to}: 1 kernel, {size:,} bytes")
    measurements = measured_beside(problem, [registry.get(config), artifact]) if problem else []
    if output.is_json():
        item = {"name": artifact.name, "kernel": kernel_name(config), "digest": artifact.digest, "key": artifact.key}
        pack = None if to is None else str(to)
        rows = [measurement.model_dump(mode="json") for measurement in measurements]
        output.print_json(
            "build", {"items": [{**item, **asdict(artifact.resources)}], "pack": pack, "measurements": rows}
        )
    elif problem is not None:
        _print_beside(measurements, artifact)
    if any(measurement.stage == "failed" for measurement in measurements):
        raise typer.Exit(Status.WRONG)


def _read(file: str) -> str:
    """The text of a source file."""
    if not is_file(file):
        raise no_file(file, "a source file")
    try:
        return read_given(Path(file), MAX_BYTES).decode()
    except UnicodeDecodeError as error:
        raise CompileError(f"{file}: byte {error.start} is not UTF-8; save the file as UTF-8") from None


def _problem(config: GemmConfig, mnkl: str | None, text: str | None) -> GemmProblem | None:
    """The problem to verify and time a kernel on; None if no option gives one."""
    if mnkl is not None and text is not None:
        raise UsageError("both --mnkl and --problem are given; pass only one")
    if mnkl is None and text is None:
        return None
    if mnkl is not None:
        m, n, k, batch = (*extents(mnkl).values(), 1)[:4]
        problem = problem_of(config, Shape(m, n, k, batch))
        refuse_nested(problem)
        return problem
    assert text is not None
    problem = measurable(read_problem(text))
    is_swapped(config, problem)
    return problem


def _print_beside(measurements: Sequence[Measurement], artifact: Artifact) -> None:
    """Print a table of the edited and the original kernel, with the quartiles of their times."""
    times = {measurement.kernel: measurement.us for measurement in measurements}
    original = next((us for name, us in times.items() if name != artifact.name), None)
    rows = [table_row(m, output.number(original / m.us if m.us and original else None, 3)) for m in measurements]
    output.print_table(table_columns("kernel"), rows, title=str(measurements[0].problem))
