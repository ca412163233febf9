"""The source of kernels that measure a peak rate: instantiations of kernel/peak_rate.cuh with one WGMMA instruction.

Such a kernel is a GEMM kernel without loads and stores. Manifests cannot declare it; the config of that GEMM kernel
defines its instruction and tile.
"""

from __future__ import annotations

from string import Template

from gemmill.emitters import headers_digest
from gemmill.emitters.emit import EmittedSource
from gemmill.emitters.placeholders import placeholders
from gemmill.emitters.wgmma_atom import wgmma_atom
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import parse_name
from gemmill.library.dtypes import DTYPES, DTypeName, default_accumulator, default_output
from gemmill.library.families.wgmma.wgmma_plan import INSTRUCTION_K_BYTES, WARPGROUP, WgmmaPlan
from gemmill.library.launch import LaunchSpec

MEASURED_DTYPES: tuple[DTypeName, ...] = ("bf16", "f16", "tf32", "e4m3", "s8")
"""Types of A and B with different peak rates."""

STAGES = 4
"""Stages of A and B in shared memory. They fill nearly all of it, so that data repeats as late as possible."""

_TEMPLATE = Template("""\
#include <gemmill/kernel/peak_rate.cuh>

// The peak rate of $dtype x $dtype, accumulated in $accumulator
$atom
struct Config {
  using A = $a;
  using B = $b;
  static constexpr int kTileM = $tile_m, kTileN = $tile_n, kTileK = $tile_k;
  static constexpr int kConsumers = $consumers;
  static constexpr int kStages = $stages;
  using Atom = ::Atom;
};

using Kernel = gemmill::PeakRate<Config>;

extern "C" __constant__ gemmill::PeakRateSpec $spec_symbol = Kernel::spec();

extern "C" __global__ void __launch_bounds__(Kernel::kThreads, 1)
$entry(__grid_constant__ gemmill::PeakRateParams const params) {
  Kernel::run(params);
}
""")

_OFFSETS = {"a": 0, "b": 8, "sums": 16, "tiles": 24, "steps": 28}
"""Byte offset of each member of ``gemmill::PeakRateParams``: three addresses, two int32."""
_PARAMS_BYTES = 32


def peak_rate_config(dtype: DTypeName) -> GemmConfig:
    """The config whose main loop such a kernel repeats: K-major operands, two warpgroups with 64 x 256 of each tile."""
    output = default_output(dtype)
    accumulator = default_accumulator(dtype)
    tile_k = 4 * INSTRUCTION_K_BYTES // DTYPES[dtype].bytes
    return parse_name(
        f"sm90a_{dtype}k16_{dtype}k16_{accumulator}_none_{output}n16_128x256x{tile_k}_1x1_cooperative_s{STAGES}"
        "_m1_k1_linear"
    )


def emit_peak_rate(config: GemmConfig) -> EmittedSource:
    """The source of the peak-rate kernel for a config from :func:`peak_rate_config`."""
    plan = WgmmaPlan(config)
    entry = f"gemmill_peak_rate_{config.a.dtype}"
    launch = LaunchSpec(
        entry=entry,
        threads=WARPGROUP * plan.consumer_warpgroups,
        cluster=(1, 1),
        shared_bytes=config.stages * sum(plan.stage_bytes),
        tile=(config.tile.m, config.tile.n),
        boxes=(),
        params_bytes=_PARAMS_BYTES,
        offsets=_OFFSETS,
    )
    return EmittedSource(
        name=f"peak rate of {config.a.dtype}",
        text=_TEMPLATE.substitute(
            placeholders(config, launch),
            dtype=config.a.dtype,
            accumulator=config.accumulator,
            consumers=plan.consumer_warpgroups,
            atom=wgmma_atom(plan),
        ),
        entry=entry,
        constants={
            "threads": launch.threads,
            "shared_bytes": launch.shared_bytes,
            "tile_m": launch.tile[0],
            "tile_n": launch.tile[1],
            "params_bytes": launch.params_bytes,
            **{f"offset_{name}": offset for name, offset in launch.offsets.items()},
        },
        launch=launch,
        headers_digest=headers_digest(),
    )
