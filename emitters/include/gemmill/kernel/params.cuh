/// What the host hands to a kernel.
#pragma once

#include <cute/arch/copy_sm90_desc.hpp>

namespace gemmill {

/// Scales of blocks of A or B: f32, strides in elements.
struct ScaleParams {
  float const* pointer;
  /// From a row of A or a block of columns of B to the next, from a block of K to the next, from a matrix to the next.
  int64_t stride, k_stride, batch_stride;
};

/// What every GEMM takes. Descriptors first: they need 64-byte alignment.
struct GemmParams {
  cute::TmaDescriptor a, b, c, d;
  int m, n, k, batch;
  /// Bit 0: A has a batch extent, bit 1: B, bit 2: C. A clear bit broadcasts the operand over the batch.
  uint32_t batched;
  /// Address of D, and strides in elements of its strided extent and its batch.
  char* d_pointer;
  int64_t d_stride, d_batch_stride;
  ScaleParams a_scale, b_scale;
};

/// The kernel's only parameter: GemmParams or what a scheduler adds to it, and what the epilogue takes.
template <class Base, class Epilogue>
struct KernelParams : Base {
  alignas(64) typename Epilogue::Params epilogue;
};

}  // namespace gemmill
