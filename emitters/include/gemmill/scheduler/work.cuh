/// What a scheduler hands out, and the order of output tiles that all schedulers share.
///
/// A scheduler is made from the parameters (its `Params`: GemmParams or a struct derived from it) and a CTA's rank in
/// its cluster. A config names it as a template over order and tile K. Producer and consumers each walk
///
///     for (int index = scheduler.first(); index < scheduler.total; index += scheduler.stride())
///       Work const work = scheduler.work(index);
///
/// and see the same units in the same order; the CTAs of a cluster see the same part of K. `k_tiles(index)` is
/// `work(index).k_tiles` for less, and may be asked beyond `total`: pingpong skips what the other warpgroup multiplies.
#pragma once

#include <gemmill/types.cuh>

namespace gemmill {

/// A unit of work of one CTA: an output tile, and the part of K that is multiplied for it.
struct Work {
  /// Origin of the tile, in elements.
  int m, n;
  /// The matrix of A, B and C. That of D is the same, but where slices of K are stored one after the other.
  int batch, batch_d;
  /// The part of K, in tiles: its first, and how many. None may be left: the sum is then 0.
  int k_tile, k_tiles;
};

/// Work of a scheduler whose clusters share tiles. Every split but the first, which stores the tile, leaves its sums as a
/// tile of the workspace. They are added up in the order of a tree with four branches: split p takes those of
/// p + 1, 2 and 3 if p is a multiple of 4, then those of p + 4, 8 and 12 if it is a multiple of 16, and so on; then it
/// leaves its own. (A level takes 2 us on an H200 and each tile of 128 x 128 within it 0.8 us more.)
///
/// Split p + i has the tile `i * partial_stride()` behind that of split p, and is handed out before it: no wait is circular.
struct SharedWork : Work {
  static constexpr int kBranches = 4;

  /// Where in the workspace its tile is.
  int partial;
  int split, splits;
};

/// How the matrices of a batch are found.
enum class BatchMode {
  /// By their index in the batch.
  Strided,
  /// Groups of rows of A and D, whose sizes only the GPU knows: a tile ends at the last row of its group.
  GroupedM,
  /// Groups along K: each has a matrix of D.
  GroupedK,
  /// By addresses in memory.
  Array,
  /// By places of their own: a batch of up to three extents.
  Nested,
};

/// What the kernel asks a scheduler about its kind; schedulers derive from it. (Enumerators: a static member would be
/// data of every cubin.)
template <BatchMode Mode = BatchMode::Strided, bool SharesTiles = false, int ClusterSplits = 1>
struct SchedulerTraits {
  enum : int {
    kMode = int(Mode),
    /// CTAs of a cluster that share K of a tile, and store a share of its columns each.
    kClusterSplits = ClusterSplits,
  };
  enum : bool {
    kIsGroupedM = Mode == BatchMode::GroupedM,
    kIsGroupedK = Mode == BatchMode::GroupedK,
    kIsArray = Mode == BatchMode::Array,
    kIsNested = Mode == BatchMode::Nested,
    /// Whether several CTAs sum slices of K of one tile in the workspace, and one of them stores it.
    kSharesTiles = SharesTiles,
  };
};

/// Quotients by one divisor of values that mostly have the quotient of the one before, or the next; unless it `Remembers`
/// that one, 0 or 1. A division takes some 200 cycles, and three lay between a CTA's start and its first load, and
/// between two of its tiles.
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

/// The same by division.
struct PlainQuotient {
  __device__ int operator()(int value, int divisor) const { return value / divisor; }
};

/// The output tiles of one matrix, in clusters, and their order. Bands of `Swizzle` cluster tiles across the raster
/// direction are walked one after the other, so that the tiles in flight form a block whose operands stay in L2.
template <int TileM, int TileN, int ClusterM, int ClusterN, Raster RasterAlong, int Swizzle, class Division>
struct TileOrder {
  static constexpr int kClusterSize = ClusterM * ClusterN;

  struct Origin {
    int m, n;
  };

  int clusters_m;
  int clusters_n;
  Division groups{};

  __device__ TileOrder(int m, int n)
      : clusters_m(ceil_div(m, TileM * ClusterM)), clusters_n(ceil_div(n, TileN * ClusterN)) {}

  /// That of a value by itself.
  __device__ static int quotient(int value, int divisor) { return Division{}(value, divisor); }

  __device__ int count() const { return clusters_m * clusters_n; }

  /// Origin in elements of the tile of CTA `rank` of the cluster tile `index`.
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
  /// A place in a group over its width, which all but the last group have in common, mostly a power of two.
  __device__ static int divided(int place, int width) {
    if (!cute::is_same_v<Division, PlainQuotient> && (width & (width - 1)) == 0) return place >> (31 - __clz(width));
    return place / width;
  }
};

}  // namespace gemmill
