/// Bulk tensor copies between global and shared memory. Descriptors are as library/launch.py, TmaBox, has them: contiguous
/// extent, strided extent, and outer ones: batch, or place of the window and batch.
#pragma once

#include <cute/arch/copy_sm90_tma.hpp>

#include <gemmill/copy/layout.cuh>

namespace gemmill {

/// Loads this block's share of one stage of A or B, and multicasts it to the `Peers` blocks that need the same tile.
///
/// Each peer loads 1/Peers of the rows of every panel; `slice` is this block's index among them, `mask` their ranks in
/// the cluster. The full barrier of each receiving block counts the bytes.
///
/// TMA reads at the start of a descriptor's tensor where a box lies wholly outside. With `Inside` that is no memory of the
/// operand: boxes beyond its `extent` along MN are moved into it, and what they load must not be used.
template <class Layout, int Peers, bool Inside = false>
struct StageLoad {
  static constexpr int kRows = Layout::kRows / Peers;
  static_assert(Layout::kRows % (8 * Peers) == 0, "a multicast slice must hold whole groups of eight rows");

  int slice;
  uint16_t mask;
  int extent = 0;

  template <class... Outer>
  __device__ void operator()(cute::TmaDescriptor const& descriptor, uint64_t& full, char* stage, int mn, int k,
                             Outer... outer) const {
    int const along = Layout::kMajor == MajorIn::K ? k : mn;
    int row = (Layout::kMajor == MajorIn::K ? mn : k) + slice * kRows;
    if constexpr (Inside && Layout::kMajor == MajorIn::K) row = min(row, extent - 1);
    constexpr uint64_t hint = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
    // Many narrow panels, unrolled, would cost the producer more registers than it has.
    constexpr int kUnroll = Layout::kPanels <= 4 ? Layout::kPanels : 1;
#pragma unroll kUnroll
    for (int panel = 0; panel < Layout::kPanels; ++panel) {
      char* const target = stage + panel * Layout::kPanelBytes + slice * kRows * Layout::kSpan;
      int contiguous = along + panel * Layout::kPanelExtent;
      if constexpr (Inside && Layout::kMajor == MajorIn::MN) contiguous = min(contiguous, last_chunk<typename Layout::Element>(extent));
      if constexpr (Peers == 1) {
        cute::SM90_TMA_LOAD::copy(&descriptor, &full, hint, target, contiguous, row, outer...);
      } else {
        cute::SM90_TMA_LOAD_MULTICAST::copy(&descriptor, &full, mask, hint, target, contiguous, row, outer...);
      }
    }
  }
};

}  // namespace gemmill
