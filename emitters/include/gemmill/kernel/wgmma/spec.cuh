/// The facts that a WGMMA kernel exports and that the host computes too.
#pragma once

#include <gemmill/fact.cuh>
#include <gemmill/kernel/reduction.cuh>
#include <gemmill/kernel/wgmma/storage.cuh>

namespace gemmill {

/// Values that the host computes too. The compiler rejects a kernel if the two differ (emitters/emit.py).
struct KernelSpec {
  Fact facts[51];
};

/// The same for a kernel that sums slices of K through a workspace, with its reduction kernel.
struct DecompositionSpec {
  KernelSpec kernel;
  Fact facts[10];
};

/// The same for a split-K kernel.
struct SplitKSpec {
  DecompositionSpec decomposition;
  Fact offset_splits;
};

/// The same for a serial split-K kernel.
struct SerialSpec {
  KernelSpec kernel;
  Fact facts[2];
};

/// The same for a kernel whose clusters split K among their CTAs.
struct ClusterSpec {
  KernelSpec kernel;
  Fact splits;
};

/// The same for a kernel with a nested batch.
struct NestedSpec {
  KernelSpec kernel;
  Fact facts[2];
};

/// The same for a kernel that finds the rows of an operand by an index.
struct GatherSpec {
  KernelSpec kernel;
  Fact facts[5];
};

/// The same for a kernel whose A has any alignment; `Spec` is that of its decomposition of K.
template <class Spec>
struct UnalignedSpec {
  Spec spec;
  Fact facts[4];
};

template <class Traits>
struct WgmmaSpec {
  using Storage = WgmmaStorage<Traits>;
  using Config = typename Traits::Config;
  using Groups = typename Traits::Groups;
  using LoadA = typename Traits::LoadA;
  using LoadB = typename Traits::LoadB;
  /// Whether TMA loads A and B, so that they have descriptors.
  static constexpr bool kBoxesA = !Traits::kGathersA, kBoxesB = !Traits::kGathersB;
  using Params = typename Traits::Params;
  using Partials = typename Traits::Partials;
  using TmaLayoutA = typename Traits::TmaLayoutA;
  using TmaLayoutB = typename Traits::TmaLayoutB;
  using Scheduler = typename Traits::Scheduler;
  using SubtileC = typename Traits::SubtileC;
  using SubtileD = typename Traits::SubtileD;

  static constexpr uint32_t kOffsetScale = sizeof(typename Scheduler::Params);

  static constexpr KernelSpec spec() {
    return {fact("threads", Traits::kThreads),
            fact("shared_bytes", Storage::kSharedBytes),
            fact("tile_m", Config::kTileM),
            fact("tile_n", Config::kTileN),
            fact("cluster_m", Config::kClusterM),
            fact("cluster_n", Config::kClusterN),
            fact("params_bytes", sizeof(Params)),
            fact("offset_a", offsetof(GemmParams, a)),
            fact("offset_b", offsetof(GemmParams, b)),
            fact("offset_c", offsetof(GemmParams, c)),
            fact("offset_d", offsetof(GemmParams, d)),
            fact("offset_m", offsetof(GemmParams, m)),
            fact("offset_n", offsetof(GemmParams, n)),
            fact("offset_k", offsetof(GemmParams, k)),
            fact("offset_batch", offsetof(GemmParams, batch)),
            fact("offset_batched", offsetof(GemmParams, batched)),
            fact("offset_groups_stride", offsetof(GemmParams, groups_stride)),
            fact("offset_d_pointer", offsetof(GemmParams, d_pointer)),
            fact("offset_d_stride", offsetof(GemmParams, d_stride)),
            fact("offset_d_batch_stride", offsetof(GemmParams, d_batch_stride)),
            fact("offset_a_scale_pointer", offsetof(GemmParams, a_scale.pointer)),
            fact("offset_a_scale_stride", offsetof(GemmParams, a_scale.stride)),
            fact("offset_a_scale_k_stride", offsetof(GemmParams, a_scale.k_stride)),
            fact("offset_a_scale_batch_stride", offsetof(GemmParams, a_scale.batch_stride)),
            fact("offset_b_scale_pointer", offsetof(GemmParams, b_scale.pointer)),
            fact("offset_b_scale_stride", offsetof(GemmParams, b_scale.stride)),
            fact("offset_b_scale_k_stride", offsetof(GemmParams, b_scale.k_stride)),
            fact("offset_b_scale_batch_stride", offsetof(GemmParams, b_scale.batch_stride)),
            fact("offset_groups_pointer", offsetof(GemmParams, groups)),
            fact("box_a_contiguous", kBoxesA ? TmaLayoutA::kPanelExtent : 0),
            fact("box_a_strided", kBoxesA ? LoadA::kRows : 0),
            fact("swizzle_a", kBoxesA ? TmaLayoutA::kSpan : 0),
            fact("window_a", kBoxesA ? Traits::kWindowK : 0),
            fact("box_b_contiguous", kBoxesB ? TmaLayoutB::kPanelExtent : 0),
            fact("box_b_strided", kBoxesB ? LoadB::kRows : 0),
            fact("swizzle_b", kBoxesB ? TmaLayoutB::kSpan : 0),
            fact("window_b", kBoxesB ? Traits::kWindowK : 0),
            fact("box_c_contiguous", SubtileC::kBoxContiguous),
            fact("box_c_strided", SubtileC::kBoxStrided),
            fact("swizzle_c", SubtileC::kSpan),
            fact("window_c", 0),
            fact("box_d_contiguous", SubtileD::kBoxContiguous),
            fact("box_d_strided", SubtileD::kBoxStrided),
            fact("swizzle_d", SubtileD::kSpan),
            fact("window_d", Traits::kGroupedM ? kSubtileM : Traits::kGroupedN ? Config::kSubtileN : 0),
            fact("offset_scale", Groups::kGroups > 0 ? kOffsetScale : 0),
            fact("offset_zero", Groups::kHasZeros ? kOffsetScale + uint32_t(sizeof(cute::TmaDescriptor)) : 0),
            fact("groups", Groups::kGroups),
            fact("offset_a_tail", kBoxesA && LoadA::kTails ? uint32_t(offsetof(GemmParams, a_tail)) : 0),
            fact("offset_b_tail", LoadB::kTails ? uint32_t(offsetof(GemmParams, b_tail)) : 0),
            fact("offset_epilogue", offsetof(Params, epilogue))};
  }

