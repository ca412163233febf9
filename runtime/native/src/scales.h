/// Scales of blocks of fp8 operands, and of groups of a narrow operand along K (runtime/operands/matrices.py).
#pragma once

#include <string>

#include "matrices.h"

namespace gemmill {

/// Block scales of A or B in memory; strides in elements.
struct BlockScale {
  size_t place;
  uint64_t address;
  /// From a row of A, or a block of columns of B, to the next.
  int64_t stride;
  /// From a block of K to the next.
  int64_t k_stride;
  /// From a matrix to the next; 0 where the whole batch shares its scales.
  int64_t batch_stride;
};

/// Reads block scales, whose last two extents must be `rows` and `columns`. `batch`: 0 where there is no extent of it.
BlockScale block_scale(const Tensor& tensor, int64_t rows, int64_t columns, int64_t batch, size_t k_axis);

/// The block scales of a batch of `m` rows each as those of one matrix; whether their strides allow it.
bool stack_scales(BlockScale& a, const BlockScale& b, int64_t m);

/// Reads the ue8m0 scales of an e2m1 operand, A or B, which has some rows along its extent that is not K.
Operand group_scale(const Tensor* tensor, const Matrices& narrow, int64_t rows, int64_t k, int64_t batch);

}  // namespace gemmill
