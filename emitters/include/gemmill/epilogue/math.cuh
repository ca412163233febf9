/// The functions of epilogue expressions. In f32 they use fast hardware instructions where these are accurate to a few
/// ulps; in f64 they use CUDA's functions. A result that will be rounded to 16 bits, or quantised in blocks, may use a
/// shorter form such as `gelu<bf16>(x)`, whose error is small compared with that rounding.
/// library/epilogues/function_table.py has the error bounds of both. Multiplications and additions cost more than their
/// count suggests: they share register bandwidth and power with another warpgroup's MMAs.
#pragma once

#include <gemmill/types.cuh>

namespace gemmill::math {

// Arithmetic that the compiler leaves as it is. It would contract `x * y + z` to a fused multiply-add in some kernels
// and not in others, or fuse the other one of two products, so that kernels would differ in the last bits.
__device__ inline float mul(float x, float y) { return __fmul_rn(x, y); }
__device__ inline float add(float x, float y) { return __fadd_rn(x, y); }
__device__ inline float sub(float x, float y) { return __fsub_rn(x, y); }
__device__ inline float fma(float x, float y, float z) { return __fmaf_rn(x, y, z); }
__device__ inline double mul(double x, double y) { return __dmul_rn(x, y); }
__device__ inline double add(double x, double y) { return __dadd_rn(x, y); }
__device__ inline double sub(double x, double y) { return __dsub_rn(x, y); }
__device__ inline double fma(double x, double y, double z) { return __fma_rn(x, y, z); }
__device__ inline int32_t mul(int32_t x, int32_t y) { return x * y; }
__device__ inline int32_t add(int32_t x, int32_t y) { return x + y; }
__device__ inline int32_t sub(int32_t x, int32_t y) { return x - y; }
__device__ inline int32_t fma(int32_t x, int32_t y, int32_t z) { return x * y + z; }

/// NaN if either argument is NaN, as in PyTorch and NumPy (PTX ISA, "max.NaN").
__device__ inline float max(float x, float y) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(y));
  return result;
}
__device__ inline float min(float x, float y) {
  float result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(y));
  return result;
}
__device__ inline double max(double x, double y) { return x != x || x > y ? x : y; }
__device__ inline double min(double x, double y) { return x != x || x < y ? x : y; }
__device__ inline int32_t max(int32_t x, int32_t y) { return x > y ? x : y; }
__device__ inline int32_t min(int32_t x, int32_t y) { return x < y ? x : y; }
template <class T, class... More>
__device__ inline T max(T x, T y, T z, More... more) {
  return max(max(x, y), z, more...);
}
template <class T, class... More>
__device__ inline T min(T x, T y, T z, More... more) {
  return min(min(x, y), z, more...);
}

