"""The additional source of kernels whose CTAs share K: scheduler, parameters, constants, and the second kernel."""

from __future__ import annotations

from string import Template

from gemmill.library.arithmetic import UNITED_SLICES, tiles_of_unit
from gemmill.library.config.model import GemmConfig
from gemmill.library.decompositions.decomposition import DECOMPOSITIONS, decomposition_of
from gemmill.library.decompositions.workspace_layout import EXCHANGE_STEPS, REDUCTION_THREADS, reduction_vectors
from gemmill.library.dtypes import DTYPES
from gemmill.library.families.wgmma.wgmma_plan import WgmmaPlan
from gemmill.library.launch import KDecomposition, Reduction

_SCHEDULERS = {
    "tiles": "PersistentScheduler<Order, TileK>",
    "splitk": "SplitKScheduler<Order, TileK, {units}>",
    "stream": f"StreamScheduler<Order, TileK, {EXCHANGE_STEPS}>",
    "cluster": "ClusterScheduler<Order, TileK, {splits}, {unit}>",
    "serial": "SerialScheduler<Order, TileK, {unit}>",
    "tree": "SplitKScheduler<Order, TileK, {units}>",
}

PARAMETERS = ("partials", "flags", "c_pointer", "c_stride", "c_batch_stride")
"""The members that ``gemmill::PartialParams`` adds to ``GemmParams``, 8 bytes each; ``gemmill::SplitKParams`` also adds
``splits``, which is all that ``gemmill::SerialParams`` adds."""

_REDUCTION = Template("""
struct ReductionConfig {
  using C = $c;
  using D = $d;
  static constexpr gemmill::MajorOut kMajorC = gemmill::MajorOut::$major_c;
  static constexpr gemmill::MajorOut kMajorD = gemmill::MajorOut::$major_d;
  static constexpr int kAlignC = $align_c, kAlignD = $align_d;
  using Partial = $partial;
  using Epilogue = $epilogue;
};

using Reduction = gemmill::Reduction<ReductionConfig$tree>;

extern "C" __global__ void __launch_bounds__(Reduction::kThreads)
$entry(__grid_constant__ Kernel::Params const params) {
  Reduction::run(params);
}
""")


def scheduler(config: GemmConfig) -> str:
    """The C++ scheduler of a config, a template of the order and tile K."""
    few, more = (tiles_of_unit(config, slices) for slices in (UNITED_SLICES, UNITED_SLICES + 1))
    units = f"{few}, {more}" if more > 1 else few
    return _SCHEDULERS[config.scheduler.decomposition].format(splits=config.scheduler.splits, unit=few, units=units)


def parameters(config: GemmConfig) -> tuple[str, ...]:
    """The additional parameters, of up to 8 bytes each, of a kernel that sums slices of K."""
    how = decomposition_of(config)
    return (*(PARAMETERS if how.has_workspace else ()), *(("splits",) if how.has_slices else ()))


def spec(config: GemmConfig) -> tuple[str, str]:
    """The C++ type and value of the constants that such a kernel exports."""
    if decomposition_of(config).is_serial:
        return "gemmill::SerialSpec", "Kernel::serial_spec()"
    if decomposition_of(config).has_second_kernel:
        return "gemmill::SplitKSpec", "Kernel::splitk_spec<Reduction>()"
    return "gemmill::DecompositionSpec", "Kernel::decomposition_spec<gemmill::NoReduction>()"


def k_decomposition(plan: WgmmaPlan, entry: str) -> KDecomposition | None:
    """The launch facts of a kernel whose CTAs share K, or sum slices of K whose number the launch sets; None if it is
    neither."""
    split, how = plan.has_second_kernel, decomposition_of(plan.config)
    if not (how.has_workspace or how.has_slices):
        return None
    return KDecomposition(
        name=plan.config.scheduler.decomposition,
        tile_k=plan.config.tile.k,
        tile_bytes=plan.partial_tile_bytes if how.has_shares else 0,
        tile_flags=plan.partial_tile_flags if how.has_shares else 0,
        reduction=Reduction(
            entry=f"{entry}_reduction",
            threads=REDUCTION_THREADS,
            vectors=reduction_vectors(1),
        )
        if split
        else None,
    )


def constants(shared: KDecomposition, offsets: dict[str, int]) -> dict[str, int]:
    """The constants that the kernel must export in addition to its ``KernelSpec``, by name
    (``gemmill::DecompositionSpec``, ``gemmill::SplitKSpec`` or ``gemmill::SerialSpec``)."""
    reduction = shared.reduction
    named = {f"offset_{name}": offsets[name] for name in (*PARAMETERS, "splits") if name in offsets}
    if DECOMPOSITIONS[shared.name].is_serial:
        return {**named, "splits": shared.splits}
    return {
        **named,
        "splits": shared.splits,
        "tile_bytes": shared.tile_bytes,
        "tile_flags": shared.tile_flags,
        "reduction_threads": reduction.threads if reduction else 0,
        "reduction_vectors": reduction.vectors if reduction else 0,
    }


def reduction(plan: WgmmaPlan, entry: str, epilogue: str) -> str:
    """The source of the second kernel of a split-K config."""
    c, d = plan.config.c, plan.config.d
    return _REDUCTION.substitute(
        c=c.type.cpp if c else "gemmill::None",
        d=d.type.cpp,
        major_c=(c or d).major.upper(),
        major_d=d.major.upper(),
        align_c=(c or d).align,
        align_d=d.align,
        partial=DTYPES[plan.partial_dtype].cpp,
        epilogue=epilogue,
        tree=", true" if decomposition_of(plan.config).adds_in_tree else "",
        entry=entry,
    )
