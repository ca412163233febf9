"""What the kernels that are written as PTX share. The driver compiles them, so that packs need no NVRTC for them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from string import Template

BITS = {"bf16": 16, "f16": 16, "f32": 32}
"""The dtypes that these kernels read and write, with their sizes."""
_HEAD = Template("""\
.version 7.8
.target sm_90
.address_size 64

.visible .entry $entry(.param .align 8 .b8 job[$bytes])
.maxntid $threads
$directives{
""")


def head(entry: str, job: struct.Struct, threads: int, directives: str = "") -> str:
    """The text before the body of a kernel for sm_90 and later, whose one parameter is a ``job``.

    Args:
        entry: the symbol of the kernel.
        job: the layout of the parameter.
        threads: threads of a CTA.
        directives: further lines of performance directives.
    """
    return _HEAD.substitute(entry=entry, bytes=job.size, threads=threads, directives=directives)


def lines(instructions: Iterator[str]) -> str:
    """Instructions as indented lines."""
    return "\n".join("  " + line for line in instructions)


def half_to_f32(dtype: str, word: str, half: int, to: str) -> Iterator[str]:
    """Yield the code that converts half a word, of a dtype of 16 bits. It overwrites ``%half0`` and ``%half1``."""
    yield f"mov.b32 {{%half0, %half1}}, {word};"
    yield f"cvt.f32.{dtype} {to}, %half{half};"
