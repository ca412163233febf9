/// Persistent scheduling over groups whose sizes are in the GPU's memory, as offsets or counts.
///
/// Entries are clamped to the extents of the tensors, so no entry can make a group reach beyond them.
#pragma once

#include <gemmill/kernel/params.cuh>
#include <gemmill/scheduler/work.cuh>

namespace gemmill {

/// Entry `group` of the array, clamped to `extent`. Entry -1 is 0: with offsets, the first group begins there.
__device__ inline int group_entry(GemmParams const& params, int group, int extent) {
  int const* const entries = static_cast<int const*>(params.groups);
  return group < 0 ? 0 : min(max(entries[group * int64_t(params.groups_stride)], 0), extent);
}

/// A tile of a group of rows or columns. Those from `end` on do not belong to the group and must not be written.
struct GroupWork : Work {
  int end;
  /// In clusters of 2x1: whether the other CTA has the next or the previous tile along N, not along M.
  bool beside;
};

/// Groups along M or N, as `Mode` says: consecutive groups with offsets of their ends, or, if `Masked`,
/// slots of equal capacity with counts of rows. Comments call what belongs to a group rows.
///
/// Each lane of a warp holds one of 32 groups, so that few votes find a tile, and empty groups cost nothing. Indices must
/// increase from call to call. The whole warp must make each call.
///
/// In tiles of 256 rows, the groups with the most blocks of 64 rows in their last tile come first of every 32. CTAs, which
/// get every nth tile, then have about the same work.
///
/// In clusters of 2x1, a last tile along M without a pair would leave a CTA idle. The CTAs take two such tiles along N.
template <BatchMode Mode, class Order, int TileK, bool Masked, class Params_ = GemmParams>
struct GroupScheduler : SchedulerTraits<Mode> {
  using Params = Params_;
  enum : bool {
    kMasked = Masked,
    kAlongM = Mode == BatchMode::GroupedM,
    /// Producers that gather rows have no register left for it.
    kPairs = kAlongM && Order::kClusterM == 2 && Order::kClusterSize == 2 && cute::is_same_v<Params_, GemmParams>,
    /// In smaller tiles it does not pay: a tile that takes less time leaves those that read the same B behind, and B
    /// leaves L2 before they read it. In pairs, which share B, they cannot.
    kSkipsBlocks = kPairs || (kAlongM && Order::kTileM == 256),
    /// Whether groups come in the order of the blocks in their last tile.
    kSorts = kAlongM && Order::kTileM == 256,
  };

  GemmParams const& params;
  int rank;
  int total = 0;
  /// The group of lane 0; the rows of this lane's group; the number of cluster tiles up to its end, in the order of
  /// tiles.
  int chunk = 0, begin, end, tiles;

  __device__ GroupScheduler(GemmParams const& params_, int rank_) : params(params_), rank(rank_) {
    for (int group = lane(); group < params.batch; group += 32) total += count(group);
    total = __reduce_add_sync(~0u, total);
    hold(0, 0);
  }

  __device__ static int first() { return blockIdx.x / Order::kClusterSize; }
  __device__ static int stride() { return gridDim.x / Order::kClusterSize; }

  __device__ int k_tiles(int) const { return ceil_div(params.k, TileK); }

  __device__ GroupWork work(int index) {
    int next = end_of_group(index);
    while (next < 0) {
      hold(chunk + 32, __reduce_max_sync(~0u, tiles));
      next = end_of_group(index);
    }
    int const holder = __ffs(__ballot_sync(~0u, tiles == next)) - 1;
    int const group_begin = __shfl_sync(~0u, begin, holder);
    int const group_end = __shfl_sync(~0u, end, holder);
    int const rows = group_end - group_begin;
    Order order = order_of(rows);
    int const place = index - (next - count(order, rows));
    auto const [m, n, beside] = place_of(order, rows, place);
    // All lanes have the same value. A reduction puts it into a uniform register, which leaves one more to the sums.
    int const group = __reduce_max_sync(~0u, chunk + holder);
    return {{kAlongM ? group_begin + m : m, kAlongM ? n : group_begin + n, group, Masked ? group : 0, 0, k_tiles(index)},
            group_end,
            beside};
  }

 private:
  __device__ static int lane() { return threadIdx.x % 32; }

  /// The rows of a group whose tiles have pairs.
  __device__ static int paired(int rows) {
    int const tiles = ceil_div(rows, Order::kTileM);
    return kPairs && tiles % 2 == 1 ? (tiles - 1) * Order::kTileM : rows;
  }

  __device__ Order order_of(int rows) const {
    return kAlongM ? Order(paired(rows), params.n) : Order(params.m, rows);
  }

  struct Place {
    int m, n;
    bool beside;
  };

