/// Bulk tensor copies between global and shared memory. Descriptors are as library/launch.py, TmaBox, has them: contiguous
/// extent, strided extent, and outer ones: batch, or place of the window and batch.
#pragma once

#include <cute/arch/copy_sm90_tma.hpp>

#include <gemmill/copy/layout.cuh>

namespace gemmill {

/// What happens to a box of A or B that would reach beyond the operand along MN. TMA writes zeros for rows outside, and
/// takes two to three times as long for one as for a row that it reads.
enum class BoxBounds {
  /// The box ends with the operand. The rest of the stage keeps what was there before; it ends in rows or columns of D
  /// that are not stored.
  Clip,
  /// The box reaches into other groups, and loads their rows.
  Overrun,
  /// The box is moved into the operand, and what it loads must not be used: where a box lies wholly outside, TMA reads
  /// at the start of the descriptor's tensor, and that is no memory of the operand.
  Shift,
};

/// Loads this CTA's share of one stage of A or B, and multicasts it to the `Peers` CTAs that need the same tile.
///
/// Each peer loads 1/Peers of the rows of every panel; `slice` is this CTA's index among them, `mask` their ranks in
/// the cluster. The full barrier of each receiving CTA counts the bytes.
///
/// What happens beyond the operand's `extent` along MN `BoxBounds` says. Peers release stages to each other, and none
/// may be a lap ahead, which waiting for a load of each of the others ensures: a slice beyond the operand is loaded from
/// its start, and the first panel always.
template <class Layout, int Peers, BoxBounds Bounds>
struct StageLoad {
  static constexpr bool kAlongK = Layout::kMajor == MajorIn::K;
  static constexpr int kRows = Layout::kRows / Peers;
  /// Swizzles go by address, so a slice may begin anywhere in a swizzle's period.
  static_assert(Layout::kRows % Peers == 0 && kRows * Layout::kSpan % 128 == 0, "TMA writes to multiples of 128 bytes");
  /// Whether some boxes have fewer rows, and so a descriptor of their own.
  static constexpr bool kTails = Bounds == BoxBounds::Clip && kAlongK;

  cute::TmaDescriptor const& whole;
  /// Of boxes of the rows that are left beyond whole ones; of none where there are no `kTails`.
  cute::TmaDescriptor const& tail;
  int slice;
  uint16_t mask;
  int extent;

  /// What arrives in a stage of the tile at `mn`, from all peers.
  __device__ int bytes(int mn) const {
    if constexpr (Bounds != BoxBounds::Clip) return Layout::kBytes;
    int const inside = max(min(extent - mn, Layout::kTileMN), 0);
    if constexpr (!kAlongK) return max(ceil_div(inside, Layout::kPanelExtent), 1) * Layout::kPanelBytes;
    int const elsewhere = Peers == 1 ? 0 : (Peers - ceil_div(inside, kRows)) * min(extent, kRows);
    return (inside + elsewhere) * (Layout::kBytes / Layout::kTileMN);
  }

  /// What the loads of one tile have in common.
  struct Tile {
    cute::TmaDescriptor const* descriptor;
    /// Along MN, where boxes begin; whether there are any.
    int mn;
    bool loads;
  };

  __device__ Tile tile(int mn) const {
    if constexpr (!kAlongK) return {&whole, mn, true};
    int row = mn + slice * kRows;
    bool const outside = kTails && row >= extent;
    if (outside) row = 0;
    cute::TmaDescriptor const* const descriptor = kTails && row + kRows > extent ? &tail : &whole;
    if constexpr (Bounds == BoxBounds::Shift) row = min(row, extent - 1);
    return {descriptor, row, Peers > 1 || !outside};
  }

  template <class... Outer>
  __device__ void operator()(Tile const& tile, uint64_t& full, char* stage, int k, Outer... outer) const {
    if (!tile.loads) return;
    int const along = kAlongK ? k : tile.mn;
    int const row = kAlongK ? tile.mn : k + slice * kRows;
    cute::TmaDescriptor const& descriptor = *tile.descriptor;
    constexpr uint64_t hint = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
    // Many narrow panels, unrolled, would cost the producer more registers than it has.
    constexpr int kUnroll = Layout::kPanels <= 4 ? Layout::kPanels : 1;
#pragma unroll kUnroll
    for (int panel = 0; panel < Layout::kPanels; ++panel) {
      char* const target = stage + panel * Layout::kPanelBytes + slice * kRows * Layout::kSpan;
      int contiguous = along + panel * Layout::kPanelExtent;
      if constexpr (!kAlongK) {
        if (Bounds == BoxBounds::Clip && panel > 0 && contiguous >= extent) break;
        if (Bounds == BoxBounds::Shift) contiguous = min(contiguous, last_chunk<typename Layout::Element>(extent));
      }
      if constexpr (Peers == 1) {
        cute::SM90_TMA_LOAD::copy(&descriptor, &full, hint, target, contiguous, row, outer...);
      } else {
        cute::SM90_TMA_LOAD_MULTICAST::copy(&descriptor, &full, mask, hint, target, contiguous, row, outer...);
      }
    }
  }
};

}  // namespace gemmill
