/// Launch parameters of the WGMMA kernels, which the host fills.
#pragma once

#include <cute/arch/copy_sm90_desc.hpp>

#include <gemmill/kernel/direct_params.cuh>

namespace gemmill {

/// Block scales of A or B, of type `Config::Scale`. Strides are in elements.
struct ScaleParams {
  void const* pointer;
  /// Strides from one row of A or block of columns of B to the next, from one block of K to the next, and between
  /// matrices.
  int64_t stride, k_stride, batch_stride;
};

/// The bit of `GemmParams::batched` that says that D has less alignment than TMA requires, and no descriptor.
inline constexpr uint32_t kUnalignedD = 1u << 31;

/// The parameters of every WGMMA kernel. Descriptors come first, because they need 64-byte alignment.
struct GemmParams {
  cute::TmaDescriptor a, b, c, d;
  /// Descriptors of the last boxes of A and B, which have fewer rows (see StageLoad::tail).
  cute::TmaDescriptor a_tail, b_tail;
  int m, n, k, batch;
  /// Bit 0: A has a batch extent. Bit 1: B. Bit 2: C. The following bits: the matrices that the epilogue reads by TMA.
  /// A clear bit broadcasts the operand over the batch. The highest bit is kUnalignedD.
  uint32_t batched;
  /// Distance of entries of `groups` in 32-bit words: 1, or 2 for 64-bit entries, of which the kernel reads the low
  /// half.
  int groups_stride;
  /// Address of D, and the strides in elements of its strided extent and of its batch.
  char* d_pointer;
  int64_t d_stride, d_batch_stride;
  ScaleParams a_scale, b_scale;
  /// Depending on the scheduler: ends of groups, or counts of their rows (int32 or int64); or addresses of matrices
  /// (int64), first all of A, then B, D and C.
  void const* groups;
};

/// Parameters of serial split-K kernels; `splits` is the number of slices of K in this launch.
struct SerialParams : GemmParams {
  int splits;
};

/// Parameters of kernels that sum slices of K through a workspace.
struct PartialParams : GemmParams {
  /// Partial sums in the workspace. Split-K: one matrix with D's extents for each slice and matrix
  /// of the batch. Stream-K: cluster tiles.
  char* partials;
  /// Stream-K: one flag for each consumer warpgroup of each partial cluster tile; 0 between launches.
  uint32_t* flags;
  /// Address and strides of C for the reduction kernel, which reads C without TMA.
  char const* c_pointer;
  int64_t c_stride, c_batch_stride;
};

/// Parameters of split-K kernels; `splits` is the number of slices of K in this launch.
struct SplitKParams : PartialParams {
  int splits;
};

/// Parameters of grouped kernels that find the rows of an operand by an index: those of A; its K rows for groups along K;
/// the columns of B for groups along N. They have no descriptor of this operand.
struct GatherParams : GemmParams {
  /// The row of A for each row of D or of B, or the column of B for each column of D, as int32, and the distance of
  /// entries in 32-bit words. Entries are clamped to the operand's rows or columns.
  int const* rows;
  int64_t rows_stride;
  /// The operand's first row, the distance of rows in chunks of 16 bytes, and their number.
  char const* operand;
  int64_t row_chunks, row_count;
};

/// Adds descriptors of the scales and zero points of a narrow A, for groups of elements along K.
template <class Base>
struct GroupParams : Base {
  cute::TmaDescriptor scale, zero;
};

/// Parameters of kernels whose producer warps copy an A of any alignment. They have no descriptor of A.
template <class Base>
struct UnalignedParams : Base {
  alignas(64) StridedMatrix a_rows;
};
template <class Params>
inline constexpr bool kIsUnaligned = false;
template <class Base>
inline constexpr bool kIsUnaligned<UnalignedParams<Base>> = true;

/// A scheduler of such a kernel.
template <class Scheduler>
struct OfUnaligned : Scheduler {
  using Scheduler::Scheduler;
  using Params = UnalignedParams<typename Scheduler::Params>;
};

/// The kernel's only parameter: one of the structs above, and the parameters of the epilogue.
template <class Base, class Epilogue>
struct KernelParams : Base {
  alignas(64) typename Epilogue::Params epilogue;
};

}  // namespace gemmill
