/// Two-level accumulation: after every stage, the sums move from the tensor cores to f32 registers, with or without
/// scales.
///
/// Hopper's tensor cores keep about 13 bits of an fp8 sum, and truncate sums of other types to f32 for every 32 bytes of
/// K. Adding the sums of a stage in f32, rounded to nearest, keeps the precision along K (DeepSeek-V3 technical report,
/// 3.3.2).
#pragma once

#include <gemmill/copy/scales.cuh>
#include <gemmill/mma/wgmma.cuh>

namespace gemmill {

/// Sums of one consumer warpgroup: `Blocks` stacked 64 x N fragments. One batch of MMAs (`Atom`) computes all `Terms` of
/// one fragment, or of a part of its columns. While one warpgroup adds, the tensor cores work for the other.
template <class Atom, class LayoutA, class LayoutB, class Terms, class Scales, int Blocks, int TileN, int TileK>
struct TwoLevelAccumulators {
  static constexpr int kRegisters = TileN / 2;
  static constexpr int kParts = kRegisters / Atom::kRegisters;
  /// Which sum of a pair goes first when sums are moved as a vector. Vectors and the results of MMAs are aligned
  /// registers; without the swap, a sum would lie in the same register bank as the value that is added to it.
  static constexpr int kFirst = 1;
  static constexpr int kStageBytesA = Terms::kComponents * LayoutA::kBytes;
  static constexpr int kStageBytesB = Terms::kComponents * LayoutB::kBytes;
  static_assert(TileK % Atom::kK == 0, "tile K must be a multiple of the instruction's K");

  float values[Blocks][kRegisters];
  /// The result of one batch of MMAs.
  float partial[Atom::kRegisters];

  /// Waits for the current stage, unless `add` has, and issues the MMAs of its first part.
  template <class Stages>
  __device__ void begin(MatrixDescriptors<LayoutA> a, MatrixDescriptors<LayoutB> b, Stages stages, bool waited = false) {
    int const stage = stages.index();
    // Computed before the wait, so that nothing else delays the MMAs of a stage that has arrived.
    MatrixDescriptors<LayoutA> const a_stage = a.advanced(stage * kStageBytesA);
    MatrixDescriptors<LayoutB> const b_stage = b.advanced(stage * kStageBytesB);
    if (!(Stages::kWaitsAhead && waited)) stages.wait();
    issue(a_stage, b_stage, 0);
  }

  /// Multiplies `count` stages from the current one on. `Begun`: the caller has called `begin` if count > 0, so that
  /// the first MMAs overlap the work in between. Only the first `filled` blocks are multiplied; the sums of the others
  /// have no meaning.
  template <bool Begun, int Filled = Blocks, class Stages>
  __device__ void multiply(MatrixDescriptors<LayoutA> a, MatrixDescriptors<LayoutB> b, Stages stages, int count,
                           Scales scales, int filled) {
    if constexpr (Filled > 0) {
      if (filled < Filled) return multiply<Begun, Filled - 1>(a, b, stages, count, scales, filled);
    }
#pragma unroll
    for (auto& block : values)
#pragma unroll
      for (auto& value : block) value = 0;
    if constexpr (Filled == 0) {
      skip<Begun>(stages, count, scales);
    } else if constexpr (Begun) {
      // Each iteration issues the next stage's MMAs before it branches. (Unrolled, the loop is up to 3% slower.)
#pragma unroll 1
      for (int i = 1; i < count; ++i) {
        add<Filled>(a, b, stages, scales, true);
        begin(a, b, stages, true);
      }
      if (count > 0) add<Filled>(a, b, stages, scales, false);
    } else {
#pragma unroll 4
      for (int i = 0; i < count; ++i) {
        begin(a, b, stages, i > 0);
        add<Filled>(a, b, stages, scales, i + 1 < count);
      }
    }
  }

  /// Waits for the MMAs that were issued.
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
    for (int term = 0; term < Terms::kCount; ++term)
#pragma unroll
      for (int k = 0; k < TileK; k += Atom::kK)
        Atom::multiply(a.at(Terms::of_a(term) * LayoutA::kBytes + LayoutA::offset(block * 64, k)),
                       b.at(Terms::of_b(term) * LayoutB::kBytes + LayoutB::offset(n, k)), partial, term > 0 || k > 0);
    wgmma_commit();
  }

  /// Releases `count` stages without MMAs, but for those that the caller may have begun.
  template <bool Begun, class Stages>
  __device__ void skip(Stages stages, int count, Scales& scales) {
    if constexpr (Begun) wait();
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      int const stage = stages.index();
      stages.wait();
      scales.release(stage);
      stages.release(stage);
      stages.advance();
    }
  }

  /// Adds the current stage to the sums of the first `Filled` blocks. `begin` has issued its first part; this issues the
  /// others. If there is `more`, it may wait for the next stage.
  template <int Filled, class Stages>
  __device__ void add(MatrixDescriptors<LayoutA> a, MatrixDescriptors<LayoutB> b, Stages& stages, Scales& scales, bool more) {
    int const stage = stages.index();
#pragma unroll
    for (int part = 0; part < Filled * kParts; ++part) {
      int const block = part / kParts;
      int const n = part % kParts * (TileN / kParts);
      if (part > 0) issue(a.advanced(stage * kStageBytesA), b.advanced(stage * kStageBytesB), part);
      if (part == 0) scales.read(stage);
      if (Stages::kWaitsAhead && part == 0 && more) stages.wait_ahead();
      wait();
      if (part == 0) scales.release(stage);
      if (part == Filled * kParts - 1) stages.release(stage);
#pragma unroll
      for (int i = 0; i < Atom::kRegisters; ++i) {
        int const j = Scales::template ordered<Atom::kRegisters>(i);
        values[block][n / 2 + j] += scales(block, n / 2 + j) * partial[j];
      }
    }
    stages.advance();
  }
};

}  // namespace gemmill
