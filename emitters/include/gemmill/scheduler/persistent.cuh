/// Static persistent scheduling: each cluster walks the output tiles with the stride of the grid, and sums all of K.
#pragma once

#include <gemmill/kernel/params.cuh>
#include <gemmill/scheduler/work.cuh>

namespace gemmill {

template <class Order, int TileK, class Params_ = GemmParams, class Traits = SchedulerTraits<>>
struct PersistentScheduler : Traits {
  using Params = Params_;

  Order order;
  int k_extent;
  int total;
  int rank;

  __device__ PersistentScheduler(Params const& params, int rank_)
      : order(params.m, params.n),
        k_extent(ceil_div(params.k, TileK)),
        total(order.count() * params.batch),
        rank(rank_) {}

  __device__ static int first() { return blockIdx.x / Order::kClusterSize; }
  __device__ static int stride() { return gridDim.x / Order::kClusterSize; }

  __device__ int k_tiles(int) const { return k_extent; }

  __device__ Work work(int index) {
    int const batch = Order::quotient(index, order.count());
    auto const [m, n] = order.origin(index - batch * order.count(), rank);
    return {m, n, batch, batch, 0, k_extent};
  }
};

}  // namespace gemmill
