/// Split-K: every output tile once for each of a number of slices of K.
#pragma once

#include <gemmill/kernel/params.cuh>
#include <gemmill/scheduler/work.cuh>

namespace gemmill {

/// All tiles of the first slice of K, then all of the second, and so on: neighbours share operands. Slice p of matrix b
/// is matrix `p * batch + b` of D, which holds partial sums; a second kernel adds them up. The launch says how many
/// slices there are.
///
/// The first slices have a K tile more where their number does not divide K; slices beyond the K tiles are empty.
template <class Order, int TileK>
struct SplitKScheduler : SchedulerTraits<> {
  using Params = SplitKParams;
  /// What the cubin states; each launch has its own number.
  static constexpr int kSplits = 1;

  Order order;
  int k_extent;
  int batch;
  /// Output tiles of the whole batch.
  int tiles;
  int total;
  int rank;
  /// K tiles of a slice, and how many slices have one more.
  int least, longer;

  __device__ SplitKScheduler(Params const& params, int rank_)
      : order(params.m, params.n),
        k_extent(ceil_div(params.k, TileK)),
        batch(params.batch),
        tiles(order.count() * params.batch),
        total(tiles * params.splits),
        rank(rank_),
        least(k_extent / params.splits),
        longer(k_extent - least * params.splits) {}

  __device__ static int first() { return blockIdx.x / Order::kClusterSize; }
  __device__ static int stride() { return gridDim.x / Order::kClusterSize; }

  __device__ int split_of(int index) const { return Order::quotient(index, tiles); }

  __device__ int k_tiles(int index) const { return k_tiles_of(split_of(index)); }

  __device__ Work work(int index) {
    int const split = split_of(index);
    int const tile = index - split * tiles;
    int const matrix = Order::quotient(tile, order.count());
    auto const [m, n] = order.origin(tile - matrix * order.count(), rank);
    return {m, n, matrix, split * batch + matrix, split * least + min(split, longer), k_tiles_of(split)};
  }

 private:
  /// K tiles of a slice.
  __device__ int k_tiles_of(int split) const { return least + (split < longer); }
};

}  // namespace gemmill
