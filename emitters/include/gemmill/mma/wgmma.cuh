/// WGMMA on shared-memory descriptors built by hand: an atom of CuTe, without its per-thread tensor algebra.
#pragma once

#include <cute/arch/mma_sm90_gmma.hpp>

#include <gemmill/copy/layout.cuh>

namespace gemmill {

/// Matrix descriptors of a ring of stages (PTX ISA, "Matrix descriptor format"; canonical layouts: CUTLASS
/// cute/atom/mma_traits_sm90_gmma.hpp, make_gmma_desc). Only the low word depends on the address, so only it is held.
template <class Layout>
struct MatrixDescriptors {
  /// Bytes between panels along MN; a K-major operand never crosses a panel inside one instruction.
  static constexpr uint32_t kLeading = Layout::kMajor == MajorIn::MN ? Layout::kPanelBytes >> 4 : 1;
  static constexpr uint32_t kStride = (8 * Layout::kSpan) >> 4;
  static constexpr uint32_t kSwizzle = Layout::kSpan == 128 ? 1 : Layout::kSpan == 64 ? 2 : 3;
  static constexpr uint64_t kHigh = uint64_t(kStride | kSwizzle << 30) << 32;

  uint32_t low;

  /// `byte` is where in the first stage the operand starts.
  __device__ MatrixDescriptors(char const* stages, int byte)
      : low(((cute::cast_smem_ptr_to_uint(stages) + byte) & 0x3ffff) >> 4 | kLeading << 16) {}

  /// The descriptor of the operand `byte` bytes further on.
  __device__ uint64_t at(int byte) const { return kHigh | (low + (byte >> 4)); }
};

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
  __device__ void multiply(MatrixDescriptors<LayoutA> a, MatrixDescriptors<LayoutB> b, int stage, bool first) {
    fence();
    cute::warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < TileK; k += kInstructionK) {
      auto const scale = k == 0 && first ? cute::SM90::GMMA::ScaleOut::Zero : cute::SM90::GMMA::ScaleOut::One;
#pragma unroll
      for (int block = 0; block < Blocks; ++block)
        issue(a.at(stage * LayoutA::kBytes + LayoutA::offset(block * 64, k)),
              b.at(stage * LayoutB::kBytes + LayoutB::offset(0, k)), values[block], scale,
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
