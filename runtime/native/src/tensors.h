/// Strided tensors in GPU memory, read from DLTensors.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "dtypes.h"
#include "gemmill/gemmill.h"

namespace gemmill {

/// Most extents of a tensor.
constexpr int kMaxRank = 3;
/// Largest extent (library/problem.py).
constexpr int64_t kMaxExtent = 2147479552;

/// Products of extents and strides, which may not fit 64 bits.
__extension__ typedef __int128 Wide;

/// The operands of a product, in the order of their addresses, and their names in messages.
enum Place { kA, kB, kC, kD, kPlaces };
const char* name_of(Place place);

/// A strided tensor. The strides along extents of 0 and 1, which have no effect, are 0.
struct Tensor {
  Place place;
  uint64_t address;
  std::vector<int64_t> shape;
  /// Elements between neighbours along each extent.
  std::vector<int64_t> strides;
  const Dtype* dtype;
  int device;

  bool is_empty() const;
  /// Bytes that it spans before its address, and from there on.
  std::pair<uint64_t, uint64_t> reach() const;
};

/// Reads a tensor. Error: its device, dtype, rank, extents or strides are not supported.
Tensor read_tensor(const DLTensor& tensor, Place place);

/// Extents in the form (2, 3).
std::string text_of(const std::vector<int64_t>& shape);

/// Strides broadcast to a shape: 0 along the extents that the tensor does not have.
Tensor broadcast(const Tensor& tensor, const std::vector<int64_t>& shape);

/// Whether two tensors share a byte. It may say so of two that only lie between each other.
bool shares_memory(const Tensor& one, uint64_t address, const Tensor& other, uint64_t other_address);

/// An address in hex.
std::string hex_address(uint64_t address);

}  // namespace gemmill
