"""emit, diff: what a kernel is made of, from CUDA C++ to machine code, and what tells two apart."""

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
from gemmill.cli.commands.manifests import resource_table
from gemmill.cli.options import Page, output_file, refuse_overwriting
from gemmill.cli.pages import compiled, source
from gemmill.emitters.emit import EmittedSource
from gemmill.library.config.fields import fields_of
from gemmill.library.config.model import GemmConfig
from gemmill.library.errors import ToolchainError
from gemmill.library.files import naming, publish

Form = Literal["source", "ptx", "sass", "cubin"]


@app.command()
def emit(
    name_or_file: Page,
    ptx: Annotated[bool, typer.Option("--ptx", help="The PTX that NVRTC makes of it.")] = False,
    sass: Annotated[bool, typer.Option("--sass", help="Its machine code as text; needs nvdisasm.")] = False,
    cubin: Annotated[bool, typer.Option("--cubin", help="Its machine code: an ELF file.")] = False,
    lineinfo: Annotated[
        bool, typer.Option("--lineinfo", help="Compile with -lineinfo, for profilers; without --ptx or --sass a cubin.")
    ] = False,
    to: Annotated[Path | None, output_file("Write it to this file; - is stdout.")] = None,
) -> None:
    """Print the CUDA C++ of a kernel, or what it is compiled to.

    All but the source needs a toolchain, and none a GPU. A cubin is not written to a terminal unless -o - says
    so. An edited page is compiled as `gemmill build` does it (docs/editing.md).

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
        raise typer.BadParameter(f"{' and '.join(f'--{form}' for form in forms)} exclude each other: give one")
    form: Form = forms[0] if forms else "cubin" if lineinfo else "source"  # type: ignore[assignment]
    to_stdout = to is None or str(to) == "-"
    if form == "cubin" and to_stdout:
        if output.is_json():
            raise typer.BadParameter("a cubin has no place in JSON: name a file for it with -o FILE")
        if to is None and sys.stdout.isatty():
            raise typer.BadParameter(
                "a cubin is no text, and this is a terminal: name a file with -o FILE, or write it here with -o -"
            )
    refuse_overwriting([None if to_stdout else to], [name_or_file])
    emitted, config = source(name_or_file)
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
    """A source, or what it is compiled to."""
    if form == "source":
        return emitted.text.encode()
    from gemmill.runtime.compile.compiler import Compiler
    from gemmill.runtime.compile.disassembly import disassembled, disassembler

    if form == "sass":
        disassembler()  # what is missing is said before anything is compiled
    if form == "ptx":
        return Compiler().ptx(emitted, config, lineinfo).encode()
    cubin = (Compiler().compile(emitted, config, lineinfo) if lineinfo else compiled(emitted, config)).cubin
    return disassembled(cubin, lineinfo).encode() if form == "sass" else cubin


_Pair = tuple[object, object]
"""A value of each of two kernels; None where one has it not."""


@app.command()
def diff(first: Page, second: Page) -> None:
    """Say what tells two kernels apart: fields, resources, instructions, source.

    Either may be an edited page. Fields and lines of source are those that differ. Registers, cubins and instructions
    are there where kernels can be compiled and nvdisasm is found; what is missing otherwise is told.

    \b
    Examples:
      gemmill diff KERNEL kernel.cu
      gemmill diff KERNEL OTHER_KERNEL --json
    """
    sides = [source(argument) for argument in (first, second)]
    (a, a_config), (b, b_config) = sides
    pairs = _paired(fields_of(a_config), fields_of(b_config))
    fields = {name: (x, y) for name, (x, y) in pairs.items() if x != y}
    uses, counted, missing = _compiled(sides)
    resources = _paired(*({**resource_table(config), **use} for (_, config), use in zip(sides, uses, strict=True)))
    instructions = _paired(*counted)
    lines = [*difflib.unified_diff(a.text.splitlines(), b.text.splitlines(), a.name, b.name, lineterm="")]
    if output.is_json():
        tables = {"fields": fields, "resources": resources, "instructions": instructions}
        named = {what: {key: {"a": x, "b": y} for key, (x, y) in table.items()} for what, table in tables.items()}
        digests = {side: {"name": page.name, "digest": page.digest} for side, page in (("a", a), ("b", b))}
        output.print_json("diff", {**digests, **named, "source": lines, "missing": missing})
        return
    typer.echo(f"A  {a.name}\nB  {b.name}")
    for title, table in (("fields that differ", fields), ("resources", resources), ("instructions", instructions)):
        if table:
            rows = [(what, *map(_cell, pair), _change(*pair)) for what, pair in table.items()]
            output.print_table((title, ">A", ">B", ">B - A"), rows)
    for says in missing:
        output.complain(says)
    typer.echo("\n".join(lines) or "the sources are the same")


def _compiled(
    sides: Sequence[tuple[EmittedSource, GemmConfig]],
) -> tuple[list[Mapping[str, object]], list[Mapping[str, object]], list[str]]:
    """What each kernel uses, and its instructions by class; empty where a tool is missing, and which."""
    from gemmill.runtime.compile.disassembly import counts, disassembled
    from gemmill.runtime.select.cost.families import FAMILIES

    held = [FAMILIES[config.family].ctas_per_sm(config) for _, config in sides]
    uses: list[Mapping[str, object]] = [{"CTAs an SM, by the config": ctas} for ctas in held]
    try:
        artifacts = [compiled(*side) for side in sides]
    except ToolchainError as error:
        return uses, [{}, {}], [f"not compiled, so nothing is said of registers and instructions: {error}"]
    for place, artifact in enumerate(artifacts):
        used = artifact.resources
        uses[place] = {
            **uses[place],
            "registers a thread at launch": used.registers,
            "bytes of static shared memory": used.static_shared_bytes,
            "bytes of the cubin": len(artifact.cubin),
        }
    try:
        counted = [counts(disassembled(artifact.cubin)) for artifact in artifacts]
    except ToolchainError as error:
        return uses, [{}, {}], [f"no instructions are counted: {error}"]
    return uses, [{"all": sum(each.values()), **each} for each in counted], []


def _paired(a: Mapping[str, object], b: Mapping[str, object]) -> dict[str, _Pair]:
    return {key: (a.get(key), b.get(key)) for key in dict.fromkeys((*a, *b))}


def _cell(value: object) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _change(a: object, b: object) -> str:
    return f"{b - a:+,}" if isinstance(a, int) and isinstance(b, int) and a != b else ""
