/// Element types, enumerations and small numeric helpers that all headers share.
#pragma once

#include <cute/arch/copy_sm90_tma.hpp>

namespace gemmill {

/// Element types that C++ lacks, held as raw bits. WGMMA and TMA interpret the bits; each conversion below is one or a
/// few PTX instructions.
struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};
struct tf32 {
  uint32_t bits;
};
struct e4m3 {
  uint8_t bits;
};
struct e5m2 {
  uint8_t bits;
};
/// An exponent-only scale: 2^(bits - 127). 255 is NaN.
struct ue8m0 {
  uint8_t bits;
};
/// Two signed (s4) or unsigned (u4) 4-bit integers in one byte, the element of even index in the low half.
struct s4 {
  uint8_t bits;
};
struct u4 {
  uint8_t bits;
};
/// Two 4-bit floats in one byte: 0, 0.5, 1, 1.5, 2, 3, 4, 6, and the negative ones. Their order is that of fragments
/// (mma/upconvert.cuh).
struct e2m1 {
  uint8_t bits;
};

/// Which extent of an input is contiguous: K, or the other one (M of A, N of B). ANY: neither; the kernel uses the
/// strides of both.
enum class MajorIn { K, MN, ANY };
/// Which extent of C or D is contiguous. ANY: neither; the kernel uses the strides of both.
enum class MajorOut { N, M, ANY };
/// The extent along which consecutive tiles lie.
enum class Raster { M, N };
/// Cooperative: the consumer warpgroups share one tile. Pingpong: each consumer warpgroup has its own tile.
enum class Schedule { Cooperative, Pingpong };

/// The element type of a C that is absent.
struct None {};

constexpr int ceil_div(int value, int divisor) { return (value + divisor - 1) / divisor; }
constexpr int align_up(int value, int multiple) { return ceil_div(value, multiple) * multiple; }
constexpr int min_of(int a, int b) { return a < b ? a : b; }
constexpr int max_of(int a, int b) { return a > b ? a : b; }

/// Packs two values into a type of at most 16 bits, the first in the low half. Rounds to nearest, ties to even; 8-bit
/// types saturate (PTX ISA, `cvt`). The first argument only selects the type.
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

__device__ inline uint16_t pack(e4m3, float low, float high) {
  uint16_t packed;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(high), "f"(low));
  return packed;
}
__device__ inline uint16_t pack(e5m2, float low, float high) {
  uint16_t packed;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(high), "f"(low));
  return packed;
}
__device__ inline uint16_t pack(int8_t, float low, float high) {
  int32_t values[2];
  asm("cvt.rni.sat.s8.f32 %0, %1;" : "=r"(values[0]) : "f"(low));
  asm("cvt.rni.sat.s8.f32 %0, %1;" : "=r"(values[1]) : "f"(high));
  return uint16_t(values[0] & 0xff | values[1] << 8);
}
__device__ inline uint16_t pack(uint8_t, float low, float high) {
  uint32_t values[2];
  asm("cvt.rni.sat.u8.f32 %0, %1;" : "=r"(values[0]) : "f"(low));
  asm("cvt.rni.sat.u8.f32 %0, %1;" : "=r"(values[1]) : "f"(high));
  return uint16_t(values[0] & 0xff | values[1] << 8);
}

__device__ inline float to_float(int32_t value) { return __int2float_rn(value); }
__device__ inline float to_float(int8_t value) { return float(value); }
__device__ inline float to_float(uint8_t value) { return float(value); }
__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(bf16 value) { return __uint_as_float(uint32_t(value.bits) << 16); }
__device__ inline float to_float(f16 value) {
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value.bits));
  return wide;
}
__device__ inline float to_float(e4m3 value) {
  uint32_t pair;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(uint16_t(value.bits)));
  return to_float(f16{uint16_t(pair)});
}
__device__ inline float to_float(e5m2 value) { return to_float(f16{uint16_t(value.bits << 8)}); }
__device__ inline float to_float(ue8m0 value) {  // a shift of the exponent, except for 0 (2^-127, a subnormal) and NaN
  return __uint_as_float(value.bits == 0 ? 1u << 22 : value.bits == 255 ? 0x7fffffffu : uint32_t(value.bits) << 23);
}

/// Converts a value to the type in which an epilogue computes; the first argument selects that type. int32_t to int32_t
/// is exact.
template <class Element>
__device__ inline float to_compute(float, Element value) {
  return to_float(value);
}
__device__ inline int32_t to_compute(int32_t, int32_t value) { return value; }

/// Hides from the compiler how an address or offset was computed. The compiler then keeps it in a register and folds
/// constants that are added to it into the offsets of instructions, instead of recomputing each sum.
__device__ inline uint32_t opaque(uint32_t address) {
  asm("" : "+r"(address));
  return address;
}
__device__ inline int64_t opaque(int64_t offset) {
  asm("" : "+l"(offset));
  return offset;
}

/// Bytes of an element; 0 for an absent C.
template <class Element>
inline constexpr int size_of = sizeof(Element);
template <>
inline constexpr int size_of<None> = 0;

/// Bits of an element in memory.
template <class Element>
inline constexpr int bits_of = 8 * sizeof(Element);
template <>
inline constexpr int bits_of<s4> = 4;
template <>
inline constexpr int bits_of<u4> = 4;
template <>
inline constexpr int bits_of<e2m1> = 4;

}  // namespace gemmill
