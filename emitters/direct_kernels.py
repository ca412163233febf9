"""Sources of kernels without TMA: instantiations of kernel/{gemv,mma_sync,simt}.cuh. gemv and mma_sync use one MMA
instruction, which is emitted as PTX."""

from __future__ import annotations

from string import Template

from gemmill.emitters.epilogue.text import compute_type, epilogue_bytes, epilogue_offsets, epilogue_text
from gemmill.emitters.placeholders import placeholders
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name
from gemmill.library.dtypes import DTYPES, FP8
from gemmill.library.epilogues.parse import LINEAR
from gemmill.library.families.gemv import GemvPlan
from gemmill.library.families.mma import MmaPlan
from gemmill.library.families.shared_rules import DirectPlan
from gemmill.library.families.simt import SimtPlan
from gemmill.library.launch import LaunchSpec
from gemmill.library.legality.quantities import align_up

_TEMPLATE = Template("""\
#include <gemmill/kernel/$header.cuh>
$include
// $summary
${atom}${epilogue_text}struct Config {
  using A = $a;
  using B = $b;
  using C = $c;
  using D = $d;
  using Accumulator = $accumulator;
  static constexpr gemmill::MajorIn kMajorA = gemmill::MajorIn::$major_a;
  static constexpr gemmill::MajorIn kMajorB = gemmill::MajorIn::$major_b;
  static constexpr gemmill::MajorOut kMajorC = gemmill::MajorOut::$major_c;
  static constexpr gemmill::MajorOut kMajorD = gemmill::MajorOut::$major_d;
  static constexpr int kAlignA = $align_a, kAlignB = $align_b, kAlignC = $align_c, kAlignD = $align_d;

  static constexpr int kTileM = $tile_m, kTileN = $tile_n, kTileK = $tile_k;
  static constexpr int kStages = $stages;

$fields

$members  using Epilogue = $epilogue;
};

using Kernel = gemmill::$kernel<Config>;

extern "C" __constant__ gemmill::DirectSpec $spec_symbol = gemmill::direct_spec<$spec>();

extern "C" __global__ void __launch_bounds__(Kernel::kThreads, Kernel::kBlocks)
$entry(__grid_constant__ gemmill::$params const params) {
  Kernel::run(params);
}
""")

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
"""Before sm_90 the only f64 MMA shape is 8 x 8 x 4."""

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
"""8 x 8 x 4 per quadpair; operands that are not K-major are not transposed."""

_STRIDED = ("pointer", "row_stride", "column_stride", "batch_stride")
"""Members of ``StridedMatrix``, 8 bytes each."""
_SCALARS = {"alpha64": 8, "beta64": 8, "m": 4, "n": 4, "k": 4, "batch": 4}
"""Sizes in bytes of the members of ``DirectParams`` after the four matrices."""


def _offsets() -> dict[str, int]:
    """Byte offset of each parameter in ``DirectParams``."""
    offsets, end = {}, 0
    for name, size in ({f"{x}_{member}": 8 for x in "abcd" for member in _STRIDED} | _SCALARS).items():
        offsets[name] = end
        end += size
    return offsets


def launch_spec(plan: DirectPlan) -> LaunchSpec:
    """The launch facts of a kernel."""
    config, offsets = plan.config, _offsets()
    params_bytes = align_up(max(offsets.values()) + 4, 8)
    if config.epilogue != LINEAR:  # ExpressionParams
        offsets |= {name: params_bytes + offset for name, offset in epilogue_offsets(config).items()}
        params_bytes += epilogue_bytes(config)
    return LaunchSpec(
        entry=f"gemmill_{kernel_name(config)}",
        threads=plan.threads,
        cluster=(1, 1),
        shared_bytes=plan.shared_bytes,
        tile=(config.tile.m, config.tile.n),
        boxes=(),
        params_bytes=params_bytes,
        offsets=offsets,
    )


def constants(launch: LaunchSpec) -> dict[str, int]:
    """The constants that the kernel must export, by name (``gemmill::DirectSpec``)."""
    return {
        "threads": launch.threads,
        "shared_bytes": launch.shared_bytes,
        "tile_m": launch.tile[0],
        "tile_n": launch.tile[1],
        "params_bytes": launch.params_bytes,
        **{f"offset_{operand}": launch.offsets[f"{operand}_pointer"] for operand in "abcd"},
        **{f"offset_{member}": launch.offsets[f"a_{member}"] for member in _STRIDED[1:]},
        **{f"offset_{name}": launch.offsets[name] for name in _SCALARS},
    }


def text(plan: DirectPlan, launch: LaunchSpec) -> str:
    """The source of a legal config's kernel."""
    config = plan.config
    header, kernel, atom, members = _instance(plan)
    is_linear, compute = config.epilogue == LINEAR, DTYPES[compute_type(config)].cpp
    return _TEMPLATE.substitute(
        placeholders(config, launch),
        header=header,
        atom=atom,
        members=members,
        accumulator=DTYPES[config.accumulator].cpp,
        align_a=config.a.align,
        align_b=config.b.align,
        align_c=(config.c or config.d).align,
        align_d=config.d.align,
        include="" if is_linear else "#include <gemmill/epilogue/expression.cuh>\n",
        epilogue_text=epilogue_text(config),
        epilogue=f"gemmill::Linear<{compute}>" if is_linear else "gemmill::DirectExpression<::Epilogue>",
        spec="Kernel" if is_linear else "Kernel, gemmill::ExpressionParams<::Epilogue>",
        params="DirectParams" if is_linear else "ExpressionParams<::Epilogue>",
        kernel=kernel,
    )


def _instance(plan: DirectPlan) -> tuple[str, str, str, str]:
    """The header of the class template, its name, the MMA instruction, and members of the kernel's ``Config``."""
    atom = "  using Atom = ::Atom;\n"
    match plan:
        case GemvPlan():
            blocks = f"  static constexpr int kBlocks = {plan.ctas_per_sm};\n"
            return "gemv", "Gemv", _mma_atom(plan.config), atom + blocks
        case MmaPlan():
            kernel = "QuadpairGemm" if plan.has_quadpairs else "MmaSyncGemm"
            return "mma_sync", kernel, _mma_atom(plan.config), atom
        case SimtPlan():
            along_m, along_n = plan.sides
            sides = f"  static constexpr int kThreadsM = {along_m}, kThreadsN = {along_n};\n"
            return "simt", "SimtGemm", "", sides
        case _:
            raise TypeError(f"{type(plan).__name__} has no header")


def _mma_atom(config: GemmConfig) -> str:
    """``struct Atom``: 16 x 8 x 32 bytes; on sm_70, 8 x 8 x 4 elements (PTX ISA, "mma")."""
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
