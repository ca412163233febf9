/// TMA loads of stages. Descriptors have the extents that TmaBox in library/launch.py gives them: contiguous, strided,
/// then outer extents (the batch, or the place of a window and the batch).
#pragma once

#include <cute/arch/copy_sm90_tma.hpp>

#include <gemmill/copy/layout.cuh>

namespace gemmill {

/// Where a box of A or B ends that would reach beyond the operand along MN. TMA writes zeros for rows outside, but
/// takes two to three times as long for such a row as for one that it reads.
enum class BoxBounds {
  /// The box ends with the operand. The rest of the stage keeps stale data, which affects only rows or columns of D
  /// that are not stored.
  Clip,
  /// The box reaches into other groups and loads their rows.
  Overrun,
  /// The box is moved into the operand, and its data must not be used. This is necessary because TMA reads at the start
  /// of the descriptor's tensor if a box lies wholly outside, and that address may not belong to the operand.
  Shift,
};

/// Loads this CTA's share of one stage of A or B, and multicasts it to the `Peers` CTAs that need the same tile.
///
/// Each peer loads 1/Peers of the rows of every panel; with `Shift` 1/Peers of the panels, because some of the rows may
/// lie wholly beyond K. `slice` is this CTA's index among the peers, `mask` the set of their ranks in the cluster. The
/// full barrier of each receiving CTA counts the bytes.
///
/// `BoxBounds` selects what happens beyond the operand's `extent` along MN. Peers release stages to each other, and
/// none may be a lap ahead. To ensure this, each peer waits for a load of every other peer, so every peer must always
/// load something. A slice beyond the operand is loaded from the operand's start, and the first panel is always loaded.
///
/// With `Halves`, the rows of a stage alternate, 8 by 8, between the halves of a K-major operand's rows. Its descriptor
/// has these extents: K, 8 rows, the halves of all matrices, and the runs of 8 rows in a half.
template <class Layout, int Peers, BoxBounds Bounds, bool Halves = false>
struct StageLoad {
  static constexpr bool kAlongK = Layout::kMajor == MajorIn::K;
  static constexpr bool kByPanels = Bounds == BoxBounds::Shift && Peers > 1;
  static constexpr int kRows = Layout::kRows / (kByPanels ? 1 : Peers);
  static constexpr int kPanels = Layout::kPanels / (kByPanels ? Peers : 1);
  static_assert(!kByPanels || (!kAlongK && Layout::kPanels % Peers == 0), "peers load equal numbers of panels along MN");
  /// A slice may begin anywhere within a swizzle's period, because swizzles depend on the address.
  static_assert(Layout::kRows % Peers == 0 && kRows * Layout::kSpan % 128 == 0, "TMA writes to multiples of 128 bytes");
  /// Whether the last box may have fewer rows, and therefore needs its own descriptor.
  static constexpr bool kTails = Bounds == BoxBounds::Clip && kAlongK;
  static_assert(!Halves || (kTails && kRows % 16 == 0), "a box holds whole runs of both halves");

  cute::TmaDescriptor const& whole;
  /// The descriptor of the box of the remaining rows, after the whole boxes; unused without `kTails`.
  cute::TmaDescriptor const& tail;
  int slice;
  uint16_t mask;
  int extent;

  /// Bytes that arrive in a stage of the tile at `mn`, from all peers.
  __device__ int bytes(int mn) const {
    if constexpr (Bounds != BoxBounds::Clip) return Layout::kBytes;
    int const inside = max(min(extent - mn, Layout::kTileMN), 0);
    if constexpr (!kAlongK) return max(ceil_div(inside, Layout::kPanelExtent), 1) * Layout::kPanelBytes;
    int const elsewhere = Peers == 1 ? 0 : (Peers - ceil_div(inside, kRows)) * min(extent, kRows);
    return (inside + elsewhere) * (Layout::kBytes / Layout::kTileMN);
  }

  /// Values that all loads of one tile share.
  struct Tile {
    cute::TmaDescriptor const* descriptor;
    /// The coordinate along MN at which boxes begin, and whether there is a box to load.
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
    int const first_row = kByPanels ? 0 : slice * kRows;
    int const row = kAlongK ? tile.mn : k + first_row;
    cute::TmaDescriptor const& descriptor = *tile.descriptor;
    // The producer does not have enough registers to unroll many narrow panels.
    constexpr int kUnroll = kPanels <= 4 ? kPanels : 1;
#pragma unroll kUnroll
    for (int i = 0; i < kPanels; ++i) {
      int const panel = kByPanels ? slice * kPanels + i : i;
      char* const target = stage + panel * Layout::kPanelBytes + first_row * Layout::kSpan;
      int contiguous = along + panel * Layout::kPanelExtent;
      if constexpr (!kAlongK) {
        if (Bounds == BoxBounds::Clip && panel > 0 && contiguous >= extent) break;
        if (Bounds == BoxBounds::Shift) contiguous = min(contiguous, last_chunk<typename Layout::Element>(extent));
      }
      if constexpr (Halves) {
        copy(descriptor, full, target, contiguous, 0, 2 * outer..., row / 16);
      } else {
        copy(descriptor, full, target, contiguous, row, outer...);
      }
    }
  }

 private:
  template <class... Coordinates>
  __device__ void copy(cute::TmaDescriptor const& descriptor, uint64_t& full, char* target, Coordinates... at) const {
    constexpr uint64_t hint = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
    if constexpr (Peers == 1) {
      cute::SM90_TMA_LOAD::copy(&descriptor, &full, hint, target, at...);
    } else {
      cute::SM90_TMA_LOAD_MULTICAST::copy(&descriptor, &full, mask, hint, target, at...);
    }
  }
};

}  // namespace gemmill
