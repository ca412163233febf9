/// Cluster split-K: the CTAs of a cluster share the K of an output tile.
#pragma once

#include <gemmill/scheduler/persistent.cuh>
#include <gemmill/scheduler/work.cuh>

namespace gemmill {

/// A unit of work: the CTA multiplies split `split` of K of its cluster's tile, and stores that share of the columns.
struct ClusterWork : Work {
  int split;
};

/// Like the persistent scheduler, with a cluster of `Splits` CTAs for each tile. The CTA of rank r multiplies slice r
/// of K.
template <class Order, int TileK, int Splits, int Unit>
struct ClusterScheduler
    : PersistentScheduler<Order, TileK, GemmParams, SchedulerTraits<BatchMode::Strided, false, Splits>> {
  using Base = PersistentScheduler<Order, TileK, GemmParams, SchedulerTraits<BatchMode::Strided, false, Splits>>;
  static_assert(Order::kClusterSize == 1, "the CTAs of a cluster have one tile");

  int split;
  BalancedSlices<Unit> slices;

  /// The CTAs do not share loads, so each has rank 0 within its cluster tile.
  __device__ ClusterScheduler(typename Base::Params const& params, int rank)
      : Base(params, 0), split(rank), slices(this->k_extent, Splits) {}

  __device__ static int first() { return blockIdx.x / Splits; }
  __device__ static int stride() { return gridDim.x / Splits; }

  __device__ int k_tiles(int) const { return slices.k_tiles(split); }

  __device__ ClusterWork work(int index) {
    ClusterWork work{Base::work(index), split};
    work.k_tile = slices.begin(split);
    work.k_tiles = k_tiles(index);
    return work;
  }
};

}  // namespace gemmill
