/// Operands and outputs of epilogue expressions in global memory.
#pragma once

#include <cuda/std/type_traits>

#include <gemmill/epilogue/math.cuh>

namespace gemmill {

/// A single value: the one at address `data`, or `value` from the host if `data` is null.
template <class Element, class Compute>
struct Scalar {
  Element const* data;
  Compute value;
};

/// One value for each row or column, or for each matrix of the batch if the extent is 1.
template <class Element>
struct Values {
  Element* data;
  int64_t batch_stride;

  __device__ Element* at(int index, int batch) const { return data + (batch * batch_stride + index); }
};

/// One value for each element.
template <class Element>
struct Matrix {
  Element* data;
  int64_t stride_m, stride_n, batch_stride;

  __device__ Element* at(int m, int n, int batch) const {
    return data + (batch * batch_stride + m * stride_m + n * stride_n);
  }
};

/// The type of a loaded element: double, int32_t (s32), or float, which holds every other element exactly.
template <class Element>
struct Loaded {
  using Type = float;
};
template <>
struct Loaded<double> {
  using Type = double;
};
template <>
struct Loaded<int32_t> {
  using Type = int32_t;
};
template <class Element>
using LoadedType = typename Loaded<Element>::Type;

/// Two loaded elements.
template <class Value>
struct Two {
  Value x, y;
};

template <class Element, class Bits>
__device__ float float_of(Bits bits) {
  using Word = cuda::std::conditional_t<sizeof(Element) == 1, uint8_t, uint16_t>;
  Word const word = Word(bits);
  return to_float(reinterpret_cast<Element const&>(word));
}

// Volatile, so that the compiler does not move these loads above the wait for the previous kernel.
template <class Element>
__device__ LoadedType<Element> load_element(Element const* at) {
  if constexpr (sizeof(Element) >= 4) {
    LoadedType<Element> value;
    if constexpr (cuda::std::is_same_v<Element, double>) {
      asm volatile("ld.global.nc.f64 %0, [%1];" : "=d"(value) : "l"(at));
    } else if constexpr (cuda::std::is_same_v<Element, int32_t>) {
      asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(value) : "l"(at));
    } else {
      asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(value) : "l"(at));
    }
    return value;
  } else {
    uint16_t bits;
    if constexpr (sizeof(Element) == 1) {
      asm volatile("ld.global.nc.u8 %0, [%1];" : "=h"(bits) : "l"(at));
    } else {
      asm volatile("ld.global.nc.b16 %0, [%1];" : "=h"(bits) : "l"(at));
    }
    return float_of<Element>(bits);
  }
}

