/// The ring of stages between the TMA producer and the WGMMA consumers, across the CTAs of a cluster.
#pragma once

#include <cutlass/arch/barrier.h>

#include <gemmill/types.cuh>

namespace gemmill {

/// Position in a ring of `Stages`: a stage, and the parity of the lap.
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
  /// The stage before this one.
  __device__ int previous() const { return stage == 0 ? Stages - 1 : stage - 1; }
  __device__ void advance(int count) {
    int const laps = (stage + count) / Stages;
    stage = stage + count - laps * Stages;
    phase ^= laps & 1;
  }
};

/// A full and an empty mbarrier for each stage.
///
/// full: an arrival by this CTA's producer, `MoreArrivals` by others who fill the stage, and the bytes of A and B from
/// every CTA that multicasts here.
/// empty: one arrival for each consumer warp of every CTA that this CTA's producer writes to.
template <int Stages, int ClusterM, int ClusterN, int ConsumerWarps, int MoreArrivals = 0>
struct Pipeline {
  using Full = cutlass::arch::ClusterTransactionBarrier;
  using Empty = cutlass::arch::ClusterBarrier;
  /// CTAs in this CTA's row and column of the cluster, itself counted once.
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

  /// Producer: waits until every peer has emptied the stage.
  __device__ void wait_empty(RingPosition<Stages> at) { Empty::wait(&empty[at.stage], at.phase ^ 1); }

  /// Producer: waits until every peer has emptied the stage, and announces the bytes to come.
  __device__ void acquire(RingPosition<Stages> at, uint32_t bytes) {
    wait_empty(at);
    Full::arrive_and_expect_tx(&full[at.stage], bytes);
  }

  /// Consumer: waits until the stage is filled.
  __device__ void wait_full(RingPosition<Stages> at) { Full::wait(&full[at.stage], at.phase); }

  /// The CTA that a lane tells. Lanes below ClusterM take this CTA's column of the cluster, the next ones the rest of
  /// its row.
  __device__ static int peer(int lane, int rank) {
    int const m = rank % ClusterM;
    int const n = rank / ClusterM;
    int const other = lane - ClusterM;
    return lane < ClusterM ? lane + n * ClusterM : m + (other + (other >= n)) * ClusterM;
  }
};

/// Consumer, every lane of a warp: tells all peers that this warp has read a stage, with one instruction. What does not
/// depend on the stage is made once: a warp that worked it out at each would issue the next MMAs too late where stages are
/// small.
template <class Pipeline>
struct StageRelease {
  /// The first empty barrier of the CTA that this lane tells, if it tells one.
  uint32_t empty;
  /// Whether it does.
  int tells;

  __device__ StageRelease(Pipeline& pipeline, int lane, int rank)
      : empty(cute::cast_smem_ptr_to_uint(&pipeline.empty[0])) {
    // Worked out for each tile: kept from tile to tile, it would take a register that epilogues have not.
    asm volatile("" : "+r"(lane));
    tells = lane < Pipeline::kPeers;
    if constexpr (Pipeline::kPeers > 1)
      asm("mapa.shared::cluster.u32 %0, %1, %2;"
          : "=r"(empty)
          : "r"(empty), "r"(tells ? Pipeline::peer(lane, rank) : rank));
    // Where registers are scarce, they would be worked out anew at each stage; what comes from a shuffle cannot be.
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

/// The order in which pingpong's two consumer warpgroups enter their mainloops.
///
/// It keeps the tensor cores on one tile while the other is stored, and no warpgroup more than one lap behind the
/// producer: an mbarrier's parity tells only two laps apart.
struct PingpongOrder {
  uint64_t ready[2];

  __device__ void init() {
    for (uint64_t& barrier : ready) cutlass::arch::ClusterBarrier::init(&barrier, 4);
  }
  /// Waits for this warpgroup's turn. The phase starts at 1 for warpgroup 0, whose first turn is free, and at 0 for 1.
  __device__ void wait(int warpgroup, uint32_t phase) { cutlass::arch::ClusterBarrier::wait(&ready[warpgroup], phase); }
  /// Hands over to the other warpgroup; every warp calls it.
  __device__ void pass(int warpgroup, int lane) {
    if (lane == 0) cutlass::arch::ClusterBarrier::arrive(&ready[1 - warpgroup]);
  }
};

}  // namespace gemmill
