"""emit, diff: the source and machine code of a kernel, and the differences between two kernels."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from gemmill.cli import output
from gemmill.cli.app import app
from gemmill.cli.options import kernel_or_source, output_file, refuse_overwriting
from gemmill.cli.output import UsageError
from gemmill.cli.pages import citing, compiled, source
from gemmill.emitters.emit import EmittedSource
from gemmill.library.arithmetic import arithmetic_named
from gemmill.library.config.fields import fields_of
from gemmill.library.config.model import GemmConfig
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.errors import ToolchainError
from gemmill.library.files import naming, publish
from gemmill.library.legality.explanation import resources_of

Form = Literal["source", "ptx", "sass", "cubin"]


@app.command()
def emit(
    name_or_file: Annotated[str, kernel_or_source("KERNEL")],
    ptx: Annotated[bool, typer.Option("--ptx", help="Print PTX, from NVRTC.")] = False,
    sass: Annotated[bool, typer.Option("--sass", help="Print machine code as text; needs nvdisasm.")] = False,
    cubin: Annotated[bool, typer.Option("--cubin", help="Write machine code as an ELF file.")] = False,
    lineinfo: Annotated[
        bool,
        typer.Option(
            "--lineinfo", help="Compile with -lineinfo, for profilers. Without --ptx or --sass: write a cubin."
        ),
    ] = False,
    to: Annotated[Path | None, output_file("Write the output to this file; - is stdout.")] = None,
) -> None:
    """Print the CUDA C++, PTX, SASS or cubin of a kernel.

    Only the CUDA C++ needs no toolchain. No GPU is needed. emit writes a cubin to a terminal only with -o -. You can
    edit the CUDA C++ and compile it with `gemmill build FILE.cu`; see docs/editing.md.

    \b
    Examples:
      gemmill emit sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x256x64_2x1_cooperative_s4_m8_k1_linear
      gemmill emit one_config.yaml -o kernel.cu
      gemmill emit kernel.cu --sass --lineinfo
      gemmill emit KERNEL --cubin -o kernel.cubin
      gemmill emit KERNEL --json        # with entry symbol, launch facts and digests
    """
    forms = [form for form, is_set in (("ptx", ptx), ("sass", sass), ("cubin", cubin)) if is_set]
    if len(forms) > 1:
        raise UsageError(f"both {' and '.join(f'--{form}' for form in forms)} are given; pass only one")
    form: Form = forms[0] if forms else "cubin" if lineinfo else "source"  # type: ignore[assignment]
    to_stdout = to is None or str(to) == "-"
    if form == "cubin" and to_stdout:
        if output.is_json():
            raise UsageError("--json cannot contain a cubin; write it to a file with -o FILE")
        if to is None and sys.stdout.isatty():
            raise UsageError(
                "a cubin is binary, and stdout is a terminal; write it to a file with -o FILE, or pass -o -"
            )
    refuse_overwriting([None if to_stdout else to], [name_or_file])
    emitted, config = source(name_or_file)
    with citing(name_or_file):
        content = _rendered(form, emitted, config, lineinfo)
    if to is not None and not to_stdout:
        publish(to, [content])
    if output.is_json():
        report = {"name": emitted.name, "form": form, "entry": emitted.entry, "launch": asdict(emitted.launch)}
        digests = {"digest": emitted.digest, "headers_digest": emitted.headers_digest}
        text = None if form == "cubin" else content.decode()
        output.print_json("emit", {**report, **digests, "text": text})
    elif to_stdout and form == "cubin":
        with naming("stdout"):
            sys.stdout.flush()
            sys.stdout.buffer.write(content)
    elif to_stdout:
        typer.echo(content.decode(), nl=False)


def _rendered(form: Form, emitted: EmittedSource, config: GemmConfig, lineinfo: bool) -> bytes:
    """The source, or its compiled form, as bytes."""
    if form == "source":
        return emitted.text.encode()
    from gemmill.runtime.compile.compiler import Compiler
    from gemmill.runtime.compile.disassembly import disassembled, disassembler

    if form == "sass":
        disassembler()  # raises before compilation if nvdisasm is missing
    if form == "ptx":
        return Compiler().ptx(emitted, config, lineinfo).encode()
    cubin = (Compiler().compile(emitted, config, lineinfo) if lineinfo else compiled(emitted, config)).cubin
    return disassembled(cubin, lineinfo).encode() if form == "sass" else cubin


_Pair = tuple[object, object]
"""The values of two kernels; None for a kernel without the value."""


@app.command()
def diff(first: Annotated[str, kernel_or_source("A")], second: Annotated[str, kernel_or_source("B")]) -> None:
    """Compare two kernels.

    Prints the fields and the lines of source that differ, and the arithmetic, resources and instruction counts of both.
    Registers and cubin sizes need a toolchain, instruction counts also need nvdisasm; diff prints which of them is
    missing.

    \b
    Examples:
      gemmill diff KERNEL kernel.cu
      gemmill diff KERNEL OTHER_KERNEL --json
    """
    sides = [source(argument) for argument in (first, second)]
    (a, a_config), (b, b_config) = sides
    pairs = _paired(fields_of(a_config), fields_of(b_config))
    fields = {name: (x, y) for name, (x, y) in pairs.items() if x != y}
    uses, counted, missing = _compiled((first, second), sides)
    resources = _paired(*({**resources_of(config), **use} for (_, config), use in zip(sides, uses, strict=True)))
    instructions = _paired(*counted)
    lines = [*difflib.unified_diff(a.text.splitlines(), b.text.splitlines(), a.name, b.name, lineterm="")]
    if output.is_json():
        tables = {"fields": fields, "resources": resources, "instructions": instructions}
        named = {what: {key: {"a": x, "b": y} for key, (x, y) in table.items()} for what, table in tables.items()}
        each = {
            side: {"name": page.name, "digest": page.digest, "arithmetic": _arithmetic(page)}
            for side, page in (("a", a), ("b", b))
        }
        output.print_json("diff", {**each, **named, "source": lines, "missing": missing})
        return
    for side, page in (("A", a), ("B", b)):
        typer.echo(f"{side}  {page.name}, arithmetic {_arithmetic(page) or 'unknown, because the source is edited'}")
    for title, table in (("fields that differ", fields), ("resources", resources), ("instructions", instructions)):
        if table:
            rows = [(what, *map(_cell, pair), _change(*pair)) for what, pair in table.items()]
            output.print_table((title, ">A", ">B", ">B - A"), rows)
    for says in missing:
        output.complain(says)
    typer.echo("\n".join(lines) or "the sources are equal")


def _arithmetic(page: EmittedSource) -> str | None:
    """The name of a kernel's arithmetic; None for an edited source, which can change it."""
    return arithmetic_named(SlicedKernel(page.name, 0))


