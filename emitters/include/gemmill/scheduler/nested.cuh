/// Scheduling over a batch with up to three extents, each with its own stride, such as views of attention's (B, S, H,
/// D).
#pragma once

#include <gemmill/scheduler/persistent.cuh>

namespace gemmill {

/// Parameters of kernels with a nested batch.
///
/// The place of an operand's matrix is its index in the descriptor's batch extent; for D it counts from D's address.
/// The stride of that batch extent is the greatest one that divides the strides of all extents. `steps` are the strides
/// of the extents in units of it.
struct NestedParams : GemmParams {
  /// The innermost extent and the middle one; 1 if absent.
  int inner, middle;
  /// For A, B, C and D: steps between matrices along the innermost, the middle and the outermost extent.
  int steps[4][3];
};

/// A tile whose matrices have other places than their index in the batch.
struct NestedWork : Work {
  int place_a, place_b, place_c;
};

template <class Order, int TileK>
struct NestedScheduler : PersistentScheduler<Order, TileK, NestedParams, SchedulerTraits<BatchMode::Nested>> {
  using Base = PersistentScheduler<Order, TileK, NestedParams, SchedulerTraits<BatchMode::Nested>>;

  NestedParams const& params;
  Quotient<true> rows{}, blocks{};

  __device__ NestedScheduler(NestedParams const& params_, int rank) : Base(params_, rank), params(params_) {}

  __device__ NestedWork work(int index) {
    Work work = Base::work(index);
    int const row = rows(work.batch, params.inner), outer = blocks(row, params.middle);
    int const inner = work.batch - row * params.inner, middle = row - outer * params.middle;
    auto const place = [&](int operand) {
      int const* const steps = params.steps[operand];
      return inner * steps[0] + middle * steps[1] + outer * steps[2];
    };
    work.batch_d = place(3);
    return {work, place(0), place(1), place(2)};
  }
};

}  // namespace gemmill
