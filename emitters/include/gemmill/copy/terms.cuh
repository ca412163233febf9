/// Terms of split f32: D is a sum of products, each of one component of A and one of B.
#pragma once

#include <gemmill/types.cuh>

namespace gemmill {

/// The terms of a config, the smallest first: the components of A and of B, 2 bits each. A stage holds all components of
/// its K of A and of B, one after another, as memory holds those of a matrix.
template <int Components, int Count, uint32_t OfA, uint32_t OfB>
struct Terms {
  static constexpr int kComponents = Components;
  static constexpr int kCount = Count;

  static constexpr int of_a(int term) { return OfA >> 2 * term & 3; }
  static constexpr int of_b(int term) { return OfB >> 2 * term & 3; }
};

/// The only term of operands that are not split.
using OneTerm = Terms<1, 1, 0, 0>;

}  // namespace gemmill