def _compiled(
    arguments: Sequence[str],
    sides: Sequence[tuple[EmittedSource, GemmConfig]],
) -> tuple[list[Mapping[str, object]], list[Mapping[str, object]], list[str]]:
    """The resources and the instructions by class of each kernel, and messages about missing tools."""
    from gemmill.runtime.compile.disassembly import counts, disassembled
    from gemmill.runtime.kernel_occupancy import occupancy_of

    uses: list[Mapping[str, object]] = [{}, {}]
    try:
        artifacts = []
        for argument, side in zip(arguments, sides, strict=True):
            with citing(argument):
                artifacts.append(compiled(*side))
    except ToolchainError as error:
        return uses, [{}, {}], [f"no registers and instructions, because the kernels cannot be compiled: {error}"]
    for place, artifact in enumerate(artifacts):
        used = artifact.resources
        uses[place] = {
            "CTAs an SM": occupancy_of(artifact).ctas,
            "registers a thread at launch": used.registers,
            "bytes of static shared memory": used.static_shared_bytes,
            "bytes of the cubin": len(artifact.cubin),
        }
    try:
        counted = [counts(disassembled(artifact.cubin)) for artifact in artifacts]
    except ToolchainError as error:
        return uses, [{}, {}], [f"no instruction counts: {error}"]
    return uses, [{"all": sum(each.values()), **each} for each in counted], []


def _paired(a: Mapping[str, object], b: Mapping[str, object]) -> dict[str, _Pair]:
    return {key: (a.get(key), b.get(key)) for key in dict.fromkeys((*a, *b))}


def _cell(value: object) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _change(a: object, b: object) -> str:
    return f"{b - a:+,}" if isinstance(a, int) and isinstance(b, int) and a != b else ""
