/// The units of work that schedulers hand out, and the order of output tiles that all schedulers use.
///
/// A scheduler is constructed from the launch parameters (its `Params`: GemmParams or a struct derived from it) and a
/// CTA's rank in its cluster. A config names the scheduler as a template over the order and tile K. Producer and
/// consumers each run
///
///     for (int index = scheduler.first(); index < scheduler.total; index += scheduler.stride())
///       Work const work = scheduler.work(index);
///
/// and get the same units in the same order. Except with ClusterScheduler, the CTAs of a cluster get the same slice of
/// K. `k_tiles(index)` equals `work(index).k_tiles` but is cheaper, and is also valid for indices from `total` on:
/// pingpong uses it to skip the tiles of the other warpgroup.
#pragma once

#include <gemmill/types.cuh>

namespace gemmill {

/// A unit of work of one CTA: an output tile, and the slice of K to multiply for it.
struct Work {
  /// Origin of the tile, in elements.
  int m, n;
  /// The index of the matrix of A, B and C, and of that of D. They differ where D holds slices of K one after the
  /// other, where groups share one D, and in nested batches.
  int batch, batch_d;
  /// The first K tile of the slice, and the number of K tiles. If that is 0, the sums are 0.
  int k_tile, k_tiles;
};

/// A unit of work of a scheduler whose clusters share tiles. Split 0 stores the tile. Every other split leaves its sums
/// as a tile of the workspace. They are added in the order of a tree with four branches. If p is a multiple of 4, split
/// p adds the sums of splits p + 1, 2 and 3. If p is a multiple of 16, it then adds those of p + 4, 8 and 12, and so
/// on; then it leaves its own. (A level takes 2 us on an H200, and each tile of 128 x 128 within it 0.8 us more.)
///
/// The tile of split p + i is `i * partial_stride()` after that of split p, and is handed out before it, so no wait is
/// circular.
struct SharedWork : Work {
  static constexpr int kBranches = 4;

  /// Index of this unit's tile in the workspace.
  int partial;
  int split, splits;
};

/// Slices of K. Up to eight slices are balanced in units of `Unit` K tiles, which have the same K for every tile K, so
/// that kernels of several tile K have the same slices; more slices in units of `MoreUnit` K tiles. If the number of
/// slices does not divide the units, the first slices have one unit more. If there are fewer units than slices, the last
/// slices are empty.
template <int Unit, int MoreUnit = 1>
struct BalancedSlices {
  int k_extent;
  /// K tiles of a unit.
  int unit;
  /// Units of a slice, and how many slices have one more.
  int least, longer;
  /// Slices that are not empty; these come first.
  int filled;

  __device__ BalancedSlices(int k_extent_, int slices) : k_extent(k_extent_), unit(slices <= 8 ? Unit : MoreUnit) {
    int const units = ceil_div(k_extent, unit);
    least = units / slices;
    longer = units - least * slices;
    filled = min(units, slices);
  }

