/// fp8 sums that move from the tensor cores to f32 registers after every stage, scaled or not.
///
/// Hopper's tensor cores keep 13 bits or so of fp8 sums; what leaves them every 128 products loses nothing along K
/// (DeepSeek-V3 technical report, 3.3.2).
#pragma once

#include <gemmill/copy/scales.cuh>
#include <gemmill/mma/wgmma.cuh>

namespace gemmill {

/// Sums of one consumer warpgroup: `Blocks` stacked 64 x N fragments, of which `Atom` multiplies one or a part at a time.
/// While one warpgroup adds what it multiplied, the tensor cores work for the other.
template <class Atom, class LayoutA, class LayoutB, class Scales, int Blocks, int TileN, int TileK>
struct TwoLevelAccumulators {
  static constexpr int kRegisters = TileN / 2;
  static constexpr int kParts = kRegisters / Atom::kRegisters;
  /// Of each pair of sums that are moved as a vector, which comes first. Vectors are aligned, as what MMAs leave is: a sum
  /// would lie in the same register bank as what is added to it.
  static constexpr int kFirst = 1;
  static_assert(TileK == 4 * Atom::kK, "a stage holds the K of four MMAs");

  float values[Blocks][kRegisters];
  /// What one batch of MMAs leaves.
  float partial[Atom::kRegisters];

  /// Issues the first part of the current stage.
  template <class Stages>
  __device__ void begin(MatrixDescriptors<LayoutA> a, MatrixDescriptors<LayoutB> b, Stages stages) {
    int const stage = stages.index();
    // Made before the wait: nothing but the wait stands between a stage's arrival and its MMAs.
    MatrixDescriptors<LayoutA> const a_stage = a.advanced(stage * LayoutA::kBytes);
    MatrixDescriptors<LayoutB> const b_stage = b.advanced(stage * LayoutB::kBytes);
    stages.wait();
    issue(a_stage, b_stage, 0);
  }

  /// Multiplies `count` stages from the current one on. `Begun`: where there are some, `begin` was called before, for MMAs
  /// that run beside what comes in between.
  template <bool Begun, class Stages>
  __device__ void multiply(MatrixDescriptors<LayoutA> a, MatrixDescriptors<LayoutB> b, Stages stages, int count,
                           Scales scales) {
#pragma unroll
    for (auto& block : values)
#pragma unroll
      for (auto& value : block) value = 0;
    if constexpr (Begun) {
      // The branch at a stage's end is behind the MMAs of the next. (Unrolled, the loop is up to 3% slower.)
#pragma unroll 1
      for (int i = 1; i < count; ++i) {
        add(a, b, stages, scales);
        begin(a, b, stages);
      }
      if (count > 0) add(a, b, stages, scales);
    } else {
#pragma unroll 4
      for (int i = 0; i < count; ++i) {
        begin(a, b, stages);
        add(a, b, stages, scales);
      }
    }
  }

  /// Waits for what was issued.
  __device__ void wait() {
    wgmma_wait<0>();
#pragma unroll
    for (float& value : partial) pin(value);
  }

 private:
  __device__ void issue(MatrixDescriptors<LayoutA> a, MatrixDescriptors<LayoutB> b, int part) {
    int const block = part / kParts;
    int const n = part % kParts * (TileN / kParts);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < TileK; k += Atom::kK)
      Atom::multiply(a.at(LayoutA::offset(block * 64, k)), b.at(LayoutB::offset(n, k)), partial, k > 0);
    wgmma_commit();
  }

  /// Adds up the current stage, whose first part is issued.
  template <class Stages>
  __device__ void add(MatrixDescriptors<LayoutA> a, MatrixDescriptors<LayoutB> b, Stages& stages, Scales& scales) {
    int const stage = stages.index();
#pragma unroll
    for (int part = 0; part < Blocks * kParts; ++part) {
      int const block = part / kParts;
      int const n = part % kParts * (TileN / kParts);
      if (part > 0) issue(a.advanced(stage * LayoutA::kBytes), b.advanced(stage * LayoutB::kBytes), part);
      if (part == 0) scales.read(stage);
      wait();
      if (part == 0) scales.release(stage);
      if (part == Blocks * kParts - 1) stages.release(stage);
#pragma unroll
      for (int j = 0; j < Atom::kRegisters; ++j)
        values[block][n / 2 + j] += scales(block, n / 2 + j) * partial[j];
    }
    stages.advance();
  }
};

}  // namespace gemmill
