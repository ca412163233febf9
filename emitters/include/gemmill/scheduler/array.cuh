/// A batch of matrices at addresses that only the GPU knows.
#pragma once

#include <gemmill/scheduler/persistent.cuh>

namespace gemmill {

template <class Order, int TileK>
struct ArrayScheduler : PersistentScheduler<Order, TileK, GemmParams, SchedulerTraits<BatchMode::Array>> {
  using Base = PersistentScheduler<Order, TileK, GemmParams, SchedulerTraits<BatchMode::Array>>;
  using Base::Base;
};

/// The operands, in the order of the rows of a table of addresses.
enum class Operand { A, B, D, C };

/// Where a matrix lies: its address, which is also two coordinates of a descriptor whose tensor is all of memory
/// (library/launch.py, TmaBox.anywhere).
struct ArrayMatrix {
  int64_t address;

  __device__ ArrayMatrix(GemmParams const& params, Operand operand, int batch)
      : address(static_cast<int64_t const*>(params.groups)[int64_t(operand) * params.batch + batch]) {}

  __device__ int low() const { return int(address >> 4 & 0x7fffffff); }
  __device__ int high() const { return int(address >> 35); }
};

}  // namespace gemmill
