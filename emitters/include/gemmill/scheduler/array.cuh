/// Scheduling over a batch of matrices whose addresses are in the GPU's memory.
#pragma once

#include <gemmill/scheduler/persistent.cuh>

namespace gemmill {

template <class Order, int TileK>
struct ArrayScheduler : PersistentScheduler<Order, TileK, GemmParams, SchedulerTraits<BatchMode::Array>> {
  using Base = PersistentScheduler<Order, TileK, GemmParams, SchedulerTraits<BatchMode::Array>>;
  using Base::Base;
};

/// The operands, in the order of their rows in the table of addresses.
enum class Operand { A, B, D, C };

/// The address of a matrix. `low` and `high` are its coordinates in a descriptor whose tensor is all of memory
/// (library/launch.py, TmaBox.anywhere).
struct ArrayMatrix {
  int64_t address;

  __device__ ArrayMatrix(GemmParams const& params, Operand operand, int batch)
      : address(static_cast<int64_t const*>(params.groups)[int64_t(operand) * params.batch + batch]) {}

  __device__ int low() const { return int(address >> 4 & 0x7fffffff); }
  __device__ int high() const { return int(address >> 35); }
};

}  // namespace gemmill