  /// Cluster tile `place` of a group of `rows`, given the order of those that have pairs.
  ///
  /// Tiles without a pair follow those that read the same B, which is then in L2. Strips of columns therefore hold all
  /// their pairs, and then the two tiles for each cluster that have none. If the order walks along N, only the last
  /// pairs are in such strips, of two tiles.
  __device__ Place place_of(Order& order, int rows, int place) const {
    if (kPairs && ceil_div(rows, Order::kTileM) % 2 == 1) {
      constexpr bool kWalksN = Order::kRaster == Raster::N;
      constexpr int kStrip = kWalksN ? 2 : align_up(Order::kSwizzle, 2);
      int const first = kWalksN ? max(order.clusters_m - 1, 0) / Order::kSwizzle * Order::kSwizzle : 0;
      int const pairs = order.clusters_m - first;
      int in_strip = place - first * order.clusters_n;
      if (in_strip >= 0) {
        int const strip = in_strip / (pairs * kStrip + kStrip / 2);
        in_strip -= strip * (pairs * kStrip + kStrip / 2);
        int const column = strip * kStrip, width = min(kStrip, order.clusters_n - column);
        int const alone = in_strip - pairs * width;
        if (alone >= 0)
          return {(rows - 1) / Order::kTileM * Order::kTileM, (column + alone * 2 + rank) * Order::kTileN, true};
        int const pair = in_strip / width;
        return {((first + pair) * 2 + rank) * Order::kTileM, (column + in_strip - pair * width) * Order::kTileN, false};
      }
    }
    auto const [m, n] = order.origin(place, rank);
    return {m, n, false};
  }

  /// The number of cluster tiles of a group, given the order of those that have pairs.
  __device__ static int count(Order const& order, int rows) {
    bool const beside = kPairs && ceil_div(rows, Order::kTileM) % 2 == 1;
    return order.count() + (beside ? ceil_div(order.clusters_n, 2) : 0);
  }

  /// Reads the rows of a group, and returns its number of cluster tiles.
  __device__ int count(int group) {
    bool const exists = group < params.batch;
    int const extent = kAlongM ? params.m : params.n;
    end = exists ? group_entry(params, group, extent) : 0;
    begin = Masked ? 0 : exists ? min(group_entry(params, group - 1, extent), end) : 0;
    return count(order_of(end - begin), end - begin);
  }

  /// The number of cluster tiles up to the end of the group that has a tile; negative if no lane holds it.
  __device__ int end_of_group(int index) const {
    return int(__reduce_min_sync(~0u, index < tiles ? unsigned(tiles) : ~0u));
  }

  /// Gives each lane one of the groups from `first` on. `before` is the number of cluster tiles of all earlier groups.
  __device__ void hold(int first, int before) {
    chunk = first;
    tiles = before;
    int const own = count(first + lane());
    constexpr int kClasses = kSorts ? Order::kTileM / 64 : 1;
    int const blocks = kClasses == 1 ? 0 : (end - begin - 1) % Order::kTileM / 64;  // of the last tile, less 1
#pragma unroll 1
    for (int i = kClasses - 1; i >= 0; --i) {
      int sum = blocks == i ? own : 0;
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        int const other = __shfl_up_sync(~0u, sum, distance);
        if (lane() >= distance) sum += other;
      }
      if (blocks == i && own > 0) tiles = before + sum;
      before += __shfl_sync(~0u, sum, 31);
    }
  }
};

/// A tile of one group's product; [begin, end) is the group's part of K, in elements.
struct KGroupWork : Work {
  int begin, end;
};

/// Groups along K: consecutive groups with offsets of their ends. Each group has its own matrix of D.
template <class Order, int TileK, class Params_ = GemmParams>
struct KGroupScheduler : SchedulerTraits<BatchMode::GroupedK> {
  using Params = Params_;

  GemmParams const& params;
  Order order;
  int total;
  int rank;

  __device__ KGroupScheduler(GemmParams const& params_, int rank_)
      : params(params_), order(params.m, params.n), total(order.count() * params.batch), rank(rank_) {}

  __device__ static int first() { return blockIdx.x / Order::kClusterSize; }
  __device__ static int stride() { return gridDim.x / Order::kClusterSize; }

  __device__ int k_tiles(int index) const {
    if (index >= total) return 0;
    auto const [begin, end] = range(group_of(index));
    return ceil_div(end - begin, TileK);
  }

  __device__ KGroupWork work(int index) {
    int const group = group_of(index);
    auto const [m, n] = order.origin(index - group * order.count(), rank);
    auto const [begin, end] = range(group);
    return {{m, n, group, group, 0, ceil_div(end - begin, TileK)}, begin, end};
  }

 private:
  __device__ int group_of(int index) const { return Order::quotient(index, order.count()); }

  struct Range {
    int begin, end;
  };
  __device__ Range range(int group) const {
    int const end = group_entry(params, group, params.k);
    return {min(group_entry(params, group - 1, params.k), end), end};
  }
};

}  // namespace gemmill
