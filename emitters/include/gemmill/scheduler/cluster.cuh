/// CTAs of a cluster that share K of an output tile.
#pragma once

#include <gemmill/scheduler/persistent.cuh>
#include <gemmill/scheduler/work.cuh>

namespace gemmill {

/// Work of a CTA that multiplies one split of K of its cluster's tile, and stores that share of the columns.
struct ClusterWork : Work {
  int split;
};

/// Like the persistent scheduler, with a cluster of `Splits` CTAs in place of each CTA: the CTA of rank r multiplies
/// split r of K. The first splits have a K tile more where their number does not divide K; splits beyond the K tiles are
/// empty.
template <class Order, int TileK, int Splits>
struct ClusterScheduler
    : PersistentScheduler<Order, TileK, GemmParams, SchedulerTraits<BatchMode::Strided, false, Splits>> {
  using Base = PersistentScheduler<Order, TileK, GemmParams, SchedulerTraits<BatchMode::Strided, false, Splits>>;
  static_assert(Order::kClusterSize == 1, "the CTAs of a cluster have one tile");

  int split;

  /// No CTA shares loads with another, so that each has rank 0 as far as tiles go.
  __device__ ClusterScheduler(typename Base::Params const& params, int rank) : Base(params, 0), split(rank) {}

  __device__ static int first() { return blockIdx.x / Splits; }
  __device__ static int stride() { return gridDim.x / Splits; }

  __device__ int k_tiles(int) const { return this->k_extent / Splits + (split < this->k_extent % Splits); }

  __device__ ClusterWork work(int index) {
    ClusterWork work{Base::work(index), split};
    work.k_tile = split * (this->k_extent / Splits) + min(split, this->k_extent % Splits);
    work.k_tiles = k_tiles(index);
    return work;
  }
};

}  // namespace gemmill
