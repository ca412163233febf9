"""The source of a TMA + WGMMA kernel: a thin instantiation of kernel/tma_wgmma.cuh."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from string import Template
from typing import Literal

from gemmill.emitters import decomposition
from gemmill.emitters.epilogue.text import (
    epilogue_bytes,
    epilogue_offsets,
    epilogue_text,
    epilogue_type,
    staged_matrices,
)
from gemmill.emitters.families.wgmma_atom import wgmma_atom
from gemmill.emitters.placeholders import placeholders
from gemmill.library.config.fields import Fields, fields_of
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name
from gemmill.library.decompositions.decomposition import decomposition_of, has_second_kernel
from gemmill.library.decompositions.launched import compiled
from gemmill.library.dtypes import DTYPES
from gemmill.library.families.wgmma import ring, shared_memory, subtiles, warpgroups
from gemmill.library.launch import NESTED_EXTENTS, TMA_BYTES, LaunchSpec, TmaBox
from gemmill.library.legality.quantities import align_up, element_bytes, integer, partial_dtype

_TEMPLATE = Template("""\
#include <gemmill/kernel/tma_wgmma.cuh>

// $summary
$atom
${epilogue_text}struct Config {
  using A = $a;
  using B = $b;
  using C = $c;
  using D = $d;
  using Scale = $scale;
  static constexpr gemmill::MajorIn kMajorA = gemmill::MajorIn::$major_a;
  static constexpr gemmill::MajorIn kMajorB = gemmill::MajorIn::$major_b;
  static constexpr gemmill::MajorOut kMajorC = gemmill::MajorOut::$major_c;
  static constexpr gemmill::MajorOut kMajorD = gemmill::MajorOut::$major_d;

  static constexpr int kTileM = $tile_m, kTileN = $tile_n, kTileK = $tile_k;
  static constexpr int kClusterM = $cluster_m, kClusterN = $cluster_n;
  static constexpr gemmill::Schedule kSchedule = gemmill::Schedule::$schedule;
  static constexpr int kConsumers = $consumers;
  static constexpr int kProducerRegisters = $producer_registers, kConsumerRegisters = $consumer_registers;
  static constexpr bool kPromote = $promote;
  static constexpr int kGroup = $group;
  static constexpr bool kZeros = $zeros;
  static constexpr int kStages = $stages, kSubtileN = $subtile_n, kBuffersC = $buffers_c, kBuffersD = $buffers_d;

$fields
  template <class Order, int TileK>
  using Scheduler = gemmill::$scheduler;

  using Atom = ::Atom;
  using Epilogue = $epilogue;
};

using Kernel = gemmill::TmaWgmmaGemm<Config>;
$reduction
extern "C" __constant__ $spec_type $spec_symbol = $spec;

