/// A product as a kernel takes it: extents, and the formats and strides of its operands (runtime/operands/).
#pragma once

#include <array>
#include <optional>
#include <string>

#include "tensors.h"

namespace gemmill {

/// Addresses of A, B, C and D; 0 for a missing C.
using Addresses = std::array<uint64_t, kPlaces>;

/// A batch of matrices at one stride, as a kernel takes it. Strides are in elements.
struct Operand {
  /// The caller's operand.
  Place place;
  uint64_t address;
  /// In memory; the product may read f32 as tf32.
  const Dtype* stored;
  const Dtype* dtype;
  /// The contiguous extent: k or mn for A and B, n or m for C and D; any where none is.
  std::string major;
  /// Between neighbours along the other extent.
  int64_t stride;
  int64_t batch_stride;
  /// Largest power of two up to 16 that divides the address and all strides, in bytes.
  int64_t align;
  int64_t row_stride;
  int64_t column_stride;

  Operand transposed() const;
};

/// The arguments of a call.
struct Call {
  std::optional<Tensor> a;
  std::optional<Tensor> b;
  std::optional<Tensor> c;
  std::optional<Tensor> d;
  double alpha;
  double beta;
  bool has_tf32;
  bool has_fast_accumulation;

  Addresses addresses() const;
};

/// D = alpha A B + beta C, for each matrix of a batch.
struct Gemm {
  int64_t m;
  int64_t n;
  int64_t k;
  int64_t batch;
  Operand a;
  Operand b;
  std::optional<Operand> c;
  Operand d;
  const Dtype* accumulator;
  /// Two-level accumulation: the WGMMAs after which sums of fp8 move to f32 registers; 0: never.
  int64_t promote;
  double alpha;
  double beta;
  bool is_transposed = false;

  /// Checks the tensors and factors of a call. Error: they do not fit each other, or are not supported.
  static Gemm of(const Call& call);
  bool is_empty() const { return m == 0 || n == 0 || batch == 0; }
  /// The same operation as D^T = B^T A^T.
  Gemm transposed() const;
  /// Its extents, such as 128x256x64.
  std::string extents() const;
};

/// Refuses addresses where D overlaps other operands, and missing ones. C may be D.
void check_memory(const Call& call, const Addresses& addresses);

}  // namespace gemmill
