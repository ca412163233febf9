/// Tensors as batches of matrices, and these as operands of a kernel (runtime/operands/matrices.py).
#pragma once

#include <optional>
#include <string>

#include "tensors.h"

namespace gemmill {

/// A batch of matrices at one stride, as a kernel takes it. Strides are in elements.
struct Operand {
  /// The caller's operand.
  size_t place;
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

/// A tensor as a batch of matrices, rows x columns; strides in elements.
struct Matrices {
  const Tensor* tensor;
  int64_t rows;
  int64_t columns;
  int64_t row_stride;
  int64_t column_stride;
  /// 0 where the whole batch shares one.
  int64_t batch_stride;
};

/// Reads a tensor of rank 2 or 3.
Matrices matrices(const Tensor& tensor, int64_t rows, int64_t columns);

/// Whether the rows of the whole batch lie at one stride and are contiguous along one extent.
bool stacks(const Matrices& x);

/// The whole batch as one matrix of some rows.
Matrices stacked(Matrices x, int64_t rows);

/// Finds the contiguous extent of an operand: where both could be, the better aligned, and on a tie `first`.
Operand operand(const Matrices& x, int64_t batch, const char* of_columns, const char* of_rows,
                const std::string& first);

/// Refuses an output with elements that share an address: several CTAs would write them.
void refuse_overlap(const Matrices& x, int64_t batch);

}  // namespace gemmill
