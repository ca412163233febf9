"""The WGMMA instruction of a config as a C++ struct with one PTX statement.

CuTe has the same atoms, but in 77,000 lines. Parsing them took a third of a cold compilation and doubled the size of
the precompiled header.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from string import Template

from gemmill.library.config.model import GemmConfig
from gemmill.library.dtypes import DTYPES
from gemmill.library.families.wgmma.wgmma_plan import INSTRUCTION_K_BYTES, SUBTILE_M, WARPGROUP, WgmmaPlan

_TEMPLATE = Template("""\
struct Atom {
  using Register = $register;
  static constexpr int kRegisters = $count;
  static constexpr int kK = $k;

  __device__ static void multiply($type_a, uint64_t b, Register (&d)[kRegisters], bool accumulate) {
    asm volatile(
        "{\\n.reg .pred p;\\nsetp.ne.b32 p, %$accumulate, 0;\\n"
        "$instruction "
$registers
        "$a, %$b, p$modifiers;\\n}\\n"
$operands
        : $operand_a, "l"(b), "r"(int(accumulate)));
  }
};
""")


A_REGISTERS = 4
"""Registers of a thread for 64 x 32 bytes of A."""
_REGISTERS = {"f32": ("float", "f"), "f16": ("uint32_t", "r"), "s32": ("int32_t", "r")}
"""C++ type and asm constraint of an accumulator register, by accumulator type. A register holds two f16
accumulators."""


def wgmma_atom(plan: WgmmaPlan) -> str:
    """``struct Atom``: 64 x tile N (or a part of it) x 32 bytes of K (PTX ISA, "wgmma.mma_async").

    B is in shared memory. A is in shared memory, or in registers if :attr:`WgmmaPlan.multiplies_from_registers`; a
    narrow A has already been upconverted to the type of B.
    """
    config, from_registers = plan.config, plan.multiplies_from_registers
    words = A_REGISTERS if from_registers else 1
    accumulator = DTYPES[config.accumulator]
    k = INSTRUCTION_K_BYTES // config.b.loaded.bytes
    n = config.tile.n // plan.atom_parts
    count = SUBTILE_M * n * accumulator.bits // (32 * WARPGROUP)
    register, constraint = _REGISTERS[config.accumulator]
    return _TEMPLATE.substitute(
        register=register,
        count=count,
        k=k,
        instruction=(
            f"wgmma.mma_async.sync.aligned.m{SUBTILE_M}n{n}k{k}"
            f".{config.accumulator}.{(config.b if plan.is_mixed else config.a).loaded.name}.{config.b.loaded.name}"
        ),
        registers=_quoted(_wrapped((f"%{i}" for i in range(count)), "{", "}, ")),
        operands=textwrap.indent(
            "\n".join(_wrapped((f'"+{constraint}"(d[{i}])' for i in range(count)), ": ", "")), " " * 8
        ),
        type_a=f"uint32_t const (&a)[{words}]" if from_registers else "uint64_t a",
        operand_a=", ".join(f'"r"(a[{i}])' for i in range(words)) if from_registers else '"l"(a)',
        a="{" + ", ".join(f"%{count + i}" for i in range(words)) + "}" if from_registers else f"%{count}",
        b=count + words,
        accumulate=count + words + 1,
        modifiers="".join(f", {immediate}" for immediate in _modifiers(config, from_registers)),
    )


def _modifiers(config: GemmConfig, from_registers: bool) -> tuple[int, ...]:
    """The immediates after the predicate: signs of A and B except for integers, and majors of 16-bit operands in shared
    memory."""
    signs = () if config.b.loaded.is_integer else (1, 1)
    in_shared = (config.b,) if from_registers else (config.a, config.b)
    majors = tuple(int(x.major == "mn") for x in in_shared if x.loaded.bits == 16)
    return signs + majors


def _wrapped(items: Iterable[str], opening: str, closing: str) -> list[str]:
    """A comma-separated list, wrapped so that lines stay below 120 columns with quotes and indentation."""
    return textwrap.wrap(opening + ", ".join(items) + closing, 106, break_long_words=False, break_on_hyphens=False)


def _quoted(lines: list[str]) -> str:
    """Lines as adjacent C++ string literals."""
    return "\n".join(f'        "{line} "' for line in lines)
