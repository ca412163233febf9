/// The sixteen named barriers of a CTA (PTX ISA, "barrier"). 0 is `__syncthreads`.
#pragma once

namespace gemmill::named_barrier {

/// The first consumer warpgroup's; each has its own.
inline constexpr int kWarpgroups = 1;
/// The first of those by which stages of block scales are released; there are as many as stages (rule `block-scales`).
inline constexpr int kScales = 4;
inline constexpr int kEnd = 16;

/// Waits until `threads` have arrived, whole warps, this one among them.
__device__ inline void sync(int barrier, int threads) {
  asm volatile("barrier.cta.sync.aligned %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/// Arrives without waiting.
__device__ inline void arrive(int barrier, int threads) {
  asm volatile("barrier.cta.arrive.aligned %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

}  // namespace gemmill::named_barrier
