"""The source of an mma.sync kernel: a thin instantiation of kernel/mma_sync.cuh around one PTX instruction."""

from __future__ import annotations

from string import Template

from gemmill.emitters.families import direct
from gemmill.emitters.families.direct import constants, launch_spec
from gemmill.library.config.model import GemmConfig
from gemmill.library.dtypes import DTYPES
from gemmill.library.families.arithmetic import FP8

__all__ = ["constants", "launch_spec", "text"]

_WORDS = Template("""\
struct $name {
  using Word = uint32_t;
  __device__ static void multiply(uint32_t const (&a)[4], uint32_t b0, uint32_t b1, $register (&d)[4]) {
    asm volatile(
        "mma.sync.aligned.m16n8k$k.row.col.$accumulator.$a.$b.$accumulator "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+$constraint"(d[0]), "+$constraint"(d[1]), "+$constraint"(d[2]), "+$constraint"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};

""")

_F64 = """\
struct Atom {
  using Word = double;
  __device__ static void multiply(double const (&a)[2], double b, double (&d)[4]) {
    asm volatile(
        "mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 "
        "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
        : "d"(a[0]), "d"(a[1]), "d"(b));
  }
};

"""

_F64_IN_TWO = """\
struct Atom {
  using Word = double;
  __device__ static void multiply(double const (&a)[2], double b, double (&d)[4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                   : "+d"(d[2 * i]), "+d"(d[2 * i + 1])
                   : "d"(a[i]), "d"(b));
    }
  }
};

"""
"""Before sm_90 the only f64 MMA is 8 x 8 x 4."""

_QUADPAIR = Template("""\
struct Atom {
  using Word = uint32_t;
  __device__ static void multiply(uint32_t a0, uint32_t a1, uint32_t b0, uint32_t b1, float (&d)[4], float (&e)[4]) {
    asm volatile(
        "mma.sync.aligned.m8n8k4.$a.$b.f32.f16.f16.f32 "
        "{%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9}, {%10, %11}, {%0, %1, %2, %3, %4, %5, %6, %7};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(e[0]), "+f"(e[1]), "+f"(e[2]), "+f"(e[3])
        : "r"(a0), "r"(a1), "r"(b0), "r"(b1));
  }
};

""")
"""8 x 8 x 4 a quadpair; operands that are not K-major are read as they lie."""


def mma_atom(config: GemmConfig) -> str:
    """``struct Atom``: 16 x 8 x 32 bytes, on sm_70 8 x 8 x 4 elements (PTX ISA, "mma")."""
    if config.target.capability < (8, 0):
        along_mn = config.a.major == "mn", config.b.major == "mn"
        return _QUADPAIR.substitute(a="col" if along_mn[0] else "row", b="row" if along_mn[1] else "col")
    if config.accumulator == "f64":
        return _F64 if config.target.capability >= (9, 0) else _F64_IN_TWO
    if config.a.dtype in FP8 and config.target.capability == (9, 0):
        half = _words("HalfAtom", "f16", "f16", "f32")
        return f"{half}using Atom = gemmill::HalvesAtom<HalfAtom, {config.a.type.cpp}, {config.b.type.cpp}>;\n\n"
    return _words("Atom", config.a.dtype, config.b.dtype, config.accumulator)


def _words(name: str, a: str, b: str, accumulator: str) -> str:
    register, constraint = ("float", "f") if accumulator == "f32" else ("int32_t", "r")
    return _WORDS.substitute(
        name=name,
        register=register,
        constraint=constraint,
        k=8 * 32 // DTYPES[a].bits,
        accumulator=accumulator,
        a=a,
        b=b,
    )


def text(config: GemmConfig) -> str:
    """The source of a legal config's kernel."""
    kernel = "MmaSyncGemm" if config.target.capability >= (8, 0) else "QuadpairGemm"
    return direct.text(
        config, header="mma_sync", kernel=kernel, atom=mma_atom(config), members="  using Atom = ::Atom;\n"
    )
