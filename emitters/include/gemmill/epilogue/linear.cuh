/// The linear epilogue, and the interface of all epilogues.
///
/// `Params`: what the host passes. `Compute`: the type of the arithmetic. `needs_c()`: whether C must be loaded. The
/// call operator takes a sum, the element of C where it is needed and, for an expression, its place, and returns the
/// element of D. An expression also writes the other outputs of an epilogue, so the place must lie inside D and each
/// place must be visited once.
#pragma once

#include <gemmill/epilogue/math.cuh>
#include <gemmill/kernel/direct_params.cuh>
#include <gemmill/types.cuh>

namespace gemmill {

/// A matrix beside C and D that an epilogue reads or writes by TMA.
template <class Element_, MajorOut Major>
struct Format {
  using Element = Element_;
  static constexpr MajorOut kMajor = Major;
};
template <class... All>
struct Formats {
  static constexpr int kCount = sizeof...(All);
};
/// The lists of these matrices, which every epilogue declares.
template <class Inputs_, class Outputs_>
struct StagedMatrices {
  using Inputs = Inputs_;
  using Outputs = Outputs_;
};
using NoMatrices = StagedMatrices<Formats<>, Formats<>>;

/// D = alpha * acc + beta * C, computed in one type: float, double or int32_t. In int32_t, whole alpha and beta are
/// exact. The product with beta is fused; left to the compiler, kernels would differ in which product is.
template <class Compute_>
struct Linear : NoMatrices {
  using Compute = Compute_;
  struct Params {
    Compute alpha, beta;
  };
  static constexpr bool kIsExpression = false;
  static constexpr bool kGated = false, kGatesHalves = false;
  static constexpr int kGateColumns = 0, kGateRows = 0, kScaledColumns = 0;
  static constexpr bool kIsPartial = false;

  Compute alpha;
  Compute beta;

  __device__ explicit Linear(Params const& params) : alpha(params.alpha), beta(params.beta) {}
  __device__ explicit Linear(DirectParams const& params) : alpha(Compute(params.alpha)), beta(Compute(params.beta)) {}

  /// If false, C is neither loaded nor read, so it may hold NaN or be unmapped.
  __device__ bool needs_c() const { return beta != Compute(0); }
  __device__ Compute operator()(Compute accumulator) const { return math::mul(alpha, accumulator); }
  __device__ Compute operator()(Compute accumulator, Compute c) const { return math::fma(beta, c, (*this)(accumulator)); }
};

using LinearEpilogue = Linear<float>;
using IntegerEpilogue = Linear<int32_t>;

/// Returns the accumulator: a partial sum, which goes to a workspace whose contiguous extent is padded to 16 bytes. The
/// parameters are those of the epilogue that the second kernel applies.
template <class Compute_, class Epilogue>
struct Raw : NoMatrices {
  using Compute = Compute_;
  using Params = typename Epilogue::Params;
  static constexpr bool kIsExpression = false;
  static constexpr bool kGated = false, kGatesHalves = false;
  static constexpr int kGateColumns = 0, kGateRows = 0, kScaledColumns = 0;
  static constexpr bool kIsPartial = true;

  __device__ explicit Raw(Params const&) {}

  __device__ Compute operator()(Compute accumulator, Compute = {}) const { return accumulator; }
};

}  // namespace gemmill