/// Loads two elements, each zero if its flag is not set. `as_one` loads two adjacent elements in one access. It uses
/// predicates instead of branches, and is not volatile, so that many loads can be in flight. The addresses must
/// therefore depend on something volatile (see above).
__device__ inline Two<float> load_two(float const* first, float const* second, bool as_one, bool has_first,
                                      bool has_second) {
  Two<float> x;
  asm("{\n.reg .pred p, q, r;\nsetp.ne.s32 p, %4, 0;\nsetp.ne.s32 q, %5, 0;\nsetp.ne.s32 r, %6, 0;\n"
      "mov.f32 %0, 0f00000000;\nmov.f32 %1, 0f00000000;\n@p ld.global.nc.v2.f32 {%0, %1}, [%2];\n"
      "@q ld.global.nc.f32 %0, [%2];\n@r ld.global.nc.f32 %1, [%3];\n}"
      : "=f"(x.x), "=f"(x.y)
      : "l"(first), "l"(second), "r"(int(as_one)), "r"(int(has_first && !as_one)), "r"(int(has_second && !as_one)));
  return x;
}
__device__ inline Two<int32_t> load_two(int32_t const* first, int32_t const* second, bool as_one, bool has_first,
                                        bool has_second) {
  Two<float> const x = load_two(reinterpret_cast<float const*>(first), reinterpret_cast<float const*>(second), as_one,
                                has_first, has_second);
  return {__float_as_int(x.x), __float_as_int(x.y)};
}
__device__ inline Two<double> load_two(double const* first, double const* second, bool, bool has_first,
                                       bool has_second) {
  Two<double> x;
  asm("{\n.reg .pred q, r;\nsetp.ne.s32 q, %4, 0;\nsetp.ne.s32 r, %5, 0;\n"
      "mov.f64 %0, 0d0000000000000000;\nmov.f64 %1, 0d0000000000000000;\n"
      "@q ld.global.nc.f64 %0, [%2];\n@r ld.global.nc.f64 %1, [%3];\n}"
      : "=&d"(x.x), "=&d"(x.y)
      : "l"(first), "l"(second), "r"(int(has_first)), "r"(int(has_second)));
  return x;
}
template <class Element>
__device__ Two<float> load_two(Element const* first, Element const* second, bool as_one, bool has_first,
                               bool has_second) {
  if constexpr (sizeof(Element) == 1) {
    uint16_t x, y;
    asm("{\n.reg .pred q, r;\nsetp.ne.s32 q, %4, 0;\nsetp.ne.s32 r, %5, 0;\nmov.b16 %0, 0;\nmov.b16 %1, 0;\n"
        "@q ld.global.nc.u8 %0, [%2];\n@r ld.global.nc.u8 %1, [%3];\n}"
        : "=&h"(x), "=&h"(y)
        : "l"(first), "l"(second), "r"(int(has_first)), "r"(int(has_second)));
    return {float_of<Element>(x), float_of<Element>(y)};
  } else {
    uint32_t both;
    asm("{\n.reg .pred p, q, r;\n.reg .b16 x, y;\nsetp.ne.s32 p, %3, 0;\nsetp.ne.s32 q, %4, 0;\nsetp.ne.s32 r, %5, 0;\n"
        "mov.b16 x, 0;\nmov.b16 y, 0;\n@q ld.global.nc.b16 x, [%1];\n@r ld.global.nc.b16 y, [%2];\n"
        "mov.b32 %0, {x, y};\n@p ld.global.nc.b32 %0, [%1];\n}"
        : "=r"(both)
        : "l"(first), "l"(second), "r"(int(as_one)), "r"(int(has_first && !as_one)), "r"(int(has_second && !as_one)));
    return {float_of<Element>(both), float_of<Element>(both >> 16)};
  }
}

template <class Compute, class Element>
__device__ Compute load(Scalar<Element, Compute> const& x) {
  return x.data ? Compute(load_element(x.data)) : x.value;
}
template <class Compute, class Element>
__device__ Compute load(Values<Element const> const& x, int index, int batch) {
  return Compute(load_element(x.at(index, batch)));
}
template <class Compute, class Element>
__device__ Compute load(Matrix<Element const> const& x, int m, int n, int batch) {
  return Compute(load_element(x.at(m, n, batch)));
}

/// Whether two adjacent elements may be accessed as one.
template <class Element>
__device__ bool is_pair(Element const* at) {
  return reinterpret_cast<uintptr_t>(at) % (2 * sizeof(Element)) == 0;
}

/// Loads the elements of two columns; 0 from column `end` on. One access suffices if they are adjacent in memory.
template <class Compute, class Element>
__device__ void load_two(Values<Element const> const& x, int n0, int n1, int end, int batch, Compute& first,
                         Compute& second) {
  Element const* const at = x.at(n0, batch);
  auto const both = load_two(at, at + (n1 - n0), n1 == n0 + 1 && n1 < end && is_pair(at), n0 < end, n1 < end);
  first = Compute(both.x);
  second = Compute(both.y);
}
template <class Compute, class Element>
__device__ void load_two(Matrix<Element const> const& x, int m, int n0, int n1, int end, int batch, Compute& first,
                         Compute& second) {
  Element const* const at = x.at(m, n0, batch);
  bool const as_one = n1 == n0 + 1 && n1 < end && x.stride_n == 1 && is_pair(at);
  auto const both = load_two(at, at + (n1 - n0) * x.stride_n, as_one, n0 < end, n1 < end);
  first = Compute(both.x);
  second = Compute(both.y);
}

