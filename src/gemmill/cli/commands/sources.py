"""emit: what a kernel is made of, from CUDA C++ to machine code."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from gemmill.cli import output
from gemmill.cli.app import app
from gemmill.cli.options import Json, Page, refuse_overwriting
from gemmill.cli.pages import source
from gemmill.emitters.emit import EmittedSource
from gemmill.library.config.model import GemmConfig
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
    to: Annotated[
        Path | None, typer.Option("--output", "-o", dir_okay=False, help="Write it to this file; - is stdout.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the CUDA C++ of a kernel, or what it is compiled to.

    Nothing but the source needs a toolchain, and nothing a GPU. A cubin is not written to a terminal unless -o - says
    so. An edited page is compiled as `gemmill build` does it (docs/editing.md).

    \b
    Examples:
      gemmill emit sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x256x64_2x1_cooperative_s4_m8_k1_linear
      gemmill emit one_config.yaml -o kernel.cu
      gemmill emit kernel.cu --sass --lineinfo
      gemmill emit KERNEL --cubin -o kernel.cubin
      gemmill emit KERNEL --json        # with entry symbol, launch facts and digests
    """
    given = [form for form, is_given in (("ptx", ptx), ("sass", sass), ("cubin", cubin)) if is_given]
    if len(given) > 1:
        raise typer.BadParameter(f"{' and '.join(f'--{form}' for form in given)} exclude each other: give one")
    form: Form = given[0] if given else "cubin" if lineinfo else "source"  # type: ignore[assignment]
    to_stdout = to is None or str(to) == "-"
    if form == "cubin" and to_stdout:
        if as_json:
            raise typer.BadParameter("a cubin has no place in JSON: name a file for it with -o FILE")
        if to is None and sys.stdout.isatty():
            raise typer.BadParameter(
                "a cubin is no text, and this is a terminal: name a file with -o FILE, or write it here with -o -"
            )
    refuse_overwriting([None if to_stdout else to], [name_or_file])
    emitted, config = source(name_or_file)
    content = _made(form, emitted, config, lineinfo)
    if to is not None and not to_stdout:
        publish(to, [content])
    if as_json:
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


def _made(form: Form, emitted: EmittedSource, config: GemmConfig, lineinfo: bool) -> bytes:
    """A source, or what it is compiled to."""
    if form == "source":
        return emitted.text.encode()
    from gemmill.runtime.compile.compiler import Compiler
    from gemmill.runtime.compile.disassembly import disassembled, disassembler

    if form == "sass":
        disassembler()  # what is missing is said before anything is compiled
    compiler = Compiler()
    if form == "ptx":
        return compiler.ptx(emitted, config, lineinfo).encode()
    cubin = compiler.compile(emitted, config, lineinfo).cubin
    return disassembled(cubin, lineinfo).encode() if form == "sass" else cubin
