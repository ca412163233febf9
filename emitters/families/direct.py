"""What the emitters of the families without TMA share: parameters, constants, and the frame of a kernel's source."""

from __future__ import annotations

from string import Template

from gemmill.emitters.epilogue.text import compute_type, epilogue_bytes, epilogue_offsets, epilogue_text
from gemmill.emitters.placeholders import placeholders
from gemmill.library.config.fields import fields_of
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name
from gemmill.library.dtypes import DTYPES
from gemmill.library.epilogues.parse import LINEAR
from gemmill.library.launch import LaunchSpec
from gemmill.library.legality.footprint import FAMILY
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

_STRIDED = ("pointer", "row_stride", "column_stride", "batch_stride")
"""Members of ``StridedMatrix``, each of 8 bytes."""
_SCALARS = {"alpha64": 8, "beta64": 8, "m": 4, "n": 4, "k": 4, "batch": 4}
"""Bytes of what follows the four matrices in ``DirectParams``."""


def _offsets() -> dict[str, int]:
    """Byte offset of each parameter in ``DirectParams``."""
    offsets, end = {}, 0
    for name, size in ({f"{x}_{member}": 8 for x in "abcd" for member in _STRIDED} | _SCALARS).items():
        offsets[name] = end
        end += size
    return offsets


def launch_spec(config: GemmConfig) -> LaunchSpec:
    """The launch facts of a config's kernel."""
    fields, family, offsets = fields_of(config), FAMILY[config.family], _offsets()
    params_bytes = align_up(max(offsets.values()) + 4, 8)
    if config.epilogue != LINEAR:  # ExpressionParams
        offsets |= {name: params_bytes + offset for name, offset in epilogue_offsets(config).items()}
        params_bytes += epilogue_bytes(config)
    return LaunchSpec(
        entry=f"gemmill_{kernel_name(config)}",
        threads=family.threads(fields),
        cluster=(1, 1),
        shared_bytes=family.shared_bytes(fields),
        tile=(config.tile.m, config.tile.n),
        boxes=(),
        params_bytes=params_bytes,
        offsets=offsets,
    )


def constants(launch: LaunchSpec) -> dict[str, int]:
    """What the kernel must export, by name: ``gemmill::DirectSpec``."""
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


def text(config: GemmConfig, *, header: str, kernel: str, atom: str = "", members: str = "") -> str:
    """The source of a legal config's kernel: an instantiation of a class template of ``kernel/<header>.cuh``."""
    launch = launch_spec(config)
    plain, compute = config.epilogue == LINEAR, DTYPES[compute_type(config)].cpp
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
        include="" if plain else "#include <gemmill/epilogue/expression.cuh>\n",
        epilogue_text=epilogue_text(config),
        epilogue=f"gemmill::Linear<{compute}>" if plain else "gemmill::DirectExpression<::Epilogue>",
        spec="Kernel" if plain else "Kernel, gemmill::ExpressionParams<::Epilogue>",
        params="DirectParams" if plain else "ExpressionParams<::Epilogue>",
        kernel=kernel,
    )
