/// TMA descriptors, encoded in the memory of a kernel's parameters (runtime/launch/tma.py).
#pragma once

#include <cstdint>
#include <string>

#include "driver.h"
#include "launch_spec.h"

namespace gemmill {

constexpr int64_t kTmaAlign = 16;
/// Bytes of an L2 line.
constexpr int kLineBytes = 128;

/// One operand as a tensor of matrices for cuTensorMapEncodeTiled.
struct TensorMap {
  const Box* box;
  int64_t rows;
  uint64_t address;
  uint32_t rank;
  /// Elements along the contiguous and the strided extent (rows of the window, and its places), and matrices; none is
  /// 0.
  uint64_t extents[4];
  /// Bytes between neighbours along all but the first.
  uint64_t strides[3];

  /// Writes the 128 bytes of the descriptor. `fetched`: the bytes that L2 fetches at a time, 128 or 256.
  void encode(void* destination, const Device& device, int fetched) const;
};

/// Extents and strides of an operand in elements; strides along extents of 0 and 1 have no effect.
struct Described {
  int64_t contiguous;
  int64_t strided;
  int64_t batch;
  int64_t stride;
  int64_t batch_stride;
};

/// The descriptor of an operand; Error names it and the rule of TMA that it breaks.
TensorMap described(const Box& box, uint64_t address, const Described& operand, const std::string& name);

/// Points a descriptor at another tensor with the same extents and strides.
void replace_address(void* descriptor, uint64_t address, const Device& device);

}  // namespace gemmill
