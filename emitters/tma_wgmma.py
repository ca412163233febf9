"""The source of a TMA + WGMMA kernel: a thin instantiation of kernel/tma_wgmma.cuh."""

from __future__ import annotations

from string import Template
from typing import Literal

from gemmill.emitters.epilogue import epilogue_bytes, epilogue_offsets, epilogue_text, epilogue_type
from gemmill.emitters.wgmma import wgmma_atom
from gemmill.library import resources
from gemmill.library.config import GemmConfig
from gemmill.library.fields import Fields, fields_of
from gemmill.library.launch import TMA_BYTES, LaunchSpec, TmaBox
from gemmill.library.names import kernel_name

_TEMPLATE = Template("""\
#include <gemmill/kernel/tma_wgmma.cuh>

// $summary
$atom
${epilogue_text}struct Config {
  using A = $a;
  using B = $b;
  using C = $c;
  using D = $d;
  static constexpr gemmill::MajorIn kMajorA = gemmill::MajorIn::$major_a;
  static constexpr gemmill::MajorIn kMajorB = gemmill::MajorIn::$major_b;
  static constexpr gemmill::MajorOut kMajorC = gemmill::MajorOut::$major_c;
  static constexpr gemmill::MajorOut kMajorD = gemmill::MajorOut::$major_d;

  static constexpr int kTileM = $tile_m, kTileN = $tile_n, kTileK = $tile_k;
  static constexpr int kClusterM = $cluster_m, kClusterN = $cluster_n;
  static constexpr gemmill::Schedule kSchedule = gemmill::Schedule::$schedule;
  static constexpr int kConsumers = $consumers;
  static constexpr int kProducerRegisters = $producer_registers, kConsumerRegisters = $consumer_registers;
  static constexpr bool kPromote = $promote, kBlockScales = $block_scales;
  static constexpr int kStages = $stages, kBuffersC = $buffers_c, kBuffersD = $buffers_d;

  static constexpr gemmill::Raster kRaster = gemmill::Raster::$raster;
  static constexpr int kSwizzle = $swizzle;
  template <class Order, int TileK>
  using Scheduler = gemmill::$scheduler;

  using Atom = ::Atom;
  using Epilogue = $epilogue;
};

using Kernel = gemmill::TmaWgmmaGemm<Config>;

extern "C" __constant__ gemmill::KernelSpec $spec_symbol = Kernel::spec();

extern "C" __global__ void __launch_bounds__(Kernel::kThreads, 1) __cluster_dims__(Kernel::kClusterSize)
$entry(__grid_constant__ Kernel::Params const params) {
  Kernel::run(params);
}
""")

_PARAMETERS = {
    **dict.fromkeys(("m", "n", "k", "batch", "batched"), 4),
    **dict.fromkeys(("d_pointer", "d_stride", "d_batch_stride"), 8),
    **{f"{x}_scale_{y}": 8 for x in "ab" for y in ("pointer", "stride", "k_stride", "batch_stride")},
}
"""Bytes of each scalar of ``GemmParams``, in their order after the four descriptors."""


def _offsets() -> dict[str, int]:
    """Byte offset of each scalar: naturally aligned, as C++ lays them out."""
    offsets, end = {}, 4 * TMA_BYTES
    for name, size in _PARAMETERS.items():
        offsets[name] = resources.align_up(end, size)
        end = offsets[name] + size
    return offsets