extern "C" __global__ void __launch_bounds__(Kernel::kThreads, 1) __cluster_dims__(Kernel::kClusterSize)
$entry(__grid_constant__ Kernel::Params const params) {
  Kernel::run(params);
}
""")

_SCHEDULERS = {
    "grouped": "RowGroupScheduler<Order, TileK, false>",
    "masked": "RowGroupScheduler<Order, TileK, true>",
    "kgrouped": "KGroupScheduler<Order, TileK>",
    "array": "ArrayScheduler<Order, TileK>",
    "nested": "NestedScheduler<Order, TileK>",
}
"""The C++ scheduler of each kind of batch but the strided one, whose scheduler depends on the decomposition of K."""

_PARAMETERS = {
    **dict.fromkeys(("m", "n", "k", "batch", "batched", "groups_stride"), 4),
    **dict.fromkeys(("d_pointer", "d_stride", "d_batch_stride"), 8),
    **{f"{x}_scale_{y}": 8 for x in "ab" for y in ("pointer", "stride", "k_stride", "batch_stride")},
    "groups_pointer": 8,
}
"""Bytes of each scalar of ``GemmParams``, in their order after the descriptors."""

_NESTED = ("inner", "middle", *(f"{x}_step_{i}" for x in "abcd" for i in range(NESTED_EXTENTS)))
"""What ``gemmill::NestedParams`` adds to them, 4 bytes each."""

_DESCRIPTORS = ("a", "b", "c", "d", "a_tail", "b_tail")
"""The descriptors of ``GemmParams``, in their order."""


def _offsets(config: GemmConfig) -> dict[str, int]:
    """Byte offset of each scalar: naturally aligned, as C++ lays them out."""
    offsets, end = {}, len(_DESCRIPTORS) * TMA_BYTES
    for name, size in _PARAMETERS.items():
        offsets[name] = align_up(end, size)
        end = offsets[name] + size
    added: tuple[str, ...] = ()
    if config.scheduler.batching == "nested":
        added, size = _NESTED, 4
    elif decomposition_of(config).has_workspace:
        added, size = decomposition.parameters(config), 8
    derived = align_up(end, 64)  # as aligned as its descriptors
    offsets |= {name: derived + size * i for i, name in enumerate(added)}
    return offsets


def _at(descriptor: str) -> int:
    """Byte offset of a descriptor of ``GemmParams``."""
    return _DESCRIPTORS.index(descriptor) * TMA_BYTES


def _boxes(fields: Fields, operand: Literal["a", "b"]) -> Iterator[TmaBox]:
    """Boxes of an input: one panel, this CTA's slice of its rows; and what these leave of the operand's rows."""
    mn: Literal["m", "n"] = "m" if operand == "a" else "n"
    k_major = fields[f"{operand}.major"] == "k"
    peers = integer(fields, "cluster.n" if operand == "a" else "cluster.m")
    span = ring.operand_swizzle(fields, operand)
    batching = fields["scheduler.batching"]
    # The rows of a group have neighbours, which boxes reach into, and those of arrays and along K are found otherwise.
    cut = k_major and batching in ("strided", "nested", *(("grouped", "masked") if operand == "b" else ()))
    rows = integer(fields, f"tile.{mn}" if k_major else "tile.k")
    box = TmaBox(
        operand=operand,
        dtype=fields[f"{operand}.dtype"],  # type: ignore[arg-type]
        contiguous="k" if k_major else mn,
        strided=mn if k_major else "k",
        box=(span // element_bytes(fields, operand), rows // peers),
        swizzle=span,
        offset=_at(operand),
        window=rows if batching == "kgrouped" else 0,
        part="whole" if cut else "",
        anywhere=batching == "array",
    )
    yield box
    if cut:
        yield replace(box, part="tail", offset=_at(f"{operand}_tail"))


def _group_box(fields: Fields, operand: Literal["scale", "zero"], offset: int) -> TmaBox:
    """Box of the scales or zero points of narrow A, (K / group, M): the groups of a stage, the rows of a tile."""
    return TmaBox(
        operand=operand,
        dtype=fields["b.dtype"],  # type: ignore[arg-type]
        contiguous="m",
        strided="k",
        box=(integer(fields, "tile.m"), warpgroups.groups(fields)),
        swizzle=16,
        offset=offset,
        group=warpgroups.group_size(fields),
    )


def _subtile_box(fields: Fields, operand: Literal["c", "d"]) -> TmaBox:
    """Box of C or D, or of the partial sums stored in D's place: one panel of a subtile."""
    row_groups = fields["scheduler.batching"] in ("grouped", "masked")
    staged = subtiles.stored_dtype(fields, operand), str(fields[f"{operand}.major"])
    box = _staged_box(fields, "partials" if has_second_kernel(fields) else operand, staged, _at(operand))
    window = warpgroups.SUBTILE_M if operand == "d" and row_groups else 0
    return replace(box, window=window, anywhere=fields["scheduler.batching"] == "array")


def _staged_box(fields: Fields, name: str, staged: subtiles.Format, offset: int) -> TmaBox:
    """Box of a matrix of D's shape, whose descriptor lies at an offset in the parameters."""
    dtype, major = staged
    return TmaBox(
        operand=name,
        dtype=dtype,  # type: ignore[arg-type]
        contiguous="n" if major == "n" else "m",
        strided="m" if major == "n" else "n",
        box=subtiles.subtile_box(fields, staged),
        swizzle=subtiles.subtile_swizzle(fields, staged),
        offset=offset,
    )


def launch_spec(config: GemmConfig) -> LaunchSpec:
    """The launch facts of a config's kernel."""
    fields = fields_of(config)
    boxes = [*_boxes(fields, "a"), *_boxes(fields, "b")]
    if subtiles.stored_dtype(fields, "c") != "none":
        boxes.append(_subtile_box(fields, "c"))
    boxes.append(_subtile_box(fields, "d"))
    offsets = _offsets(config)
    entry = f"gemmill_{kernel_name(compiled(config))}"
    params_bytes = align_up(max(offsets.values()) + 8, 64)
    if warpgroups.groups(fields):  # GroupParams
        boxes.append(_group_box(fields, "scale", params_bytes))
        if warpgroups.has_zeros(fields):
            boxes.append(_group_box(fields, "zero", params_bytes + TMA_BYTES))
        params_bytes += 2 * TMA_BYTES
    # KernelParams aligns the epilogue's own parameters so that they begin here, with the descriptors of its matrices.
    for i, x in enumerate(staged_matrices(config)):
        boxes.append(_staged_box(fields, f"epilogue.{x.name}", (x.dtype, x.major), params_bytes + i * TMA_BYTES))
    offsets |= {name: params_bytes + offset for name, offset in epilogue_offsets(config).items()}
    params_bytes = align_up(params_bytes + epilogue_bytes(config), 64)
    return LaunchSpec(
        entry=entry,
        threads=warpgroups.threads(fields),
        cluster=(config.cluster.m, config.cluster.n),
        cluster_k=warpgroups.cluster_splits(fields),
        shared_bytes=shared_memory.shared_bytes(fields),
        tile=(config.tile.m, config.tile.n),
        k_decomposition=decomposition.k_decomposition(config, entry),
        boxes=tuple(boxes),
        params_bytes=params_bytes,
        offsets=offsets,
    )


