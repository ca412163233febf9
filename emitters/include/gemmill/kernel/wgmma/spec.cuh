/// The facts that a WGMMA kernel exports, which the host computes as well.
#pragma once

#include <gemmill/kernel/reduction.cuh>
#include <gemmill/kernel/wgmma/storage.cuh>

namespace gemmill {

/// Facts that the host computes as well; the compiler refuses a kernel where the two disagree (emitters/emit.py).
struct KernelSpec {
  uint32_t threads, shared_bytes, tile_m, tile_n, cluster_m, cluster_n, params_bytes;
  uint32_t offset_a, offset_b, offset_c, offset_d, offset_m, offset_n, offset_k, offset_batch, offset_batched,
      offset_d_pointer, offset_d_stride, offset_d_batch_stride,
      offset_a_scale_pointer, offset_a_scale_stride, offset_a_scale_k_stride, offset_a_scale_batch_stride,
      offset_b_scale_pointer, offset_b_scale_stride, offset_b_scale_k_stride, offset_b_scale_batch_stride,
      offset_groups_pointer;
  uint32_t box_a_contiguous, box_a_strided, swizzle_a, window_a, box_b_contiguous, box_b_strided, swizzle_b, window_b;
  uint32_t box_c_contiguous, box_c_strided, swizzle_c, window_c, box_d_contiguous, box_d_strided, swizzle_d, window_d;
  /// Of a's group scales and zero points, 0 without: where their descriptors are, and the groups of a stage.
  uint32_t offset_scale, offset_zero, groups;
  /// Descriptors of the rows that boxes leave over, 0 where boxes reach beyond the operand.
  uint32_t offset_a_tail, offset_b_tail;
  uint32_t offset_epilogue;
};

/// The same of a kernel that sums slices of K, and of its reduction kernel.
struct DecompositionSpec {
  KernelSpec kernel;
  uint32_t offset_partials, offset_flags, offset_c_pointer, offset_c_stride, offset_c_batch_stride;
  uint32_t splits, tile_bytes, tile_flags, reduction_threads, reduction_vectors;
};

/// The same of a kernel that sums slices of K in the CTAs of a cluster.
struct ClusterSpec {
  KernelSpec kernel;
  uint32_t splits;
};

template <class Traits>
struct WgmmaSpec {
  using Storage = WgmmaStorage<Traits>;
  using Config = typename Traits::Config;
  using Groups = typename Traits::Groups;
  using LoadA = typename Traits::LoadA;
  using LoadB = typename Traits::LoadB;
  using Params = typename Traits::Params;
  using Partials = typename Traits::Partials;
  using RawA = typename Traits::RawA;
  using RawB = typename Traits::RawB;
  using Scheduler = typename Traits::Scheduler;
  using SubtileC = typename Traits::SubtileC;
  using SubtileD = typename Traits::SubtileD;

  static constexpr uint32_t kOffsetScale = sizeof(typename Scheduler::Params);

  static constexpr KernelSpec spec() {
    return {Traits::kThreads, Storage::kSharedBytes, Config::kTileM, Config::kTileN, Config::kClusterM, Config::kClusterN,
            sizeof(Params), offsetof(GemmParams, a), offsetof(GemmParams, b), offsetof(GemmParams, c),
            offsetof(GemmParams, d), offsetof(GemmParams, m), offsetof(GemmParams, n), offsetof(GemmParams, k),
            offsetof(GemmParams, batch), offsetof(GemmParams, batched), offsetof(GemmParams, d_pointer), offsetof(GemmParams, d_stride),
            offsetof(GemmParams, d_batch_stride), offsetof(GemmParams, a_scale.pointer),
            offsetof(GemmParams, a_scale.stride), offsetof(GemmParams, a_scale.k_stride),
            offsetof(GemmParams, a_scale.batch_stride), offsetof(GemmParams, b_scale.pointer),
            offsetof(GemmParams, b_scale.stride), offsetof(GemmParams, b_scale.k_stride),
            offsetof(GemmParams, b_scale.batch_stride), offsetof(GemmParams, groups), RawA::kPanelExtent, LoadA::kRows,
            RawA::kSpan, Traits::kWindowK, RawB::kPanelExtent, LoadB::kRows, RawB::kSpan, Traits::kWindowK, SubtileC::kBoxContiguous,
            SubtileC::kBoxStrided, SubtileC::kSpan, 0, SubtileD::kBoxContiguous, SubtileD::kBoxStrided, SubtileD::kSpan,
            Traits::kRowGroups ? kSubtileM : 0, Groups::kGroups > 0 ? kOffsetScale : 0,
            Groups::kHasZeros ? kOffsetScale + uint32_t(sizeof(cute::TmaDescriptor)) : 0, Groups::kGroups,
            LoadA::kTails ? uint32_t(offsetof(GemmParams, a_tail)) : 0,
            LoadB::kTails ? uint32_t(offsetof(GemmParams, b_tail)) : 0, offsetof(Params, epilogue)};
  }

  template <class Reduction>
  static constexpr DecompositionSpec decomposition_spec() {
    return {spec(), offsetof(Params, partials), offsetof(Params, flags), offsetof(Params, c_pointer),
            offsetof(Params, c_stride), offsetof(Params, c_batch_stride), Scheduler::kSplits,
            Traits::kShared ? Partials::kTileBytes : 0, Traits::kShared ? Partials::kWarpgroups : 0, Reduction::kThreads,
            Reduction::kVectors};
  }

  static constexpr ClusterSpec cluster_spec() { return {spec(), Traits::kClusterSplits}; }
};

}  // namespace gemmill