  /// The first K tile of a slice.
  __device__ int begin(int slice) const { return min((slice * least + min(slice, longer)) * unit, k_extent); }
  /// The number of its K tiles.
  __device__ int k_tiles(int slice) const { return begin(slice + 1) - begin(slice); }
};

/// How a kernel finds the matrices of a batch.
enum class BatchMode {
  /// By their index in the batch.
  Strided,
  /// Groups of rows of A and D, whose sizes are in the GPU's memory. A tile ends at the last row of its group.
  GroupedM,
  /// Groups of columns of B and D, likewise.
  GroupedN,
  /// Groups along K. Each has its own matrix of D.
  GroupedK,
  /// By addresses in the GPU's memory.
  Array,
  /// By a place for each operand: a batch of up to three extents.
  Nested,
};

/// Constants of a scheduler, which schedulers derive from. They are enumerators because a static member would become
/// data in every cubin.
template <BatchMode Mode = BatchMode::Strided, bool SharesTiles = false, int ClusterSplits = 1, bool Serial = false>
struct SchedulerTraits {
  enum : int {
    kMode = int(Mode),
    /// The number of CTAs of a cluster that share the K of a tile; each stores a share of its columns.
    kClusterSplits = ClusterSplits,
  };
  enum : bool {
    kIsGroupedM = Mode == BatchMode::GroupedM,
    kIsGroupedN = Mode == BatchMode::GroupedN,
    kIsGroupedK = Mode == BatchMode::GroupedK,
    kIsArray = Mode == BatchMode::Array,
    kIsNested = Mode == BatchMode::Nested,
    /// Whether several clusters sum slices of K of one tile through the workspace, and one of them stores it.
    kSharesTiles = SharesTiles,
    /// Whether a CTA sums the slices of K of its tile one after another, and adds their sums.
    kSerial = Serial,
    /// Whether the CTAs of a cluster may have tiles of different columns in place of different rows.
    kPairs = false,
    /// Whether kernels multiply only those blocks of 64 rows of a tile that have rows of its group.
    kSkipsBlocks = false,
    /// Whether D equals its transpose, and only tiles that meet its lower triangle are handed out.
    kIsSymmetric = false,
  };
};

/// Divides values by one divisor, where a quotient is mostly that of the previous value or the next greater one. It
/// tries these two before it divides. Without `Remembers` it tries 0 and 1. A division takes some 200 cycles. Without
/// this, three of them would delay a CTA's first load, and each of its tiles.
template <bool Remembers>
struct Quotient {
  int last = 0;

  __device__ int operator()(int value, int divisor) {
    int const guess = Remembers ? last : 0;
    unsigned const rest = value - guess * divisor;
    int const quotient = rest < unsigned(divisor) ? guess : rest < 2u * divisor ? guess + 1 : value / divisor;
    if (Remembers) last = quotient;
    return quotient;
  }
};

/// The same interface with a plain division.
struct PlainQuotient {
  __device__ int operator()(int value, int divisor) const { return value / divisor; }
};

/// The output tiles of one matrix, in cluster tiles, and their order. The order walks groups of `Swizzle` cluster tiles
/// across the raster direction one after the other. The tiles in flight then form a block whose operands stay in L2.
template <int TileM, int TileN, int ClusterM, int ClusterN, Raster RasterAlong, int Swizzle, class Division>
struct TileOrder {
  static constexpr int kClusterSize = ClusterM * ClusterN;
  static constexpr int kClusterM = ClusterM;
  static constexpr int kTileM = TileM, kTileN = TileN;
  static constexpr Raster kRaster = RasterAlong;
  static constexpr int kSwizzle = Swizzle;

  struct Origin {
    int m, n;
  };

  int clusters_m;
  int clusters_n;
  Division groups{};

  __device__ TileOrder(int m, int n)
      : clusters_m(ceil_div(m, TileM * ClusterM)), clusters_n(ceil_div(n, TileN * ClusterN)) {}

  /// The quotient of a single value.
  __device__ static int quotient(int value, int divisor) { return Division{}(value, divisor); }

  __device__ int count() const { return clusters_m * clusters_n; }

  /// The origin, in elements, of the tile of CTA `rank` in cluster tile `index`.
  __device__ Origin origin(int index, int rank) {
    int const along_extent = RasterAlong == Raster::M ? clusters_m : clusters_n;
    int const across_extent = RasterAlong == Raster::M ? clusters_n : clusters_m;
    int const group = groups(index, Swizzle * along_extent);
    int const in_group = index - group * Swizzle * along_extent;
    int const width = min(Swizzle, across_extent - group * Swizzle);
    int const along = divided(in_group, width);
    int const across = group * Swizzle + in_group - along * width;
    int const cluster_m = RasterAlong == Raster::M ? along : across;
    int const cluster_n = RasterAlong == Raster::M ? across : along;
    return {(cluster_m * ClusterM + rank % ClusterM) * TileM, (cluster_n * ClusterN + rank / ClusterM) * TileN};
  }

 private:
  /// `place / width`. All groups except the last have the same width, mostly a power of two.
  __device__ static int divided(int place, int width) {
    if (!cute::is_same_v<Division, PlainQuotient> && (width & (width - 1)) == 0) return place >> (31 - __clz(width));
    return place / width;
  }
};

}  // namespace gemmill
