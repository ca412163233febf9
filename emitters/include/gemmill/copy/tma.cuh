/// Bulk tensor copies between global and shared memory. Every descriptor has rank 3: contiguous, strided, batch.
#pragma once

#include <cute/arch/copy_sm90_tma.hpp>

#include <gemmill/copy/layout.cuh>

namespace gemmill {

/// Loads this block's share of one stage of A or B, and multicasts it to the `Peers` blocks that need the same tile.
///
/// Each peer loads 1/Peers of the rows of every panel; `slice` is this block's index among them, `mask` their ranks in
/// the cluster. The full barrier of each receiving block counts the bytes.
template <class Layout, int Peers>
struct StageLoad {
  static constexpr int kRows = Layout::kRows / Peers;
  static_assert(Layout::kRows % (8 * Peers) == 0, "a multicast slice must hold whole groups of eight rows");

  int slice;
  uint16_t mask;

  __device__ void operator()(cute::TmaDescriptor const& descriptor, uint64_t& full, char* stage, int mn, int k,
                             int batch) const {
    int const along = Layout::kMajor == MajorIn::K ? k : mn;
    int const row = (Layout::kMajor == MajorIn::K ? mn : k) + slice * kRows;
    constexpr uint64_t hint = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
    // Many narrow panels, unrolled, would cost the producer more registers than it has.
    constexpr int kUnroll = Layout::kPanels <= 4 ? Layout::kPanels : 1;
#pragma unroll kUnroll
    for (int panel = 0; panel < Layout::kPanels; ++panel) {
      char* const target = stage + panel * Layout::kPanelBytes + slice * kRows * Layout::kSpan;
      int const contiguous = along + panel * Layout::kPanelExtent;
      if constexpr (Peers == 1) {
        cute::SM90_TMA_LOAD_3D::copy(&descriptor, &full, hint, target, contiguous, row, batch);
      } else {
        cute::SM90_TMA_LOAD_MULTICAST_3D::copy(&descriptor, &full, mask, hint, target, contiguous, row, batch);
      }
    }
  }
};

}  // namespace gemmill
