"""What the kernels that are written as PTX share. The driver compiles them, so that packs need no NVRTC for them."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from string import Template

BITS = {"bf16": 16, "f16": 16, "f32": 32}
"""The dtypes that these kernels read and write, with their sizes."""
_VERSIONS = {"sm_90": "7.8", "sm_70": "6.0"}
"""The version of PTX by target."""
_HEAD = Template("""\
.version $version
.target $target
.address_size 64

.visible .entry $entry(.param .align 8 .b8 job[$bytes])
.maxntid $threads
$directives{
""")


_CHOOSE_JOB = Template("""\
  ld.param.b32 %begin, [job + $offset];
  setp.ge.u32 %later, %block, %begin;
  @%later add.u64 %job, %job, $size;""")

FIRST_VECTOR = Template("""\
  // Row and vector that its first thread begins with.
  sub.u32 %block, %block, %begin;
  mul.wide.u32 %y, %block, $block;
  cvt.u64.u32 %z, %vectors;
  div.u64 %z, %y, %z;
  cvt.u32.u64 %row, %z;
  mul.wide.u32 %z, %row, %vectors;
  sub.u64 %y, %y, %z;
  cvt.u32.u64 %first, %y;
  mov.b32 %thread, %tid.x;
  add.u32 %first, %first, %thread;""")
"""Finds ``%row`` and ``%first``, of this thread, in a job whose CTAs take ``block`` vectors each, from CTA ``%begin``
on."""


def head(entry: str, job: struct.Struct, threads: int, directives: str = "", target: str = "sm_90") -> str:
    """The text before the body of a kernel for a target and later, whose one parameter is a ``job``.

    Args:
        entry: the symbol of the kernel.
        job: the layout of the parameter.
        threads: threads of a CTA.
        directives: further lines of performance directives.
        target: the least capable target.
    """
    sizes = {"bytes": job.size, "threads": threads}
    return _HEAD.substitute(sizes, version=_VERSIONS[target], target=target, entry=entry, directives=directives)


def choose_job(job: struct.Struct, jobs: int) -> str:
    """The code that finds ``%job``, the job of CTA ``%block``, of several, each of which ends with the index of its
    first CTA."""
    later = ({"offset": place * job.size + job.size - 4, "size": job.size} for place in range(1, jobs))
    first = lines(["mov.b32 %block, %ctaid.x;", "mov.b64 %job, job;"])
    return "\n".join([first, *(_CHOOSE_JOB.substitute(sizes) for sizes in later)])


def lines(instructions: Iterable[str]) -> str:
    """Instructions as indented lines."""
    return "\n".join("  " + line for line in instructions)


def half_to_f32(dtype: str, word: str, half: int, to: str) -> Iterator[str]:
    """Yield the code that converts half a word, of a dtype of 16 bits. It overwrites ``%half0`` and ``%half1``."""
    yield f"mov.b32 {{%half0, %half1}}, {word};"
    yield f"cvt.f32.{dtype} {to}, %half{half};"
