/// The sixteen named barriers of a CTA (PTX ISA, "barrier"). Barrier 0 is `__syncthreads`.
#pragma once

namespace gemmill::named_barrier {

/// Barrier of the first consumer warpgroup; warpgroup i has kWarpgroups + i.
inline constexpr int kWarpgroups = 1;
/// First of the barriers that release stages of block scales. There is one for each stage (rule `scaled-tile`).
inline constexpr int kScales = 4;
inline constexpr int kEnd = 16;

/// Waits until `threads` threads have arrived, this one included. Whole warps must call it.
__device__ inline void sync(int barrier, int threads) {
  asm volatile("barrier.cta.sync.aligned %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/// Arrives without waiting. Whole warps must call it.
__device__ inline void arrive(int barrier, int threads) {
  asm volatile("barrier.cta.arrive.aligned %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

}  // namespace gemmill::named_barrier
