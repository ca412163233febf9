/// Conversion of elements of any type to the types that kernels compute in (float, double, int32_t), and back.
#pragma once

#include <cuda/std/type_traits>

#include <gemmill/types.cuh>

namespace gemmill {

/// `Count` elements, aligned so that one access moves them all.
template <class Element, int Count>
struct alignas(sizeof(Element) * Count) Pack {
  Element elements[Count];
};

__device__ inline double native(double value) { return value; }
__device__ inline int32_t native(int32_t value) { return value; }
__device__ inline int32_t native(int8_t value) { return value; }
__device__ inline int32_t native(uint8_t value) { return value; }
__device__ inline float native(tf32 value) { return __uint_as_float(value.bits); }
template <class Element>
__device__ inline float native(Element value) {
  return to_float(value);
}

/// Converts an element to the type `Compute`.
template <class Compute, class Element>
__device__ inline Compute load_as(Element value) {
  return static_cast<Compute>(native(value));
}

__device__ inline float narrowed(float, float value) { return value; }
__device__ inline bf16 narrowed(bf16, float value) {
  bf16 narrow;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(value));
  return narrow;
}
__device__ inline f16 narrowed(f16, float value) {
  f16 narrow;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(value));
  return narrow;
}
/// 8-bit types saturate.
template <class Element>
__device__ inline Element narrowed(Element type, float value) {
  static_assert(sizeof(Element) == 1, "one element of a pair of bytes");
  auto const pair = pack(type, value, 0.0f);
  Element narrow;
  reinterpret_cast<uint8_t&>(narrow) = uint8_t(pair);
  return narrow;
}

/// Converts a computed value to an element type. Rounds to nearest, ties to even; integers and 8-bit types saturate.
template <class Element, class Compute>
__device__ inline Element store_as(Compute value) {
  constexpr bool kToInteger = cuda::std::is_integral_v<Element>;
  if constexpr (cuda::std::is_same_v<Element, Compute>) {
    return value;
  } else if constexpr (cuda::std::is_same_v<Element, double>) {
    return static_cast<double>(value);
  } else if constexpr (kToInteger && sizeof(Element) == 4) {
    if constexpr (cuda::std::is_same_v<Compute, double>) return __double2int_rn(value);
    return __float2int_rn(static_cast<float>(value));
  } else if constexpr (kToInteger && cuda::std::is_same_v<Compute, int32_t>) {
    constexpr int kLowest = Element(-1) < Element(0) ? -128 : 0;
    return Element(min(max(value, kLowest), kLowest + 255));
  } else {
    return narrowed(Element{}, static_cast<float>(value));
  }
}

}  // namespace gemmill
