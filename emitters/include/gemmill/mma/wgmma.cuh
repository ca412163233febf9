/// WGMMA on shared-memory descriptors that this header builds. emitters/wgmma_atom.py emits the instruction itself.
#pragma once

#include <gemmill/copy/layout.cuh>

namespace gemmill {

/// Matrix descriptors of a ring of stages (PTX ISA, "Matrix descriptor format"; canonical layouts: CUTLASS
/// cute/atom/mma_traits_sm90_gmma.hpp, make_gmma_desc). It holds only the low word; the high word is a constant.
template <class Layout>
struct MatrixDescriptors {
  /// Distance of panels along MN, in units of 16 bytes. One instruction reads a K-major operand from a single panel.
  static constexpr uint32_t kLeading = Layout::kMajor == MajorIn::MN ? Layout::kPanelBytes >> 4 : 1;
  static constexpr uint32_t kStride = (8 * Layout::kSpan) >> 4;
  static constexpr uint32_t kSwizzle = Layout::kSpan == 128 ? 1 : Layout::kSpan == 64 ? 2 : 3;
  static constexpr uint64_t kHigh = uint64_t(kStride | kSwizzle << 30) << 32;

  uint32_t low;

  /// `byte` is the offset of the operand within the first stage.
  __device__ MatrixDescriptors(char const* stages, int byte)
      : low(((cute::cast_smem_ptr_to_uint(stages) + byte) & 0x3ffff) >> 4 | kLeading << 16) {}

  /// The descriptor of the operand `byte` bytes further on.
  __device__ uint64_t at(int byte) const { return kHigh | (low + (byte >> 4)); }

  /// Descriptors that start `byte` bytes further on. The asm statement makes the compiler compute them here and not at
  /// their use.
  __device__ MatrixDescriptors advanced(int byte) const {
    MatrixDescriptors further = *this;
    further.low += byte >> 4;
    asm volatile("" : "+r"(further.low));
    return further;
  }
};

// Ordering of asynchronous MMAs (PTX ISA, "wgmma.fence", "wgmma.commit_group", "wgmma.wait_group").
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Waits until at most `InFlight` committed batches are unfinished.
template <int InFlight>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(InFlight) : "memory");
}
/// Keeps the compiler from moving accesses to a register across asynchronous MMAs.
__device__ inline void pin(float& value) { asm volatile("" : "+f"(value)::"memory"); }
__device__ inline void pin(uint32_t& value) { asm volatile("" : "+r"(value)::"memory"); }
__device__ inline void pin(int32_t& value) { asm volatile("" : "+r"(value)::"memory"); }

/// The fragments of A that one thread holds of one stage, for kernels whose MMAs read A from registers: `Blocks` of 64
/// rows by `Steps` of 32 bytes along K.
template <int Blocks, int Steps>
struct RegisterFragments {
  uint32_t values[Blocks][Steps][4];

  /// Keeps the compiler from reusing the registers before this point.
  __device__ void pin() {
#pragma unroll
    for (auto& block : values)
#pragma unroll
      for (auto& step : block)
#pragma unroll
        for (auto& value : step) gemmill::pin(value);
  }
};

/// The accumulators of one consumer warpgroup, `Blocks` stacked 64 x N fragments, and the MMAs that add to them.
template <class Atom, class LayoutA, class LayoutB, int Blocks, int TileK>
struct Accumulators {
  static_assert(TileK % Atom::kK == 0, "tile K must be a multiple of the instruction's K");

  typename Atom::Register values[Blocks][Atom::kRegisters];
  /// Which sum of a pair goes first when sums are moved as a vector.
  static constexpr int kFirst = 0;

  __device__ void clear() {
#pragma unroll
    for (auto& block : values)
#pragma unroll
      for (auto& value : block) value = 0;
  }

  /// By index: the compiler does not always unroll a loop over rows whose size is not a power of two.
  __device__ void fence() {
#pragma unroll
    for (int block = 0; block < Blocks; ++block)
#pragma unroll
      for (int i = 0; i < Atom::kRegisters; ++i) pin(values[block][i]);
  }

  /// Adds the sums of another slice of K, each with one rounding.
  __device__ Accumulators& add(Accumulators const& more) {
    static_assert(cute::is_same_v<typename Atom::Register, float>, "slices are added in f32");
#pragma unroll
    for (int block = 0; block < Blocks; ++block)
#pragma unroll
      for (int i = 0; i < Atom::kRegisters; ++i) values[block][i] += more.values[block][i];
    return *this;
  }

  /// Adds other sums, each times the factor of its row.
  __device__ void add(Accumulators const& more, float const (&factors)[Blocks][2]) {
#pragma unroll
    for (int block = 0; block < Blocks; ++block)
#pragma unroll
      for (int i = 0; i < Atom::kRegisters; ++i) values[block][i] += factors[block][i / 2 % 2] * more.values[block][i];
  }

  /// Issues and commits the MMAs of one stage, of the first `Filled` blocks. `first` overwrites the accumulators instead
  /// of adding to them.
  template <int Filled = Blocks>
  __device__ void multiply(MatrixDescriptors<LayoutA> a, MatrixDescriptors<LayoutB> b, int stage, bool first) {
    fence();
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < TileK; k += Atom::kK) {
#pragma unroll
      for (int block = 0; block < Filled; ++block)
        Atom::multiply(a.at(stage * LayoutA::kBytes + LayoutA::offset(block * 64, k)),
                       b.at(stage * LayoutB::kBytes + LayoutB::offset(0, k)), values[block], k > 0 || !first);
    }
    wgmma_commit();
    fence();
  }

  /// The same with A in registers, which must keep their values until the MMAs have finished. `b` is where the operand
  /// starts in the first stage, `begin` where A does in K.
  template <class Fragments>
  __device__ void multiply(Fragments const& a, MatrixDescriptors<LayoutB> b, int stage, bool first, int begin = 0) {
    fence();
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < TileK; k += Atom::kK) {
#pragma unroll
      for (int block = 0; block < Blocks; ++block)
        Atom::multiply(a.values[block][k / Atom::kK], b.at(stage * LayoutB::kBytes + LayoutB::offset(0, begin + k)),
                       values[block], k > 0 || !first);
    }
    wgmma_commit();
    fence();
  }
};

}  // namespace gemmill
