/// The launch facts of a kernel, from the header of its artifact (library/launch.py).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dtypes.h"

namespace gemmill {

class Row;

/// Most bytes of the parameters of a kernel (CUDA C++ Programming Guide, "Function Parameters").
constexpr int64_t kMaxParameterBytes = 32764;
/// Size of a CUtensorMap, and the alignment of its address.
constexpr int64_t kDescriptorBytes = 128;
constexpr int64_t kDescriptorAlignment = 64;

/// How one operand's TMA descriptor is encoded.
struct Box {
  std::string operand;
  const Dtype* dtype;
  char contiguous;
  char strided;
  uint32_t columns;
  uint32_t rows;
  int swizzle;
  int64_t offset;
  /// Empty, "whole" or "tail": see rows_of.
  std::string part;
  /// Units of the problem extent for each element of the strided extent.
  int64_t group;
  /// Rows of a window that slides over the tensor, so that boxes can end at any row; 0 without one.
  int64_t window;
  /// Whether this library encodes it: without what only kernels for arrays, paired halves and integers of 4 bits have.
  bool is_supported;

  /// Rows of the box where the operand has some; 0 if there is no such box.
  int64_t rows_of(int64_t strided_extent) const;
};

/// The second kernel of split-K.
struct Reduction {
  std::string entry;
  int64_t threads;
};

/// How CTAs share K of a tile.
struct KDecomposition {
  std::string name;
  int64_t tile_k;
  int64_t tile_bytes;
  int64_t tile_flags;
  std::optional<Reduction> reduction;

  /// Whether the launch sets the number of slices of K.
  bool has_slices() const { return name == "splitk" || name == "serial" || name == "tree"; }
  bool is_stream() const { return name == "stream"; }
};

struct LaunchSpec {
  std::string entry;
  int64_t threads;
  int64_t cluster_m;
  int64_t cluster_n;
  int64_t cluster_k;
  int64_t shared_bytes;
  int64_t tile_m;
  int64_t tile_n;
  std::optional<KDecomposition> k_decomposition;
  std::vector<Box> boxes;
  int64_t params_bytes;
  std::map<std::string, int64_t> offsets;

  static LaunchSpec read(const Row& row);
  bool has_workspace() const { return offsets.count("partials") != 0; }
  int64_t cluster_ctas() const { return cluster_m * cluster_n * cluster_k; }
};

}  // namespace gemmill
