/// The mainloops of the WGMMA kernel: A and B from shared memory; A from registers; what promoted sums walk.
#pragma once

#include <gemmill/kernel/wgmma/storage.cuh>

namespace gemmill {

/// A consumer warpgroup's ways through the stages of a tile. Functions, not an object that holds references, of which the
/// compiler makes other machine code.
template <class Traits>
struct WgmmaMainloop {
  using Storage = WgmmaStorage<Traits>;
  using Config = typename Traits::Config;
  using A = typename Traits::A;
  using Accumulator = typename Traits::Accumulator;
  using B = typename Traits::B;
  using Position = typename Traits::Position;
  using Ready = typename Traits::Ready;
  using StagePipeline = typename Traits::StagePipeline;
  using ThreadScales = typename Traits::ThreadScales;

  /// The stages as promoted sums walk them.
  struct Stages {
    StagePipeline& pipeline;
    Ready& ready;
    Position& at;
    StageRelease<StagePipeline> release;

    __device__ int index() const { return at.stage; }
    __device__ void wait() { WgmmaMainloop::wait(pipeline, ready, at); }
    __device__ void advance() { at.advance(); }
  };

  /// Promoted sums give stages back themselves.
  struct NoRelease {
    __device__ NoRelease(StagePipeline&, int, int) {}
  };
  using Release = cute::conditional_t<Config::kPromote, NoRelease, StageRelease<StagePipeline>>;

  /// Waits until a stage can be multiplied.
  __device__ static void wait(StagePipeline& pipeline, Ready& ready, Position at) {
    pipeline.wait_full(at);
    if constexpr (Traits::kTransposes) ready.wait(at);
  }

  /// What scales a warpgroup's part of a tile, which begins at row m of it and at column n of D.
  __device__ static ThreadScales scales(char const* shared, int m, int n) {
    if constexpr (Traits::kBlockScales) {
      return {shared + Storage::kOffsetScales, m, n};
    } else {
      return {};
    }
  }

  /// Multiplies A and B from shared memory.
  __device__ static void from_shared(Accumulator& accumulators, MatrixDescriptors<A> const& a,
                                     MatrixDescriptors<B> const& b, StagePipeline& pipeline, Ready& ready, Position& at,
                                     Release const& release, int k_tiles) {
    for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
      wait(pipeline, ready, at);
      accumulators.multiply(a, b, at.stage, k_tile == 0);
      // One batch of MMAs stays in flight; the one before it has read its stage.
      wgmma_wait<1>();
      if (k_tile > 0) release(at.previous());
      at.advance();
    }
  }

  /// Waits for the last MMAs of a tile, and gives their stage back.
  __device__ static void drain(Accumulator& accumulators, Release const& release, Position const& at, int k_tiles) {
    wgmma_wait<0>();
    accumulators.fence();
    if (k_tiles > 0) release(at.previous());
  }

  /// Multiplies a stage, A from a fragment: one set of them is read from shared memory while MMAs read the other.
  template <class OperandA, class Fragment>
  __device__ static void step(Accumulator& accumulators, OperandA const& a, Fragment& fragment, Fragment& before,
                              MatrixDescriptors<B> const& b, StagePipeline& pipeline, Ready& ready, Position& at,
                              Release const& release, bool first) {
    wait(pipeline, ready, at);
    a.load(fragment, at.stage);
    accumulators.multiply(fragment, b, at.stage, first);
    wgmma_wait<1>();
    before.pin();
    if (!first) release(at.previous());
    at.advance();
  }

  /// Takes steps, whose fragments alternate. No branch lies between MMAs in flight and the next: ptxas would serialise
  /// them. (With the step in here, kernels took 1 to 3% longer on an H200.)
  template <class Fragment, class Step>
  __device__ static void alternate(Fragment& even, Fragment& odd, int k_tiles, Step const& step) {
    int k_tile = 0;
    for (; k_tile + 1 < k_tiles; k_tile += 2) {
      step(even, odd, k_tile == 0);
      step(odd, even, false);
    }
    if (k_tile < k_tiles) step(even, odd, k_tile == 0);
  }

  /// A as a warpgroup loads it into registers, from its first row and its first k of a stage.
  __device__ static auto operand(char* shared, int first_row, [[maybe_unused]] int first_k) {
    if constexpr (Traits::kMixed) {
      return typename Traits::Narrow(shared + Storage::kOffsetA, shared + Storage::kOffsetScales, first_row, first_k);
    } else {
      return ColumnOperand<A, Traits::kBlocks, Config::kTileK>(shared + Storage::kOffsetA, first_row);
    }
  }
};

}  // namespace gemmill
