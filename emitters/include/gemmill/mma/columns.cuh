/// An M-major A of 32-bit elements, read into registers for WGMMA. From shared memory WGMMA reads 32-bit operands
/// K-major only.
#pragma once

#include <gemmill/mma/wgmma.cuh>

namespace gemmill {

/// Finds one thread's elements of A in each stage, which has the layout that TMA wrote.
///
/// A lane needs two rows that are 8 apart. Of each it needs elements l % 4 and l % 4 + 4 of every eight along K (PTX
/// ISA, "Register fragments for wgmma.mma_async.m64nNk8", A). The eight rows of a warp's lanes lie in two chunks of 16
/// bytes. Lanes of the second chunk read the later element first. Its line has another swizzle, so no two lanes of a
/// warp access the same bank.
template <class Layout, int Blocks, int K>
struct ColumnOperand {
  static_assert(Layout::kMajor == MajorIn::MN && Layout::kSpan == 128, "panels of 32 rows of A, a line for each k");
  using Fragment = RegisterFragments<Blocks, K / 8>;

  /// Addresses, in the first stage, of the first and the second element along K that this lane reads.
  char const* elements[2];
  bool later_first;

  /// `m` is the warpgroup's first row within the tile.
  __device__ ColumnOperand(char const* stages, int m) : later_first(threadIdx.x % 32 / 16) {
    int const row = m + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) elements[i] = stages + Layout::at(row, threadIdx.x % 4 + (later_first != (i == 1)) * 4);
  }

  __device__ void load(Fragment& fragment, int stage) const {
#pragma unroll
    for (int block = 0; block < Blocks; ++block) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        // Rows that are 8 apart are two chunks apart within the same swizzle span, so their addresses differ in one
        // bit.
        char const* const first = flipped(elements[0], half * 32) + stage * Layout::kBytes;
        char const* const second = flipped(elements[1], half * 32) + stage * Layout::kBytes;
#pragma unroll
        for (int step = 0; step < K / 8; ++step) {
          int const offset = Layout::offset(block * 64, step * 8);
          uint32_t const a = *reinterpret_cast<uint32_t const*>(first + offset);
          uint32_t const b = *reinterpret_cast<uint32_t const*>(second + offset);
          fragment.values[block][step][half] = later_first ? b : a;
          fragment.values[block][step][2 + half] = later_first ? a : b;
        }
      }
    }
  }

 private:
  __device__ static char const* flipped(char const* address, uintptr_t bits) {
    return reinterpret_cast<char const*>(reinterpret_cast<uintptr_t>(address) ^ bits);
  }
};

}  // namespace gemmill
