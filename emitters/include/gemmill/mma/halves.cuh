/// fp8 MMAs for targets whose mma.sync has no fp8 (sm_90). They convert the elements to f16, which is exact.
#pragma once

#include <gemmill/types.cuh>

namespace gemmill {

/// Converts four elements: the first two to pairs[0], the last two to pairs[1].
__device__ inline void to_halves(e4m3, uint32_t word, uint32_t (&pairs)[2]) {
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2; cvt.rn.f16x2.e4m3x2 %0, low; cvt.rn.f16x2.e4m3x2 %1, high; }"
      : "=r"(pairs[0]), "=r"(pairs[1])
      : "r"(word));
}
/// An e5m2 is the upper half of an f16.
__device__ inline void to_halves(e5m2, uint32_t word, uint32_t (&pairs)[2]) {
  pairs[0] = __byte_perm(word, 0, 0x1404);
  pairs[1] = __byte_perm(word, 0, 0x3424);
}

/// Multiplies 16 x 8 x 32 elements with two f16 MMAs of 16 x 8 x 16: one takes the first two elements of each word, the
/// other the last two. The order of K is free as long as both operands have the same. This replaces ptxas's own
/// emulation of fp8, which sums from zero and adds that sum to the accumulators.
template <class HalfAtom, class A, class B>
struct HalvesAtom {
  using Word = uint32_t;
  __device__ static void multiply(uint32_t const (&a)[4], uint32_t b0, uint32_t b1, float (&d)[4]) {
    uint32_t rows[4][2], columns[2][2];
#pragma unroll
    for (int i = 0; i < 4; ++i) to_halves(A{}, a[i], rows[i]);
    to_halves(B{}, b0, columns[0]);
    to_halves(B{}, b1, columns[1]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t const wide[4] = {rows[0][half], rows[1][half], rows[2][half], rows[3][half]};
      HalfAtom::multiply(wide, columns[0][half], columns[1][half], d);
    }
  }
};

/// Whether an atom is a HalvesAtom.
template <class Atom>
inline constexpr bool kIsHalves = false;
template <class HalfAtom, class A, class B>
inline constexpr bool kIsHalves<HalvesAtom<HalfAtom, A, B>> = true;

}  // namespace gemmill
