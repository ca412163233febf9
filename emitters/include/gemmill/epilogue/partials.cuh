/// Passes partial sums through the workspace, from the CTA that computed them to the CTA that stores the tile.
#pragma once

#include <gemmill/kernel/params.cuh>
#include <gemmill/pipeline/named_barrier.cuh>
#include <gemmill/scheduler/work.cuh>

namespace gemmill {

/// One consumer warpgroup's side of the exchange. The workspace holds the accumulators of a cluster tile as the threads
/// hold them, so every access is contiguous. A warpgroup waits only for the same warpgroup of the same CTA of another
/// cluster.
///
/// Ordering (PTX ISA, "Memory Consistency Model"): the giver stores its sums, syncs at a barrier and releases the flag.
/// The taker acquires the flag, syncs at a barrier and loads the sums. In one launch, a flag has one writer and one
/// reader. The reader clears it for the next launch, which accesses nothing before this launch has ended.
template <class Accumulators, int Warpgroups>
struct PartialTiles {
  static constexpr int kWarpgroups = Warpgroups;
  static constexpr int kRegisters = sizeof(Accumulators::values) / 4;
  static constexpr int kFirst = Accumulators::kFirst;
  static constexpr int kWarpgroupBytes = kRegisters * 4 * 128;
  static constexpr int kTileBytes = kWarpgroupBytes * Warpgroups;

  PartialParams const& params;
  /// Index among the consumer warpgroups that compute a cluster tile.
  int warpgroup;
  /// The named barrier of this warpgroup.
  int barrier;

  /// Adds up this split's share of a tile (see SharedWork). Returns false if another CTA stores the tile.
  __device__ bool add_up(Accumulators& accumulators, SharedWork const& work, int partial_stride) const {
    constexpr int kBranches = SharedWork::kBranches;
    for (int step = 1; work.split % (kBranches * step) == 0 && work.split + step < work.splits; step *= kBranches)
      for (int i = step; i < kBranches * step && work.split + i < work.splits; i += step)
        take(accumulators, work.partial + i * partial_stride);
    if (work.split > 0) give(accumulators, work.partial);
    return work.split == 0;
  }

 private:
  /// Writes the accumulators to the workspace and sets the flag.
  __device__ void give(Accumulators const& accumulators, int tile) const {
    static_assert(kRegisters % 4 == 0, "accumulators are moved 16 bytes at a time");
    auto const* const registers = &accumulators.values[0][0];
    uint4* const target = at(tile);
#pragma unroll
    for (int i = 0; i < kRegisters / 4; ++i) {
      auto const* const x = registers + 4 * i;
      put(target + i * 128, x[kFirst], x[1 - kFirst], x[2 + kFirst], x[3 - kFirst]);
    }
    named_barrier::sync(barrier, 128);
    if (threadIdx.x % 128 == 0)
      asm volatile("st.release.gpu.global.u32 [%0], 1;" ::"l"(flag(tile)) : "memory");
  }

  /// Waits for the accumulators of a tile, and adds them.
  __device__ void take(Accumulators& accumulators, int tile) const {
    if (threadIdx.x % 128 == 0) {
      uint32_t value;
      do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(flag(tile)) : "memory");
      } while (value == 0);
      *flag(tile) = 0;
    }
    named_barrier::sync(barrier, 128);
    auto* const registers = &accumulators.values[0][0];
    uint4 const* const source = at(tile);
#pragma unroll
    for (int i = 0; i < kRegisters / 4; ++i) {
      auto* const x = registers + 4 * i;
      uint4 const values = __ldcg(source + i * 128);
      add(x[kFirst], values.x);
      add(x[1 - kFirst], values.y);
      add(x[2 + kFirst], values.z);
      add(x[3 - kFirst], values.w);
    }
  }

  __device__ uint4* at(int tile) const {
    return reinterpret_cast<uint4*>(params.partials + int64_t(tile) * kTileBytes + warpgroup * kWarpgroupBytes) +
           threadIdx.x % 128;
  }
  __device__ uint32_t* flag(int tile) const { return params.flags + (int64_t(tile) * Warpgroups + warpgroup); }

  __device__ static void put(uint4* to, float a, float b, float c, float d) {
    asm volatile("st.global.cg.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
  }
  __device__ static void put(uint4* to, int32_t a, int32_t b, int32_t c, int32_t d) {
    asm volatile("st.global.cg.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
  }
  __device__ static void add(float& sum, uint32_t value) { sum += __uint_as_float(value); }
  __device__ static void add(int32_t& sum, uint32_t value) { sum += int32_t(value); }
};

}  // namespace gemmill
