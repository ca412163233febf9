/// The ring of stages between the TMA producer and the WGMMA consumers, across the CTAs of a cluster.
#pragma once

#include <cutlass/arch/barrier.h>

#include <gemmill/types.cuh>

namespace gemmill {

/// A position in a ring of `Stages` stages: the stage, and the parity of the lap.
template <int Stages>
struct RingPosition {
  int stage = 0;
  uint32_t phase = 0;

  __device__ void advance() {
    if (++stage == Stages) {
      stage = 0;
      phase ^= 1;
    }
  }
  /// The same by a constant, without a division if it is at most a lap.
  template <int Count>
  __device__ void skip() {
    if constexpr (Count > Stages) return advance(Count);
    stage += Count;
    if (stage >= Stages) {
      stage -= Stages;
      phase ^= 1;
    }
  }
  /// The index of the stage before this one.
  __device__ int previous() const { return stage == 0 ? Stages - 1 : stage - 1; }
  __device__ void advance(int count) {
    int const laps = (stage + count) / Stages;
    stage = stage + count - laps * Stages;
    phase ^= laps & 1;
  }
};

/// A full and an empty mbarrier for each stage.
/// full: counts one arrival of this CTA's producer, `MoreArrivals` arrivals of other threads that fill the stage, and
/// the bytes of A and B from every CTA that multicasts to this one.
/// empty: counts one arrival of each consumer warp of every CTA that reads what this CTA's producer loads.
template <int Stages, int ClusterM, int ClusterN, int ConsumerWarps, int MoreArrivals = 0>
struct Pipeline {
  using Full = cutlass::arch::ClusterTransactionBarrier;
  using Empty = cutlass::arch::ClusterBarrier;
  /// The CTAs in this CTA's row and column of the cluster; this CTA counts once.
  static constexpr int kPeers = ClusterM + ClusterN - 1;

  uint64_t full[Stages];
  uint64_t empty[Stages];

  __device__ void init() {
#pragma unroll
    for (int stage = 0; stage < Stages; ++stage) {
      Full::init(&full[stage], 1 + MoreArrivals);
      Empty::init(&empty[stage], ConsumerWarps * kPeers);
    }
  }

  /// Producer: waits until every peer has released the stage.
  __device__ void wait_empty(RingPosition<Stages> at) { Empty::wait(&empty[at.stage], at.phase ^ 1); }

  /// Producer: waits until every peer has released the stage, and announces how many bytes the stage will receive.
  __device__ void acquire(RingPosition<Stages> at, uint32_t bytes) {
    wait_empty(at);
    Full::arrive_and_expect_tx(&full[at.stage], bytes);
  }

  /// Consumer: waits until the stage is full.
  __device__ void wait_full(RingPosition<Stages> at) { Full::wait(&full[at.stage], at.phase); }

  /// The rank of the CTA that lane `lane` signals; `rank` is this CTA's. Lanes below ClusterM signal the CTAs of this
  /// CTA's column of the cluster, the following lanes the other CTAs of its row.
  __device__ static int peer(int lane, int rank) {
    int const m = rank % ClusterM;
    int const n = rank / ClusterM;
    int const other = lane - ClusterM;
    return lane < ClusterM ? lane + n * ClusterM : m + (other + (other >= n)) * ClusterM;
  }
};

/// Consumer, called by every lane of a warp: tells all peers with one instruction that this warp has read a stage. The
/// constructor computes whatever does not depend on the stage. If a warp computed it for each stage, it would issue the
/// next MMAs too late where stages are small.
template <class Pipeline>
struct StageRelease {
  /// Shared-memory address of the first empty barrier of the CTA that this lane signals.
  uint32_t empty;
  /// Whether this lane signals a CTA.
  int tells;

  __device__ StageRelease(Pipeline& pipeline, int lane, int rank)
      : empty(cute::cast_smem_ptr_to_uint(&pipeline.empty[0])) {
    // Keeps the compiler from hoisting this out of the loop over tiles: it would hold a register that epilogues need.
    asm volatile("" : "+r"(lane));
    tells = lane < Pipeline::kPeers;
    if constexpr (Pipeline::kPeers > 1)
      asm("mapa.shared::cluster.u32 %0, %1, %2;"
          : "=r"(empty)
          : "r"(empty), "r"(tells ? Pipeline::peer(lane, rank) : rank));
    // With few registers free, the compiler would recompute both values at each stage. It cannot recompute the result
    // of a shuffle.
    asm volatile("" : "+r"(tells));
    if constexpr (Pipeline::kPeers > 1) empty = __shfl_sync(~0u, empty, lane);
  }

  __device__ void operator()(int stage) const {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %1, 0;\n@p mbarrier.arrive.shared::cluster.b64 _, [%0];\n}" ::"r"(
            empty + stage * int(sizeof(uint64_t))),
        "r"(tells)
        : "memory");
  }
};

/// The order in which the two consumer warpgroups of a pingpong kernel enter their mainloops.
/// While one warpgroup stores its tile, the tensor cores work on the tile of the other. The order also keeps each
/// warpgroup within one lap of the producer, because the parity of an mbarrier distinguishes only two laps.
struct PingpongOrder {
  uint64_t ready[2];

  __device__ void init() {
    for (uint64_t& barrier : ready) cutlass::arch::ClusterBarrier::init(&barrier, 4);
  }
  /// Waits for this warpgroup's turn. `phase` starts at 1 for warpgroup 0, whose first turn needs no wait, and at 0 for
  /// warpgroup 1.
  __device__ void wait(int warpgroup, uint32_t phase) { cutlass::arch::ClusterBarrier::wait(&ready[warpgroup], phase); }
  /// Gives the turn to the other warpgroup. Every warp calls it.
  __device__ void pass(int warpgroup, int lane) {
    if (lane == 0) cutlass::arch::ClusterBarrier::arrive(&ready[1 - warpgroup]);
  }
};

}  // namespace gemmill