  template <class Reduction>
  static constexpr DecompositionSpec decomposition_spec() {
    return {spec(),
            fact("offset_partials", offsetof(Params, partials)),
            fact("offset_flags", offsetof(Params, flags)),
            fact("offset_c_pointer", offsetof(Params, c_pointer)),
            fact("offset_c_stride", offsetof(Params, c_stride)),
            fact("offset_c_batch_stride", offsetof(Params, c_batch_stride)),
            fact("splits", Scheduler::kSplits),
            fact("tile_bytes", Traits::kSharesTiles ? Partials::kTileBytes : 0),
            fact("tile_flags", Traits::kSharesTiles ? Partials::kWarpgroups : 0),
            fact("reduction_threads", Reduction::kThreads),
            fact("reduction_vectors", Reduction::kVectors)};
  }

  template <class Reduction>
  static constexpr SplitKSpec splitk_spec() {
    return {decomposition_spec<Reduction>(), fact("offset_splits", offsetof(Params, splits))};
  }

  static constexpr SerialSpec serial_spec() {
    return {spec(), fact("splits", 1), fact("offset_splits", offsetof(Params, splits))};
  }

  static constexpr ClusterSpec cluster_spec() { return {spec(), fact("splits", Traits::kClusterSplits)}; }

  static constexpr GatherSpec gather_spec() {
    return {spec(),
            fact("offset_rows_pointer", offsetof(Params, rows)),
            fact("offset_rows_stride", offsetof(Params, rows_stride)),
            fact(kBoxesB ? "offset_a_pointer" : "offset_b_pointer", offsetof(Params, operand)),
            fact(kBoxesB ? "offset_a_row_chunks" : "offset_b_row_chunks", offsetof(Params, row_chunks)),
            fact(kBoxesB ? "offset_a_rows" : "offset_b_rows", offsetof(Params, row_count))};
  }

  template <class Spec>
  static constexpr UnalignedSpec<Spec> unaligned_spec(Spec const& spec) {
    return {spec,
            fact("offset_a_pointer", offsetof(Params, a_rows.pointer)),
            fact("offset_a_row_stride", offsetof(Params, a_rows.row_stride)),
            fact("offset_a_column_stride", offsetof(Params, a_rows.column_stride)),
            fact("offset_a_batch_stride", offsetof(Params, a_rows.batch_stride))};
  }

  static constexpr NestedSpec nested_spec() {
    return {spec(), fact("offset_inner", offsetof(Params, inner)), fact("offset_steps", offsetof(Params, steps))};
  }
};

}  // namespace gemmill
