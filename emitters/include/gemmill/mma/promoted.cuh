/// fp8 sums that move from the tensor cores to f32 registers after every stage, scaled or not.
///
/// Hopper's tensor cores keep 14 bits or so of fp8 sums; what leaves them every 128 products loses nothing along K
/// (DeepSeek-V3 technical report, 3.3.2).
#pragma once

#include <gemmill/copy/scales.cuh>
#include <gemmill/mma/wgmma.cuh>

namespace gemmill {

/// Sums of one consumer warpgroup: `Blocks` stacked 64 x N fragments, of which `Atom` multiplies one or a part at a time.
/// While one warpgroup adds what it multiplied, the tensor cores work for the other.
template <class Atom, class LayoutA, class LayoutB, class Scales, int Blocks, int TileN, int TileK>
struct PromotedAccumulators {
  static constexpr int kRegisters = TileN / 2;
  static constexpr int kParts = kRegisters / Atom::kRegisters;
  static_assert(TileK == 4 * Atom::kK, "a stage holds the K of four MMAs");

  float values[Blocks][kRegisters];

  /// Multiplies `count` stages from the current one on.
  template <class Stages>
  __device__ void multiply(MatrixDescriptors<LayoutA> a, MatrixDescriptors<LayoutB> b, Stages stages, int count,
                           Scales scales) {
#pragma unroll
    for (auto& block : values)
#pragma unroll
      for (auto& value : block) value = 0;
#pragma unroll 4
    for (int i = 0; i < count; ++i) {
      int const stage = stages.index();
      // Made before the wait: nothing but the wait stands between a stage's arrival and its MMAs.
      MatrixDescriptors<LayoutA> const a_stage = a.advanced(stage * LayoutA::kBytes);
      MatrixDescriptors<LayoutB> const b_stage = b.advanced(stage * LayoutB::kBytes);
      stages.wait();
#pragma unroll
      for (int part = 0; part < Blocks * kParts; ++part) {
        int const block = part / kParts;
        int const n = part % kParts * (TileN / kParts);
        float partial[Atom::kRegisters];
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < TileK; k += Atom::kK)
          Atom::multiply(a_stage.at(LayoutA::offset(block * 64, k)),
                         b_stage.at(LayoutB::offset(n, k)), partial, k > 0);
        wgmma_commit();
        if (part == 0) scales.read(stage);
        wgmma_wait<0>();
#pragma unroll
        for (float& value : partial) pin(value);
        if (part == 0) scales.release(stage);
        if (part == Blocks * kParts - 1) stages.release(stage);
#pragma unroll
        for (int j = 0; j < Atom::kRegisters; ++j)
          values[block][n / 2 + j] += scales(block, n / 2 + j) * partial[j];
      }
      stages.advance();
    }
  }
};

}  // namespace gemmill
