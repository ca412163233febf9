/// Split-K: every output tile once for each of a number of slices of K.
#pragma once

#include <gemmill/kernel/params.cuh>
#include <gemmill/scheduler/work.cuh>

namespace gemmill {

/// All tiles of the first split of K, then all of the second, and so on: neighbours share operands. Split p of matrix b
/// is matrix `p * batch + b` of D, which holds partial sums; a second kernel adds them up.
///
/// The first splits have a K tile more where their number does not divide K; splits beyond the K tiles are empty.
template <class Order, int TileK, int Splits, class Traits = SchedulerTraits<>>
struct SplitScheduler : Traits {
  using Params = PartialParams;
  static constexpr int kSplits = Splits;

  Order order;
  int k_extent;
  int batch;
  /// Output tiles of the whole batch.
  int tiles;
  int total;
  int rank;

  __device__ SplitScheduler(Params const& params, int rank_)
      : order(params.m, params.n),
        k_extent(ceil_div(params.k, TileK)),
        batch(params.batch),
        tiles(order.count() * params.batch),
        total(tiles * Splits),
        rank(rank_) {}

  __device__ static int first() { return blockIdx.x / Order::kClusterSize; }
  __device__ static int stride() { return gridDim.x / Order::kClusterSize; }

  __device__ int split_of(int index) const { return Order::quotient(index, tiles); }

  __device__ int k_tiles(int index) const { return k_tiles_of(split_of(index)); }

  __device__ Work work(int index) { return work_of(index, split_of(index)); }

  /// K tiles of a split.
  __device__ int k_tiles_of(int split) const { return k_extent / Splits + (split < k_extent % Splits); }

  /// A unit whose split is known.
  __device__ Work work_of(int index, int split) {
    int const tile = index - split * tiles;
    int const matrix = Order::quotient(tile, order.count());
    auto const [m, n] = order.origin(tile - matrix * order.count(), rank);
    int const begin = split * (k_extent / Splits) + min(split, k_extent % Splits);
    return {m, n, matrix, split * batch + matrix, begin, k_tiles_of(split)};
  }
};

/// The same for as many slices as the launch says.
template <class Order, int TileK>
struct AnySplitScheduler : SplitScheduler<Order, TileK, kAtLaunch> {
  using Params = SplitParams;

  /// K tiles of a split, and how many splits have one more.
  int least, longer;

  __device__ AnySplitScheduler(Params const& params, int rank)
      : SplitScheduler<Order, TileK, kAtLaunch>(params, rank),
        least(this->k_extent / params.splits),
        longer(this->k_extent - least * params.splits) {
    this->total = this->tiles * params.splits;
  }

  __device__ int k_tiles(int index) const { return k_tiles_of(this->split_of(index)); }

  __device__ Work work(int index) {
    int const split = this->split_of(index);
    Work work = this->work_of(index, split);
    work.k_tile = split * least + min(split, longer);
    work.k_tiles = k_tiles_of(split);
    return work;
  }

  __device__ int k_tiles_of(int split) const { return least + (split < longer); }
};

/// A fixed number of slices in one kernel: the clusters that share a tile add up their sums, and the one that has the
/// last stores D.
///
/// They wait for work of lower index only, which was begun before: by the same cluster or, where as many clusters run at
/// a time as the grid has, by another.
template <class Order, int TileK, int Splits>
struct FusedScheduler : SplitScheduler<Order, TileK, Splits, SchedulerTraits<BatchMode::Strided, true>> {
  using SplitScheduler<Order, TileK, Splits, SchedulerTraits<BatchMode::Strided, true>>::SplitScheduler;

  __device__ int partial_stride() const { return -this->tiles; }

  __device__ SharedWork work(int index) {
    int const split = this->split_of(index);
    SharedWork work{this->work_of(index, split), index, Splits - 1 - split, Splits};
    work.batch_d = work.batch;
    return work;
  }
};

}  // namespace gemmill
