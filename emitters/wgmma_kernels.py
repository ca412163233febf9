"""The source of TMA + WGMMA kernels: instantiations of kernel/tma_wgmma.cuh."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from string import Template
from typing import Literal

from gemmill.emitters import k_decomposition
from gemmill.emitters.epilogue.text import (
    epilogue_bytes,
    epilogue_offsets,
    epilogue_text,
    epilogue_type,
    staged_matrices,
)
from gemmill.emitters.placeholders import placeholders
from gemmill.emitters.wgmma_atom import wgmma_atom
from gemmill.library.config.batchings import GROUPED_EXTENT
from gemmill.library.config.model import GemmConfig, InputName
from gemmill.library.config.names import kernel_name
from gemmill.library.dtypes import DTYPES
from gemmill.library.epilogues.parse import gates_halves
from gemmill.library.families.wgmma.wgmma_plan import SUBTILE_M, Format, WgmmaPlan
from gemmill.library.launch import NESTED_EXTENTS, TMA_BYTES, LaunchSpec, TmaBox
from gemmill.library.legality.quantities import align_up

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
  using Terms = gemmill::$terms;
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
    "grouped": "GroupScheduler<gemmill::BatchMode::GroupedM, Order, TileK, false>",
    "masked": "GroupScheduler<gemmill::BatchMode::GroupedM, Order, TileK, true>",
    "ngrouped": "GroupScheduler<gemmill::BatchMode::GroupedN, Order, TileK, false>",
    "nmasked": "GroupScheduler<gemmill::BatchMode::GroupedN, Order, TileK, true>",
    "kgrouped": "KGroupScheduler<Order, TileK>",
    "array": "ArrayScheduler<Order, TileK>",
    "nested": "NestedScheduler<Order, TileK>",
}
"""The C++ scheduler by batching. For strided batching, the scheduler depends on the decomposition of K instead."""

_GATHERING_SCHEDULERS = {
    "grouped": "GroupScheduler<gemmill::BatchMode::GroupedM, Order, TileK, false, gemmill::GatherParams>",
    "kgrouped": "KGroupScheduler<Order, TileK, gemmill::GatherParams>",
    "ngrouped": "GroupScheduler<gemmill::BatchMode::GroupedN, Order, TileK, false, gemmill::GatherParams>",
}
"""The same where rows of an operand are found by an index."""

_PARAMETERS = {
    **dict.fromkeys(("m", "n", "k", "batch", "batched", "groups_stride"), 4),
    **dict.fromkeys(("d_pointer", "d_stride", "d_batch_stride"), 8),
    **{f"{x}_scale_{y}": 8 for x in "ab" for y in ("pointer", "stride", "k_stride", "batch_stride")},
    "groups_pointer": 8,
}
"""Size in bytes of each scalar of ``GemmParams`` after the descriptors, in order."""

_NESTED = ("inner", "middle", *(f"{x}_step_{i}" for x in "abcd" for i in range(NESTED_EXTENTS)))
"""The scalars that ``gemmill::NestedParams`` adds, 4 bytes each."""

_GATHER = {x: ("rows_pointer", "rows_stride", f"{x}_pointer", f"{x}_row_chunks", f"{x}_rows") for x in "ab"}
"""The scalars that ``gemmill::GatherParams`` adds, 8 bytes each, by the operand whose rows are found by an index."""

_UNALIGNED = ("a_pointer", "a_row_stride", "a_column_stride", "a_batch_stride")
"""The scalars that ``gemmill::UnalignedParams`` adds, 8 bytes each."""

_DESCRIPTORS = ("a", "b", "c", "d", "a_tail", "b_tail")
"""The descriptors of ``GemmParams``, in order."""


def _offsets(plan: WgmmaPlan) -> dict[str, int]:
    """The byte offset of each scalar, naturally aligned as in C++."""
    config = plan.config
    offsets, end = {}, len(_DESCRIPTORS) * TMA_BYTES
    for name, size in _PARAMETERS.items():
        offsets[name] = align_up(end, size)
        end = offsets[name] + size
    if config.scheduler.batching == "nested":
        added, size = _NESTED, 4
    elif plan.gathered:
        added, size = _GATHER[plan.gathered], 8
    else:
        added, size = k_decomposition.parameters(config), 8
    derived = align_up(end, 64)  # the alignment of the descriptors
    offsets |= {name: derived + size * i for i, name in enumerate(added)}
    return offsets


_OTHER = {"m": "n", "n": "m"}


def _at(descriptor: str) -> int:
    """The byte offset of a descriptor of ``GemmParams``."""
    return _DESCRIPTORS.index(descriptor) * TMA_BYTES


def _boxes(plan: WgmmaPlan, name: InputName) -> Iterator[TmaBox]:
    """The TMA boxes of A or B: one panel of this CTA's slice of rows, and a box for the remaining rows of the
    operand. For groups along K, the CTAs of a cluster load different panels."""
    config, operand, span = plan.config, plan.config.inputs[name], plan.swizzle(name)
    mn: Literal["m", "n"] = "m" if name == "a" else "n"
    k_major, batching = operand.major == "k", config.scheduler.batching
    # Boxes of grouped rows can overlap the next group, and arrays and groups along K use other descriptors.
    has_tail = k_major and (batching in ("strided", "nested") or GROUPED_EXTENT.get(batching) == _OTHER[mn])
    peers = 1 if batching == "kgrouped" else config.cluster.n if name == "a" else config.cluster.m
    rows = config.tile.k if not k_major else config.tile.m if name == "a" else config.tile.n
    box = TmaBox(
        operand=name,
        dtype=operand.loaded.name,
        contiguous="k" if k_major else mn,
        strided=mn if k_major else "k",
        box=(span // operand.loaded.unpacked_bytes, rows // peers),
        swizzle=span,
        offset=_at(name),
        window=rows if batching == "kgrouped" else 0,
        part="whole" if has_tail else "",
        anywhere=batching == "array",
        halves=name == "b" and gates_halves(config.epilogue),
    )
    yield box
    if has_tail:
        yield replace(box, part="tail", offset=_at(f"{name}_tail"))


def _group_box(plan: WgmmaPlan, operand: Literal["scale", "zero"], offset: int) -> TmaBox:
    """The TMA box of scales or zero points of a narrow A, (K / group, M): the groups of a stage, the rows of a tile."""
    return TmaBox(
        operand=operand,
        dtype=plan.group_scale_dtype,
        contiguous="m",
        strided="k",
        box=(plan.config.tile.m, plan.groups),
        swizzle=16,
        offset=offset,
        group=plan.group_size,
    )


def _output_boxes(plan: WgmmaPlan) -> Iterator[TmaBox]:
    """The TMA boxes of C and D, or of the partial sums in place of D: one panel of a subtile each."""
    batching = plan.config.scheduler.batching
    anywhere = batching == "array"
    if plan.stored_c:
        yield replace(_staged_box(plan, "c", plan.stored_c, _at("c")), anywhere=anywhere)
    window = {"m": SUBTILE_M, "n": plan.subtile_n}.get(GROUPED_EXTENT.get(batching, ""), 0)
    box = _staged_box(plan, "partials" if plan.has_second_kernel else "d", plan.stored_d, _at("d"))
    yield replace(box, window=window, anywhere=anywhere)


def _staged_box(plan: WgmmaPlan, name: str, staged: Format, offset: int) -> TmaBox:
    """The TMA box of a matrix with the shape of D. ``offset`` is that of its descriptor in the parameters."""
    return TmaBox(
        operand=name,
        dtype=staged.dtype,
        contiguous="n" if staged.major == "n" else "m",
        strided="m" if staged.major == "n" else "n",
        box=plan.subtile_box(staged),
        swizzle=plan.subtile_swizzle(staged),
        offset=offset,
    )


def launch_spec(plan: WgmmaPlan) -> LaunchSpec:
    """The launch facts of a kernel."""
    config = plan.config
    boxes = [*(box for x in config.inputs if x != plan.copied for box in _boxes(plan, x)), *_output_boxes(plan)]
    offsets = _offsets(plan)
    entry = f"gemmill_{kernel_name(config)}"
    params_bytes = align_up(max(offsets.values()) + 8, 64)
    if plan.groups:  # GroupParams
        boxes.append(_group_box(plan, "scale", params_bytes))
        if plan.has_zeros:
            boxes.append(_group_box(plan, "zero", params_bytes + TMA_BYTES))
        params_bytes += 2 * TMA_BYTES
    if plan.is_unaligned:  # UnalignedParams
        offsets |= {name: params_bytes + 8 * i for i, name in enumerate(_UNALIGNED)}
        params_bytes += 64
    # KernelParams aligns the epilogue's parameters, so they begin here, with the descriptors of its matrices.
    for i, x in enumerate(staged_matrices(config)):
        boxes.append(_staged_box(plan, f"epilogue.{x.name}", Format(x.dtype, x.major), params_bytes + i * TMA_BYTES))
    offsets |= {name: params_bytes + offset for name, offset in epilogue_offsets(config).items()}
    params_bytes = align_up(params_bytes + epilogue_bytes(config), 64)
    return LaunchSpec(
        entry=entry,
        threads=plan.threads,
        cluster=(config.cluster.m, config.cluster.n),
        cluster_k=plan.cluster_splits,
        shared_bytes=plan.shared_bytes,
        tile=(config.tile.m, config.tile.n),
        k_decomposition=k_decomposition.k_decomposition(plan, entry),
        boxes=tuple(boxes),
        params_bytes=params_bytes,
        offsets=offsets,
    )


def constants(launch: LaunchSpec) -> dict[str, int]:
    """The constants that the kernel must export, by name (``gemmill::KernelSpec``)."""
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
    constants |= {f"offset_{name}": launch.offsets[name] for name in _UNALIGNED if "a_row_stride" in launch.offsets}
    if "inner" in launch.offsets:
        constants |= {"offset_inner": launch.offsets["inner"], "offset_steps": launch.offsets["a_step_0"]}
    for x, names in _GATHER.items():
        constants |= {f"offset_{name}": launch.offsets[name] for name in names if f"{x}_rows" in launch.offsets}
    shared = launch.k_decomposition
    return constants | (k_decomposition.constants(shared, launch.offsets) if shared else {})


def _scheduler(plan: WgmmaPlan) -> str:
    """The C++ scheduler, a template of the order and tile K."""
    if plan.gathered:
        return _GATHERING_SCHEDULERS[plan.config.scheduler.batching]
    config = plan.config
    if plan.is_symmetric:
        return "TriangleScheduler<Order, TileK>"
    scheduler = _SCHEDULERS.get(config.scheduler.batching) or k_decomposition.scheduler(config)
    return f"OfUnaligned<gemmill::{scheduler}>" if plan.is_unaligned else scheduler


def _terms(config: GemmConfig) -> str:
    """The C++ type of the products that the kernel sums."""
    split = config.a.type
    if len(split.terms) == 1:
        return "OneTerm"
    of_a, of_b = (sum(component << 2 * i for i, component in enumerate(x)) for x in zip(*split.terms, strict=True))
    return f"Terms<{split.components}, {len(split.terms)}, {of_a:#x}, {of_b:#x}>"


def text(plan: WgmmaPlan, launch: LaunchSpec) -> str:
    """The source of a legal config's kernel."""
    config, scales = plan.config, plan.block_scale_dtype
    reduction = launch.k_decomposition.reduction if launch.k_decomposition else None
    epilogue = epilogue_type(config)
    spec_type, spec = "gemmill::KernelSpec", "Kernel::spec()"
    if launch.k_decomposition:
        spec_type, spec = k_decomposition.spec(config)
    elif launch.cluster_k > 1:
        spec_type, spec = "gemmill::ClusterSpec", "Kernel::cluster_spec()"
    elif config.scheduler.batching == "nested":
        spec_type, spec = "gemmill::NestedSpec", "Kernel::nested_spec()"
    elif plan.gathered:
        spec_type, spec = "gemmill::GatherSpec", "Kernel::gather_spec()"
    if plan.is_unaligned:
        spec_type, spec = f"gemmill::UnalignedSpec<{spec_type}>", f"Kernel::unaligned_spec({spec})"
    return _TEMPLATE.substitute(
        placeholders(config, launch),
        c=DTYPES[plan.stored_c.dtype].cpp if plan.stored_c else "gemmill::None",
        d=DTYPES[plan.stored_d.dtype].cpp,
        scale=DTYPES[scales].cpp if scales else "gemmill::None",
        cluster_m=config.cluster.m,
        cluster_n=config.cluster.n,
        schedule=config.schedule.capitalize(),
        consumers=plan.consumer_warpgroups,
        producer_registers=plan.producer_registers,
        consumer_registers=plan.consumer_registers,
        promote=str(config.promote > 0).lower(),
        group=plan.group_size,
        zeros=str(plan.has_zeros).lower(),
        subtile_n=plan.subtile_n,
        buffers_c=plan.c_buffers,
        buffers_d=plan.d_buffers,
        scheduler=_scheduler(plan),
        atom=wgmma_atom(plan),
        terms=_terms(config),
        epilogue=f"gemmill::Raw<{DTYPES[plan.partial_dtype].cpp}, {epilogue}>" if reduction else epilogue,
        epilogue_text=epilogue_text(config),
        spec_type=spec_type,
        spec=spec,
        reduction=k_decomposition.reduction(plan, reduction.entry, epilogue) if reduction else "",
    )