__device__ inline float div(float x, float y) {
  float result;
  asm("div.full.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(y));
  return result;
}
__device__ inline float reciprocal(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
__device__ inline float sqrt(float x) {
  float result;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
__device__ inline float rsqrt(float x) { return rsqrtf(x); }
/// The same for normal numbers, in one instruction.
__device__ inline float rsqrt_of_normal(float x) {
  float result;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
__device__ inline float exp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
inline constexpr float kLog2E = 1.4426950408889634f;
__device__ inline float exp(float x) { return exp2(x * kLog2E); }
__device__ inline float log(float x) { return logf(x); }
__device__ inline float erf(float x) { return erff(x); }
__device__ inline float tanh(float x) { return tanhf(x); }
__device__ inline float abs(float x) { return fabsf(x); }
__device__ inline float round(float x) { return rintf(x); }

__device__ inline double div(double x, double y) { return x / y; }
__device__ inline double reciprocal(double x) { return 1 / x; }
__device__ inline double sqrt(double x) { return ::sqrt(x); }
__device__ inline double rsqrt(double x) { return ::rsqrt(x); }
__device__ inline double exp(double x) { return ::exp(x); }
__device__ inline double log(double x) { return ::log(x); }
__device__ inline double erf(double x) { return ::erf(x); }
__device__ inline double tanh(double x) { return ::tanh(x); }
__device__ inline double abs(double x) { return ::fabs(x); }
__device__ inline double round(double x) { return ::rint(x); }

__device__ inline int32_t abs(int32_t x) { return x < 0 ? -x : x; }

template <class T>
__device__ inline T relu(T x) {
  return max(x, T(0));
}
template <class T>
__device__ inline T clamp(T x, T low, T high) {
  return min(max(x, low), high);
}
template <class T>
__device__ inline T where(bool condition, T x, T y) {
  return condition ? x : y;
}
template <class T>
__device__ inline T sigmoid(T x) {
  return reciprocal(add(T(1), exp(-x)));
}
__device__ inline float silu(float x) { return x * sigmoid(x); }
__device__ inline double silu(double x) { return x * sigmoid(x); }
/// A polynomial in y; coefficients from the highest power down.
template <class... Coefficients>
__device__ inline float polynomial(float y, float first, Coefficients... others) {
  float sum = first;
  ((sum = fmaf(sum, y, others)), ...);
  return sum;
}
__device__ inline double gelu(double x) { return 0.5 * x * add(1.0, ::erf(x * 0.70710678118654752)); }
/// max(x, 0) - |x| erfc(|x| / sqrt(2)) / 2, with erfc to 1.5e-7 (Abramowitz and Stegun, "Handbook of Mathematical
/// Functions", 7.1.26). It takes half as many instructions as erff.
__device__ inline float gelu(float x) {
  float const magnitude = fabsf(x);
  float const t = reciprocal(fma(0.3275911f * 0.70710678f, magnitude, 1.0f));
  float const series = t * polynomial(t, 1.061405429f, -1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f);
  return fma(-0.5f * magnitude * series, exp(-0.5f * x * x), max(x, 0.0f));
}
/// 0.5 x (1 + tanh(u)) = x sigmoid(2 u). The right-hand side loses no digits where tanh(u) is near -1.
__device__ inline double gelu_tanh(double x) {
  return x * sigmoid(2 * 0.79788456080286536 * fma(0.044715 * x * x, x, x));
}
__device__ inline float gelu_tanh(float x) {
  constexpr float kLinear = -2 * 0.79788456080286536 * 1.4426950408889634;
  return x * reciprocal(1 + exp2(x * fmaf(0.044715f * kLinear, x * x, kLinear)));
}

template <class Element>
__device__ inline float gelu(float x);
/// x P(x), with the normal distribution function P as 1 / (1 + 2^(x s)). Let y = x^2 + c and r = 1 / sqrt(y). Then s =
/// a + (b y + d + e r) r is an even function of x, so P(x) + P(-x) = 1. It grows as |x|, like the logarithm of P(-|x|)
/// over x. The coefficients minimise the error of x P(x), relative to the greater of its value and 2^-20: it is
/// 2^-11.6. Rounding y down keeps it finite for every finite x. If x is infinite, the result is NaN.
template <>
__device__ inline float gelu<gemmill::bf16>(float x) {
  float const y = __fmaf_rz(x, x, 6.90058951f);
  float const r = rsqrt_of_normal(y);
  float const s = fmaf(r, fmaf(r, -4.82557057f, fmaf(y, -0.677805019f, 2.66573566f)), -0.839269856f);
  return x * reciprocal(1 + exp2(x * s));
}
/// max(x, 0) - |x| P(-|x|), with log2 of P as a polynomial. It is fitted up to |x| = 6, where it is below -29, to an
/// error of 2^-15.7 in the same sense. Between 6 and 12 it falls below -95.
template <>
__device__ inline float gelu<gemmill::f16>(float x) {
  float const t = fminf(fabsf(x), 12.0f);
  float const p = polynomial(t, 2.76522715e-05f, -0.000683190941f, 0.00761087658f, -0.0522796884f, -0.459979713f,
                             -1.15072751f, -1.00002658f);
  return fmaf(-t, exp2(p), max(x, 0.0f));
}
template <class Element>
__device__ inline float tanh(float x);
/// Accurate to 2^-11 (PTX ISA, `tanh.approx.f32`).
template <>
__device__ inline float tanh<gemmill::bf16>(float x) {
  float result;
  asm("tanh.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
template <class Element>
__device__ inline float sigmoid(float x);
template <class Element>
__device__ inline float silu(float x);
/// (1 + tanh(x / 2)) / 2, accurate to 2^-12, and x times that: one special function in place of two.
template <>
__device__ inline float sigmoid<gemmill::e4m3>(float x) {
  return fmaf(0.5f, tanh<gemmill::bf16>(0.5f * x), 0.5f);
}
template <>
__device__ inline float silu<gemmill::e4m3>(float x) {
  float const half = 0.5f * x;
  return fmaf(half, tanh<gemmill::bf16>(half), half);
}

/// Conversions to a narrower type and back: to the nearest value, ties to even; 8-bit types saturate.
template <class T>
__device__ inline T f32(T x) {
  return T(float(x));
}
template <class T>
__device__ inline T bf16(T x) {
  return to_float(gemmill::bf16{uint16_t(pack(gemmill::bf16{}, float(x), 0.0f))});
}
template <class T>
__device__ inline T f16(T x) {
  return to_float(gemmill::f16{uint16_t(pack(gemmill::f16{}, float(x), 0.0f))});
}
template <class T>
__device__ inline T s8(T x) {
  return clamp(round(x), T(-128), T(127));
}
template <class T>
__device__ inline T u8(T x) {
  return clamp(round(x), T(0), T(255));
}
template <class T>
__device__ inline T e4m3(T x) {
  uint16_t packed;
  uint32_t halves;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(0.0f), "f"(float(x)));
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(packed));
  return to_float(gemmill::f16{uint16_t(halves)});
}
template <class T>
__device__ inline T e5m2(T x) {
  uint16_t packed;
  uint32_t halves;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(0.0f), "f"(float(x)));
  asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"(packed));
  return to_float(gemmill::f16{uint16_t(halves)});
}

}  // namespace gemmill::math
