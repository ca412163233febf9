/// Element-wise epilogues: what happens between an accumulator and an element of D.
#pragma once

#include <gemmill/kernel/params.cuh>

namespace gemmill {

/// D = alpha * acc + beta * C.
struct LinearEpilogue {
  float alpha;
  float beta;

  __device__ explicit LinearEpilogue(GemmParams const& params) : alpha(params.alpha), beta(params.beta) {}

  /// C is neither loaded nor read when this is false, so it may hold NaN or be unmapped.
  __device__ bool needs_c() const { return beta != 0.0f; }
  __device__ float operator()(float accumulator) const { return alpha * accumulator; }
  __device__ float operator()(float accumulator, float c) const { return alpha * accumulator + beta * c; }
};

}  // namespace gemmill
