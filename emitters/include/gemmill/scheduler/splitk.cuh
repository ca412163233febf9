/// Split-K: every output tile occurs once for each slice of K.
#pragma once

#include <gemmill/kernel/params.cuh>
#include <gemmill/scheduler/work.cuh>

namespace gemmill {

/// All tiles of the first slice of K come first, then those of the second, and so on, so that adjacent tiles share
/// operands. Slice p of matrix b is matrix `p * batch + b` of the partial sums, which take D's place. A second kernel
/// adds them. The number of slices is a launch parameter.
template <class Order, int TileK, int Unit, int MoreUnit = 1>
struct SplitKScheduler : SchedulerTraits<> {
  using Params = SplitKParams;
  /// The exported fact `splits`. Each launch passes its own number.
  static constexpr int kSplits = 1;

  Order order;
  int k_extent;
  int batch;
  /// Output tiles of the whole batch.
  int tiles;
  int total;
  int rank;
  BalancedSlices<Unit, MoreUnit> slices;

  __device__ SplitKScheduler(Params const& params, int rank_)
      : order(params.m, params.n),
        k_extent(ceil_div(params.k, TileK)),
        batch(params.batch),
        tiles(order.count() * params.batch),
        total(tiles * params.splits),
        rank(rank_),
        slices(k_extent, params.splits) {}

  __device__ static int first() { return blockIdx.x / Order::kClusterSize; }
  __device__ static int stride() { return gridDim.x / Order::kClusterSize; }

  __device__ int split_of(int index) const { return Order::quotient(index, tiles); }

  __device__ int k_tiles(int index) const { return slices.k_tiles(split_of(index)); }

  __device__ Work work(int index) {
    int const split = split_of(index);
    int const tile = index - split * tiles;
    int const matrix = Order::quotient(tile, order.count());
    auto const [m, n] = order.origin(tile - matrix * order.count(), rank);
    return {m, n, matrix, split * batch + matrix, slices.begin(split), slices.k_tiles(split)};
  }
};

}  // namespace gemmill