def _box(fields: Fields, operand: Literal["a", "b"], index: int) -> TmaBox:
    """Box of an input: one panel, this block's slice of its rows."""
    mn: Literal["m", "n"] = "m" if operand == "a" else "n"
    k_major = fields[f"{operand}.major"] == "k"
    peers = resources.integer(fields, "cluster.n" if operand == "a" else "cluster.m")
    span = resources.operand_swizzle(fields, operand)
    rows = resources.integer(fields, f"tile.{mn}" if k_major else "tile.k")
    return TmaBox(
        operand=operand,
        dtype=fields[f"{operand}.dtype"],  # type: ignore[arg-type]
        contiguous="k" if k_major else mn,
        strided=mn if k_major else "k",
        box=(span // resources.element_bytes(fields, operand), rows // peers),
        swizzle=span,
        offset=index * TMA_BYTES,
    )


def _subtile_box(fields: Fields, operand: Literal["c", "d"], index: int) -> TmaBox:
    """Box of C or D: one panel of a subtile."""
    n_major = fields[f"{operand}.major"] == "n"
    return TmaBox(
        operand=operand,
        dtype=fields[f"{operand}.dtype"],  # type: ignore[arg-type]
        contiguous="n" if n_major else "m",
        strided="m" if n_major else "n",
        box=resources.subtile_box(fields, operand),
        swizzle=resources.subtile_swizzle(fields, operand),
        offset=index * TMA_BYTES,
    )


def launch_spec(config: GemmConfig) -> LaunchSpec:
    """The launch facts of a config's kernel."""
    fields = fields_of(config)
    boxes = [_box(fields, "a", 0), _box(fields, "b", 1)]
    if config.c is not None:
        boxes.append(_subtile_box(fields, "c", 2))
    boxes.append(_subtile_box(fields, "d", 3))
    offsets = _offsets()
    # KernelParams aligns the epilogue's own parameters so that they begin here, whatever a scheduler has added.
    epilogue = resources.align_up(max(offsets.values()) + 8, 64)
    offsets |= {name: epilogue + offset for name, offset in epilogue_offsets(config).items()}
    return LaunchSpec(
        entry=f"gemmill_{kernel_name(config)}",
        threads=resources.threads(fields),
        cluster=(config.cluster.m, config.cluster.n),
        shared_bytes=resources.shared_bytes(fields),
        tile=(config.tile.m, config.tile.n),
        boxes=tuple(boxes),
        params_bytes=resources.align_up(epilogue + epilogue_bytes(config), 64),
        offsets=offsets,
    )


def constants(launch: LaunchSpec) -> dict[str, int]:
    """What the kernel must export, in the order of ``gemmill::KernelSpec``."""
    constants = {
        "threads": launch.threads,
        "shared_bytes": launch.shared_bytes,
        "tile_m": launch.tile[0],
        "tile_n": launch.tile[1],
        "cluster_m": launch.cluster[0],
        "cluster_n": launch.cluster[1],
        "params_bytes": launch.params_bytes,
    }
    constants.update({f"offset_{operand}": i * TMA_BYTES for i, operand in enumerate("abcd")})
    constants.update({f"offset_{name}": launch.offsets[name] for name in (*_PARAMETERS, "epilogue")})
    boxes = {box.operand: box for box in launch.boxes}
    for operand in ("a", "b", "c", "d"):
        box = boxes.get(operand)
        constants[f"box_{operand}_contiguous"] = box.box[0] if box else 0
        constants[f"box_{operand}_strided"] = box.box[1] if box else 0
        constants[f"swizzle_{operand}"] = box.swizzle if box else 0
    return constants


def text(config: GemmConfig) -> str:
    """The source of a legal config's kernel."""
    fields = fields_of(config)
    launch = launch_spec(config)
    producer_registers, consumer_registers = resources.register_budget(fields)
    return _TEMPLATE.substitute(
        summary=f"{config.d.dtype} D = {config.a.dtype} A x {config.b.dtype} B, accumulated in {config.accumulator}",
        a=config.a.type.cpp,
        b=config.b.type.cpp,
        c=config.c.type.cpp if config.c else "gemmill::None",
        d=config.d.type.cpp,
        major_a=config.a.major.upper(),
        major_b=config.b.major.upper(),
        major_c=(config.c or config.d).major.upper(),
        major_d=config.d.major.upper(),
        tile_m=config.tile.m,
        tile_n=config.tile.n,
        tile_k=config.tile.k,
        cluster_m=config.cluster.m,
        cluster_n=config.cluster.n,
        schedule=config.schedule.capitalize(),
        consumers=resources.consumer_warpgroups(fields),
        producer_registers=producer_registers,
        consumer_registers=consumer_registers,
        promote=str(config.promote > 0).lower(),
        block_scales=str(config.a.scale != "none").lower(),
        stages=config.stages,
        buffers_c=resources.c_buffers(fields),
        buffers_d=resources.d_buffers(fields),
        raster=config.scheduler.raster.upper(),
        swizzle=config.scheduler.swizzle,
        scheduler="PersistentScheduler<Order, TileK>",
        atom=wgmma_atom(config),
        epilogue=epilogue_type(config),
        epilogue_text=epilogue_text(config),
        spec_symbol=f"{launch.entry}_spec",
        entry=launch.entry,
    )
