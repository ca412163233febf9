/// A batch of up to three extents with a stride each, as views of attention's (B, S, H, D) have.
#pragma once

#include <gemmill/scheduler/persistent.cuh>

namespace gemmill {

/// What kernels take whose batch is nested.
///
/// The matrices of an operand are found by their place in its descriptor's batch, or from D's address on: the greatest
/// stride that divides those along all extents goes to the descriptor, and what is left of these are steps.
struct NestedParams : GemmParams {
  /// The innermost extent, and the next; 1 where there is none.
  int inner, middle;
  /// Of A, B, C and D: steps from a matrix to the next along the innermost extent, the next, and the outermost.
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
