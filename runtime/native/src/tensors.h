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

/// The operands of a product, in the order of their addresses; arguments of an epilogue follow.
enum Place { kA, kB, kC, kD, kAScale, kBScale, kOffsets, kCounts, kPlaces };
/// Most arguments of an epilogue.
constexpr size_t kMostArguments = 8;
/// The name of an operand in messages.
const char* name_of(size_t place);

/// A strided tensor. The strides along extents of 0 and 1, which have no effect, are 0.
struct Tensor {
  /// Its index in the addresses of a launch, and its name in messages.
  size_t place;
  std::string name;
  uint64_t address;
  std::vector<int64_t> shape;
  /// Elements between neighbours along each extent.
  std::vector<int64_t> strides;
  /// The same as the caller has them, also where they have no effect: kernels take some of them as parameters.
  std::vector<int64_t> given_strides;
  const Dtype* dtype;
  int device;

  bool is_empty() const;
  /// Bytes from one element to the next along an extent, and how many. Elements of 4 bits are bytes along K.
  std::pair<int64_t, int64_t> byte_extent(size_t i) const;
  /// Bytes of an element; 1 for those of 4 bits.
  uint64_t element_bytes() const;
  /// Bytes that it spans before its address, and from there on.
  std::pair<uint64_t, uint64_t> reach() const;
};

/// Reads a tensor. Error: its device, dtype, rank, extents or strides are not supported.
Tensor read_tensor(const DLTensor& tensor, size_t place, const std::string& name);

/// Extents in the form (2, 3).
std::string text_of(const std::vector<int64_t>& shape);

/// Strides broadcast to a shape: 0 along the extents that the tensor does not have.
Tensor broadcast(const Tensor& tensor, const std::vector<int64_t>& shape);

/// Whether two tensors share a byte. It may say so of two that only lie between each other.
bool shares_memory(const Tensor& one, uint64_t address, const Tensor& other, uint64_t other_address);

/// An address in hex.
std::string hex_address(uint64_t address);

}  // namespace gemmill