/// Brings the 32-byte sector of an element into L1.
template <class Element>
__device__ void touch(Element const* at) {
  uint32_t unused;
  if constexpr (sizeof(Element) >= 4) {
    asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(unused) : "l"(at));
  } else if constexpr (sizeof(Element) == 1) {
    asm volatile("ld.global.nc.u8 %0, [%1];" : "=r"(unused) : "l"(at));
  } else {
    asm volatile("{ .reg .b16 x; ld.global.nc.b16 x, [%1]; cvt.u32.u16 %0, x; }" : "=r"(unused) : "l"(at));
  }
}
template <class Element, class Compute>
__device__ void touch(Scalar<Element, Compute> const& x, int thread) {
  if (thread == 0 && x.data) touch(x.data);
}
/// The same for `count` elements from `index` on; each thread loads one sector.
template <class Element>
__device__ void touch(Values<Element const> const& x, int index, int count, int end, int batch, int thread) {
  constexpr int kSector = 32 / sizeof(Element);
  int const mine = index + min(thread * kSector, count - 1);
  if (thread * kSector < count + kSector && mine < end) touch(static_cast<Element const*>(x.at(mine, batch)));
}

__device__ inline void store_element(float* at, float value) { *at = value; }
template <class Element>
__device__ void store_element(Element* at, float value) {
  at->bits = uint16_t(pack(Element{}, value, 0.0f));
}
template <class Element, class Compute>
__device__ void store(Matrix<Element> const& x, int m, int n, int batch, Compute value) {
  store_element(x.at(m, n, batch), float(value));
}

/// Stores the elements of two columns that lie before `end`, in one access if they are adjacent in memory.
template <class Element, class Compute>
__device__ void store_two(Matrix<Element> const& x, int m, int n0, int n1, int end, int batch, Compute first,
                          Compute second) {
  Element* const at = x.at(m, n0, batch);
  if (n1 == n0 + 1 && n1 < end && x.stride_n == 1 && is_pair(at)) {
    if constexpr (sizeof(Element) == 4) {
      *reinterpret_cast<float2*>(at) = make_float2(float(first), float(second));
    } else {
      *reinterpret_cast<uint32_t*>(at) = pack(Element{}, float(first), float(second));
    }
  } else {
    if (n0 < end) store_element(at, float(first));
    if (n1 < end) store_element(at + (n1 - n0) * x.stride_n, float(second));
  }
}

/// The scale of a block whose largest magnitude is given, so that this becomes 448, the largest e4m3. ue8m0 is rounded
/// up to a power of two; it is 255, NaN, if the scale is not finite.
__device__ inline float scale_of(float, float largest) { return math::max(math::mul(largest, 1.0f / 448), 0x1p-40f); }
__device__ inline ue8m0 scale_of(ue8m0, float largest) {
  uint32_t const bits = __float_as_uint(scale_of(0.0f, largest));
  return {uint8_t(::min((bits + 0x7fffff) >> 23, 255u))};
}

/// How a reduction combines values.
enum class Reduce { Max, Min, Sum };

/// The neutral element of a reduction.
__device__ inline float identity_of(Reduce reduce) {
  return reduce == Reduce::Sum ? 0.0f : __int_as_float(reduce == Reduce::Max ? 0xff800000 : 0x7f800000);
}
__device__ inline float combine(Reduce reduce, float x, float y) {
  return reduce == Reduce::Max ? math::max(x, y) : reduce == Reduce::Min ? math::min(x, y) : x + y;
}

/// Combines a value with the one in memory, atomically. The bits of positive floats are ordered like integers, those of
/// negative floats in reverse. Maxima and minima do not depend on the order of calls; sums do, in their last bits.
__device__ inline void reduce_into(Reduce reduce, float* at, float value) {
  if (reduce == Reduce::Sum) {
    atomicAdd(at, value);
    return;
  }
  // Replaces -0 by 0, and NaN by the NaN of greatest magnitude, positive for maxima and negative for minima, which
  // wins.
  bool const largest = reduce == Reduce::Max;
  int const bits = value != value ? (largest ? 0x7fffffff : -1) : __float_as_int(value + 0.0f);
  auto* const as_signed = reinterpret_cast<int*>(at);
  auto* const as_unsigned = reinterpret_cast<unsigned*>(at);
  if (largest) {
    bits >= 0 ? atomicMax(as_signed, bits) : int(atomicMin(as_unsigned, unsigned(bits)));
  } else {
    bits >= 0 ? atomicMin(as_signed, bits) : int(atomicMax(as_unsigned, unsigned(bits)));
  }
}

}  // namespace gemmill
