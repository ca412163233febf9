/// Element-wise epilogues: what happens between an accumulator and an element of D.
#pragma once

#include <gemmill/kernel/direct_params.cuh>
#include <gemmill/kernel/params.cuh>

namespace gemmill {

/// D = alpha * acc + beta * C, computed in one type: float, double, or int32_t, in which whole alpha and beta are exact.
template <class Compute_>
struct Linear {
  using Compute = Compute_;
  Compute alpha;
  Compute beta;

  __device__ explicit Linear(GemmParams const& params)
      : alpha(reinterpret_cast<Compute const&>(params.alpha)), beta(reinterpret_cast<Compute const&>(params.beta)) {}
  __device__ explicit Linear(DirectParams const& params) : alpha(Compute(params.alpha)), beta(Compute(params.beta)) {}

  /// C is neither loaded nor read when this is false, so it may hold NaN or be unmapped.
  __device__ bool needs_c() const { return beta != Compute(0); }
  __device__ Compute operator()(Compute accumulator) const { return alpha * accumulator; }
  __device__ Compute operator()(Compute accumulator, Compute c) const { return alpha * accumulator + beta * c; }
  /// The same for one element of D, by its position.
  __device__ Compute operator()(Compute accumulator, Compute c, int, int, int) const {
    return alpha * accumulator + beta * c;
  }
};

using LinearEpilogue = Linear<float>;
using IntegerEpilogue = Linear<int32_t>;

/// The accumulator itself: a partial sum, stored in a workspace whose contiguous extent is whole units of 16 bytes.
template <class Compute_>
struct Raw {
  using Compute = Compute_;

  __device__ explicit Raw(GemmParams const&) {}

  __device__ Compute operator()(Compute accumulator, Compute = {}) const { return accumulator; }
};

}  // namespace gemmill
