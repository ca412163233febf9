/// Element types, majorness and the few numeric helpers that every role shares.
#pragma once

#include <cute/arch/copy_sm90_tma.hpp>

namespace gemmill {

/// 16-bit floats are bits here: WGMMA and TMA interpret them, and conversions are single PTX instructions.
struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

/// The contiguous extent of an input: K, or the other one (M for A, N for B).
enum class MajorIn { K, MN };
/// The contiguous extent of C and D.
enum class MajorOut { N, M };
/// Which extent consecutive tiles lie along.
enum class Raster { M, N };
/// Cooperative: the consumer warpgroups share a tile. Pingpong: each has a tile of its own.
enum class Schedule { Cooperative, Pingpong };

/// Stands in for the dtype of an absent C.
struct None {};

constexpr int ceil_div(int value, int divisor) { return (value + divisor - 1) / divisor; }
constexpr int align_up(int value, int multiple) { return ceil_div(value, multiple) * multiple; }
constexpr int min_of(int a, int b) { return a < b ? a : b; }
constexpr int max_of(int a, int b) { return a > b ? a : b; }

/// Two values of a 16-bit type in one register, the first in the low half (PTX ISA, `cvt`).
__device__ inline uint32_t pack(bf16, float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
__device__ inline uint32_t pack(f16, float low, float high) {
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(bf16 value) { return __uint_as_float(uint32_t(value.bits) << 16); }
__device__ inline float to_float(f16 value) {
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value.bits));
  return wide;
}

/// Size of an element; 0 for an absent C.
template <class Element>
inline constexpr int size_of = sizeof(Element);
template <>
inline constexpr int size_of<None> = 0;

}  // namespace gemmill
