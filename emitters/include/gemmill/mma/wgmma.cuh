/// WGMMA on shared-memory descriptors built by hand: an atom of CuTe, without its per-thread tensor algebra.
#pragma once

#include <cute/arch/mma_sm90_desc.hpp>
#include <cute/arch/mma_sm90_gmma.hpp>

#include <gemmill/copy/layout.cuh>

namespace gemmill {

/// Matrix descriptor of a stage (PTX ISA, "Matrix descriptor format"; canonical layouts: CUTLASS
/// cute/atom/mma_traits_sm90_gmma.hpp, make_gmma_desc).
template <class Layout>
__device__ inline uint64_t matrix_descriptor(char const* stage) {
  cute::GmmaDescriptor descriptor;
  descriptor.desc_ = 0;
  descriptor.bitfield.start_address_ = cute::cast_smem_ptr_to_uint(stage) >> 4;
  // Between panels along MN; a K-major operand never crosses a panel inside one instruction.
  descriptor.bitfield.leading_byte_offset_ = Layout::kMajor == MajorIn::MN ? Layout::kPanelBytes >> 4 : 1;
  descriptor.bitfield.stride_byte_offset_ = (8 * Layout::kSpan) >> 4;
  descriptor.bitfield.layout_type_ = Layout::kSpan == 128 ? 1 : Layout::kSpan == 64 ? 2 : 3;
  return descriptor.desc_;
}

/// Accumulators of one consumer warpgroup: `Blocks` stacked 64 x N fragments, and the MMAs that fill them.
template <class Atom, class LayoutA, class LayoutB, int Blocks, int TileK>
struct Accumulators {
  using Register = cuda::std::remove_extent_t<typename Atom::CRegisters>;
  static constexpr int kPerBlock = cuda::std::extent_v<typename Atom::CRegisters>;
  /// K extent of one instruction: 32 bytes.
  static constexpr int kInstructionK = 32 / sizeof(typename LayoutA::Element);
  static_assert(TileK % kInstructionK == 0, "tile K must be a multiple of the instruction's K");

  Register values[Blocks][kPerBlock];

  __device__ void clear() {
#pragma unroll
    for (int block = 0; block < Blocks; ++block)
#pragma unroll
      for (int i = 0; i < kPerBlock; ++i) values[block][i] = 0;
  }

  /// Keeps the compiler from moving accesses to the accumulators across asynchronous MMAs.
  __device__ void fence() {
#pragma unroll
    for (int block = 0; block < Blocks; ++block)
#pragma unroll
      for (int i = 0; i < kPerBlock; ++i) cute::warpgroup_fence_operand(values[block][i]);
  }

  /// Issues and commits the MMAs of one stage; `first` overwrites the accumulators instead of adding to them.
  __device__ void multiply(uint64_t a, uint64_t b, bool first) {
    fence();
    cute::warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < TileK; k += kInstructionK) {
      auto const scale = k == 0 && first ? cute::SM90::GMMA::ScaleOut::Zero : cute::SM90::GMMA::ScaleOut::One;
#pragma unroll
      for (int block = 0; block < Blocks; ++block)
        issue(a + (LayoutA::offset(block * 64, k) >> 4), b + (LayoutB::offset(0, k) >> 4), values[block], scale,
              cute::make_int_sequence<kPerBlock>{});
    }
    cute::warpgroup_commit_batch();
    fence();
  }

 private:
  template <int... I>
  __device__ static void issue(uint64_t a, uint64_t b, Register (&c)[kPerBlock], cute::SM90::GMMA::ScaleOut scale,
                               cute::int_sequence<I...>) {
    Atom::fma(a, b, c[I]..., scale);
  }
};

}  // namespace gemmill
