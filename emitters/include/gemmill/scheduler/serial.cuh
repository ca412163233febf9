/// Serial split-K: one CTA sums the slices of K of an output tile one after another.
#pragma once

#include <gemmill/scheduler/persistent.cuh>

namespace gemmill {

/// Like the persistent scheduler. `slices` are those of SplitKScheduler for the same number of slices, so that the two
/// kernels add the same sums.
template <class Order, int TileK, int Unit>
struct SerialScheduler
    : PersistentScheduler<Order, TileK, SerialParams, SchedulerTraits<BatchMode::Strided, false, 1, true>> {
  using Base = PersistentScheduler<Order, TileK, SerialParams, SchedulerTraits<BatchMode::Strided, false, 1, true>>;

  BalancedSlices<Unit> slices;

  __device__ SerialScheduler(SerialParams const& params, int rank)
      : Base(params, rank), slices(this->k_extent, params.splits) {}
};

}  // namespace gemmill