def constants(launch: LaunchSpec) -> dict[str, int]:
    """What the kernel must export, by name: ``gemmill::KernelSpec``."""
    constants = {
        "threads": launch.threads,
        "shared_bytes": launch.shared_bytes,
        "tile_m": launch.tile[0],
        "tile_n": launch.tile[1],
        "cluster_m": launch.cluster[0],
        "cluster_n": launch.cluster[1],
        "params_bytes": launch.params_bytes,
    }
    constants.update({f"offset_{operand}": _at(operand) for operand in "abcd"})
    constants.update({f"offset_{name}": launch.offsets[name] for name in _PARAMETERS})
    tails = {box.operand: box for box in launch.boxes if box.part == "tail"}
    boxes = {"d" if box.operand == "partials" else box.operand: box for box in launch.boxes if box.part != "tail"}
    for operand in ("a", "b", "c", "d"):
        box = boxes.get(operand)
        constants[f"box_{operand}_contiguous"] = box.box[0] if box else 0
        constants[f"box_{operand}_strided"] = box.box[1] if box else 0
        constants[f"swizzle_{operand}"] = box.swizzle if box else 0
        constants[f"window_{operand}"] = box.window if box else 0
    for operand in ("scale", "zero"):
        constants[f"offset_{operand}"] = boxes[operand].offset if operand in boxes else 0
    constants["groups"] = boxes["scale"].box[1] if "scale" in boxes else 0
    constants |= {f"offset_{x}_tail": tails[x].offset if x in tails else 0 for x in ("a", "b")}
    constants["offset_epilogue"] = launch.offsets["epilogue"]
    if launch.cluster_k > 1:
        constants["splits"] = launch.cluster_k
    if "inner" in launch.offsets:
        constants |= {"offset_inner": launch.offsets["inner"], "offset_steps": launch.offsets["a_step_0"]}
    shared = launch.k_decomposition
    return constants | (decomposition.constants(shared, launch.offsets) if shared else {})


def text(config: GemmConfig) -> str:
    """The source of a legal config's kernel."""
    fields = fields_of(config)
    launch = launch_spec(config)
    reduction = launch.k_decomposition.reduction if launch.k_decomposition else None
    epilogue = epilogue_type(config)
    spec_type, spec = "gemmill::KernelSpec", "Kernel::spec()"
    if launch.k_decomposition:
        spec_type, spec = decomposition.spec(config)
    elif launch.cluster_k > 1:
        spec_type, spec = "gemmill::ClusterSpec", "Kernel::cluster_spec()"
    elif config.scheduler.batching == "nested":
        spec_type, spec = "gemmill::NestedSpec", "Kernel::nested_spec()"
    stored_c, scales = subtiles.stored_dtype(fields, "c"), warpgroups.block_scale_dtype(fields)
    producer_registers, consumer_registers = warpgroups.register_budget(fields)
    return _TEMPLATE.substitute(
        placeholders(config, launch),
        c="gemmill::None" if stored_c == "none" else DTYPES[stored_c].cpp,
        d=DTYPES[subtiles.stored_dtype(fields, "d")].cpp,
        scale=DTYPES[scales].cpp if scales else "gemmill::None",
        cluster_m=config.cluster.m,
        cluster_n=config.cluster.n,
        schedule=config.schedule.capitalize(),
        consumers=warpgroups.consumer_warpgroups(fields),
        producer_registers=producer_registers,
        consumer_registers=consumer_registers,
        promote=str(config.promote > 0).lower(),
        group=warpgroups.group_size(fields),
        zeros=str(warpgroups.has_zeros(fields)).lower(),
        subtile_n=subtiles.subtile_n(fields),
        buffers_c=subtiles.c_buffers(fields),
        buffers_d=shared_memory.d_buffers(fields),
        scheduler=_SCHEDULERS.get(config.scheduler.batching) or decomposition.scheduler(config),
        atom=wgmma_atom(config),
        epilogue=f"gemmill::Raw<{DTYPES[partial_dtype(fields)].cpp}, {epilogue}>" if reduction else epilogue,
        epilogue_text=epilogue_text(config),
        spec_type=spec_type,
        spec=spec,
        reduction=decomposition.reduction(config, reduction.entry, epilogue) if reduction else "",
    )
