/// A product as a kernel takes it: extents, and the formats and strides of its operands (runtime/operands/).
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "arguments.h"
#include "epilogue.h"
#include "matrices.h"
#include "scales.h"
#include "tensors.h"

namespace gemmill {

/// Addresses of the operands by place, then of the arguments of the epilogue; 0 for those that are missing.
using Addresses = std::array<uint64_t, kPlaces + kMostArguments>;

/// The arguments of a call.
struct Call {
  /// By place.
  std::array<std::optional<Tensor>, kPlaces> tensors;
  double alpha;
  double beta;
  bool has_tf32;
  bool has_fast_accumulation;
  int64_t expected_rows;
  /// NULL in C: linear.
  std::optional<Epilogue> epilogue;
  std::vector<Argument> arguments;

  const Tensor* find(Place place) const { return tensors[place] ? &*tensors[place] : nullptr; }
  const Tensor& get(Place place) const { return *tensors[place]; }
  /// All tensors, arguments of the epilogue among them.
  std::vector<const Tensor*> all() const;
  Addresses addresses() const;
};

/// The offsets or counts of groups.
struct Groups {
  size_t place;
  uint64_t address;
  /// From one to the next, in 32-bit words.
  int64_t stride;
};

/// D = alpha A B + beta C, or an epilogue, for each matrix of a batch.
struct Gemm {
  int64_t m;
  int64_t n;
  int64_t k;
  int64_t batch;
  Operand a;
  Operand b;
  std::optional<Operand> c;
  Operand d;
  const Dtype* accumulator = nullptr;
  /// Two-level accumulation: the WGMMAs after which sums of fp8 move to f32 registers; 0: never.
  int64_t promote = 0;
  double alpha = 1;
  double beta = 0;
  bool is_transposed = false;
  /// How the matrices of the batch are found: strided, grouped, ngrouped, masked or nmasked.
  std::string batching = "strided";
  std::optional<Groups> groups = std::nullopt;
  /// Rows of a masked group for which a table chooses; 0: it assumes some.
  int64_t expected_rows = 0;
  /// Sorts of scales, as in the names of kernels.
  std::string a_scaling = "none";
  std::string b_scaling = "none";
  std::optional<BlockScale> a_scale = std::nullopt;
  std::optional<BlockScale> b_scale = std::nullopt;
  /// Scales of groups of a narrow A along K.
  std::optional<Operand> scale = std::nullopt;
  Epilogue epilogue = {};
  std::vector<BoundArgument> arguments = {};

  /// Checks the tensors and factors of a call. Error: they do not fit each other, or are not supported.
  static Gemm of(const Call& call);
  bool is_empty() const { return m == 0 || n == 0 || batch == 0; }
  /// Whether a kernel may compute the transpose instead.
  bool can_transpose() const { return batching == "strided" && a_scaling == "none" && b_scaling == "none"; }
  /// The same operation as D^T = B^T A^T.
  Gemm transposed() const;
  /// Its extents, such as 128x256x64.
  std::string extents() const;
};

/// Refuses addresses where D overlaps other operands, and missing ones. C may be D.
void check_memory(const Call& call, const Addresses& addresses);

}  // namespace gemmill
