/// The mainloop of the sm_90a GEMM, reduced to its WGMMAs: an upper bound for the speed of a GEMM.
///
/// A CTA copies its stages of A and B to shared memory once. Its warpgroups then multiply them again and again, like a
/// GEMM whose loads cost nothing. The data determine how much power this draws, and therefore the clock.
#pragma once

#include <cute/arch/copy_sm90_tma.hpp>

#include <cuda/std/cstddef>

#include <gemmill/copy/layout.cuh>
#include <gemmill/fact.cuh>
#include <gemmill/mma/wgmma.cuh>
#include <gemmill/pipeline/dependent_launch.cuh>

namespace gemmill {

/// The kernel's only parameter.
struct PeakRateParams {
  /// A (stages, tile M, tile K) and B (stages, tile N, tile K), contiguous.
  char const *a, *b;
  /// The sum of each thread's accumulators of the last tile. Storing it keeps the compiler from removing the MMAs.
  void* sums;
  /// The number of tiles that a CTA computes, and of stages that it multiplies for each.
  int tiles, steps;
};

/// Values that the host computes too. The compiler rejects a kernel if the two differ (emitters/peak_rate.py).
struct PeakRateSpec {
  Fact facts[10];
};

template <class Config>
struct PeakRate {
  static constexpr int kThreads = 128 * Config::kConsumers;
  static constexpr int kWarpgroupM = Config::kTileM / Config::kConsumers;
  using A = StageLayout<typename Config::A, MajorIn::K, Config::kTileM, Config::kTileK>;
  using B = StageLayout<typename Config::B, MajorIn::K, Config::kTileN, Config::kTileK>;
  using Atom = typename Config::Atom;
  using Accumulator = Accumulators<Atom, A, B, kWarpgroupM / 64, Config::kTileK>;
  static constexpr int kOffsetB = Config::kStages * A::kBytes;
  static constexpr int kSharedBytes = kOffsetB + Config::kStages * B::kBytes;

  static constexpr PeakRateSpec spec() {
    return {fact("threads", kThreads),
            fact("shared_bytes", kSharedBytes),
            fact("tile_m", Config::kTileM),
            fact("tile_n", Config::kTileN),
            fact("params_bytes", sizeof(PeakRateParams)),
            fact("offset_a", offsetof(PeakRateParams, a)),
            fact("offset_b", offsetof(PeakRateParams, b)),
            fact("offset_sums", offsetof(PeakRateParams, sums)),
            fact("offset_tiles", offsetof(PeakRateParams, tiles)),
            fact("offset_steps", offsetof(PeakRateParams, steps))};
  }

  __device__ static void run(PeakRateParams const& params) {
    extern __shared__ __align__(1024) char shared[];
    wait_for_prerequisites();
    copy<A>(shared, params.a);
    copy<B>(shared + kOffsetB, params.b);
    cute::tma_store_fence();  // WGMMA reads through the asynchronous proxy
    __syncthreads();

    int const warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);
    MatrixDescriptors<A> const a(shared, A::offset(warpgroup * kWarpgroupM, 0));
    MatrixDescriptors<B> const b(shared, kOffsetB);
    Accumulator accumulators;
    accumulators.clear();
    // Each tile starts from zero. Sums that only grew would soon lose most bits of each product, and draw less power.
    int stage = 0, step = 0;
#pragma unroll 1
    for (int left = params.tiles * params.steps; left > 0; --left) {
      accumulators.multiply(a, b, stage, step == 0);
      wgmma_wait<1>();
      stage = stage + 1 == Config::kStages ? 0 : stage + 1;
      step = step + 1 == params.steps ? 0 : step + 1;
    }
    wgmma_wait<0>();
    accumulators.fence();

    typename Atom::Register sum = 0;
#pragma unroll
    for (auto& block : accumulators.values)
#pragma unroll
      for (auto value : block) sum += value;
    static_cast<typename Atom::Register*>(params.sums)[blockIdx.x * kThreads + threadIdx.x] = sum;
  }

 private:
  /// Copies all stages of an operand to the layout that WGMMA reads, 16 bytes at a time.
  template <class Layout>
  __device__ static void copy(char* stages, char const* matrix) {
    constexpr int kRowChunks = Config::kTileK * sizeof(typename Layout::Element) / 16;
    constexpr int kChunks = Layout::kBytes / 16;
    for (int chunk = threadIdx.x; chunk < Config::kStages * kChunks; chunk += kThreads) {
      int const row = chunk % kChunks / kRowChunks;
      int const k = chunk % kRowChunks * 16 / int(sizeof(typename Layout::Element));
      *reinterpret_cast<uint4*>(stages + chunk / kChunks * Layout::kBytes + Layout::at(row, k)) =
          reinterpret_cast<uint4 const*>(matrix)[chunk];
    }
  }
};

}  // namespace gemmill
