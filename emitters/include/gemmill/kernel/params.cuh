/// What the host hands to a kernel.
#pragma once

#include <cute/arch/copy_sm90_desc.hpp>

namespace gemmill {

/// Scales of blocks of A or B: `Config::Scale`, strides in elements.
struct ScaleParams {
  void const* pointer;
  /// From a row of A or a block of columns of B to the next, from a block of K to the next, from a matrix to the next.
  int64_t stride, k_stride, batch_stride;
};

/// Of `GemmParams::batched`: D is not as aligned as TMA needs it, and has no descriptor.
inline constexpr uint32_t kUnalignedD = 1u << 31;

/// What every GEMM takes. Descriptors first: they need 64-byte alignment.
struct GemmParams {
  cute::TmaDescriptor a, b, c, d;
  /// Of the rows that boxes of A and B leave over.
  cute::TmaDescriptor a_tail, b_tail;
  int m, n, k, batch;
  /// Bit 0: A has a batch extent, bit 1: B, bit 2: C, further ones: matrices that the epilogue reads by TMA. A clear bit
  /// broadcasts the operand over the batch. The last is kUnalignedD.
  uint32_t batched;
  /// Words of 32 bits from an entry of `groups` to the next: 2 where entries have 64, of which the low half is read.
  int groups_stride;
  /// Address of D, and strides in elements of its strided extent and its batch.
  char* d_pointer;
  int64_t d_stride, d_batch_stride;
  ScaleParams a_scale, b_scale;
  /// Ends of groups, or counts of their rows (int32, int64); or addresses of matrices (int64): all of A, of B, of D, of C.
  void const* groups;
};

/// What kernels take that sum slices of K.
struct PartialParams : GemmParams {
  /// Partial sums in a workspace: matrices as long as D, or one cluster tile after the other.
  char* partials;
  /// One for each consumer warpgroup of each slot, 0 between launches.
  uint32_t* flags;
  /// Like D's: the reduction kernel reads C without TMA.
  char const* c_pointer;
  int64_t c_stride, c_batch_stride;
};

/// What split-K kernels take: in how many slices of K the launch goes.
struct SplitKParams : PartialParams {
  int splits;
};

/// With scales, and zero points, of groups of narrow A's elements along K.
template <class Base>
struct GroupParams : Base {
  cute::TmaDescriptor scale, zero;
};

/// The kernel's only parameter: all of the above that it takes, and what its epilogue takes.
template <class Base, class Epilogue>
struct KernelParams : Base {
  alignas(64) typename Epilogue::Params epilogue;
};

}  // namespace gemmill
