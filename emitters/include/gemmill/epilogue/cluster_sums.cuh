/// Exchanges partial sums through distributed shared memory, between the CTAs of a cluster that share the K of a tile.
#pragma once

#include <cute/arch/cluster_sm90.hpp>
#include <cutlass/arch/barrier.h>

#include <gemmill/types.cuh>

namespace gemmill {

/// The mbarriers of one consumer warpgroup.
template <int Splits>
struct ClusterSumsBarriers {
  /// Counts the bytes that all other CTAs send.
  uint64_t full;
  /// Counts one arrival for each warp of the same warpgroup of every other CTA, after it has read what this one sent.
  uint64_t empty;

  __device__ void init() {
    cutlass::arch::ClusterTransactionBarrier::init(&full, 1);
    cutlass::arch::ClusterBarrier::init(&empty, 4 * (Splits - 1));
  }
};

/// One consumer warpgroup's side of the exchange. CTA r of the cluster has sums of the whole tile over split r of K.
/// After the exchange it has the sums of share r of the columns over all of K, added in the order of the splits. A
/// warpgroup exchanges only with the same warpgroup of the other CTAs. Its threads hold the same elements as theirs.
///
/// The owner's buffer holds a share as its threads hold it: [source][vector of four registers][thread], without the
/// owner itself as a source. Every access is therefore contiguous.
///
/// Ordering (PTX ISA, "st.async" and "mbarrier"): the bytes that arrive complete a phase of `full` with a release at
/// cluster scope, which readers acquire. Readers release `empty` of every sender, which acquires it before it sends
/// again.
template <class Accumulators, int Splits>
struct ClusterSums {
  using Register = cute::remove_cvref_t<decltype(Accumulators::values[0][0])>;
  static constexpr int kBlocks = sizeof(Accumulators::values) / sizeof(Accumulators::values[0]);
  static constexpr int kRegisters = sizeof(Accumulators::values[0]) / sizeof(Register);
  /// Registers of a share in each stacked fragment, and vectors of four of them in all.
  static constexpr int kShare = kRegisters / Splits;
  static constexpr int kVectors = kBlocks * kShare / 4;
  static constexpr int kFirst = Accumulators::kFirst;
  /// Bytes that one source sends, and bytes of this warpgroup's buffer.
  static constexpr int kShareBytes = kVectors * 128 * 16;
  static constexpr int kBytes = (Splits - 1) * kShareBytes;
  static_assert(sizeof(Register) == 4 && kRegisters % (4 * Splits) == 0, "shares are moved 16 bytes at a time");

  /// The sums of one share of the columns.
  struct Share {
    Register values[kBlocks][kShare];
  };

  /// Shared-memory addresses of this warpgroup's buffer and barriers; they are the same in all CTAs.
  uint32_t buffer, full, empty;
  /// Parity of the next exchange.
  uint32_t phase = 0;

  __device__ ClusterSums(char* buffers, ClusterSumsBarriers<Splits>* barriers, int warpgroup)
      : buffer(cute::cast_smem_ptr_to_uint(buffers + warpgroup * kBytes)),
        full(cute::cast_smem_ptr_to_uint(&barriers[warpgroup].full)),
        empty(cute::cast_smem_ptr_to_uint(&barriers[warpgroup].empty)) {}

  /// Adds up this CTA's share. `more`: whether another tile follows. All warps of all CTAs of the cluster call it.
  __device__ Share add_up(Accumulators const& accumulators, bool more) {
    // Reads the rank at each call. If it were an invariant, the compiler would make a loop over tiles, with its MMAs,
    // for each rank.
    int const split = int(cute::block_rank_in_cluster());
    if (threadIdx.x % 128 == 0)
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(full), "r"(kBytes) : "memory");
    wait(empty, phase ^ 1);
    send(accumulators, split);
    wait(full, phase);
    Share const share = sum(accumulators, split);
    // The last exchange is not released, because no one waits for it: an arrival must not be in flight when a CTA
    // exits.
    if (more) release(split);
    phase ^= 1;
    return share;
  }

 private:
  /// Alternates between the receivers. CTAs that sent to one receiver after the other would all wait for the same one.
  __device__ void send(Accumulators const& accumulators, int split) const {
    uint32_t targets[Splits], barriers[Splits];
#pragma unroll
    for (int to = 0; to < Splits; ++to) {
      targets[to] = peer(buffer, to) + offset(split, to);
      barriers[to] = peer(full, to);
    }
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
#pragma unroll
      for (int to = 0; to < Splits; ++to) {
        Register const* const x = vector(accumulators, to, i);
        if (to != split)
          put(targets[to] + i * 128 * 16, barriers[to], x[kFirst], x[1 - kFirst], x[2 + kFirst], x[3 - kFirst]);
      }
    }
  }

  /// Adds the splits in order, this CTA's own among them.
  __device__ Share sum(Accumulators const& accumulators, int split) const {
    Share share;
    // One branch for each share, so that registers are indexed by constants.
#pragma unroll
    for (int rank = 0; rank < Splits; ++rank) {
      if (rank != split) continue;
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        Register* const sums = &share.values[0][0] + 4 * i;
#pragma unroll
        for (int from = 0; from < Splits; ++from) {
          Register values[4];
          if (from != rank) get(buffer + offset(from, rank) + i * 128 * 16, values);
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            Register const value = from == rank ? vector(accumulators, rank, i)[j] : values[j ^ kFirst];
            sums[j] = from == 0 ? value : sums[j] + value;
          }
        }
      }
    }
    return share;
  }

  /// Tells the senders that this warp has read its buffer.
  __device__ void release(int split) const {
    __syncwarp();
    int const lane = threadIdx.x % 32;
    if (lane < Splits && lane != split)
      asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(peer(empty, lane)) : "memory");
  }

  /// Vector i of a share, in the accumulators.
  __device__ static Register const* vector(Accumulators const& accumulators, int share, int i) {
    return &accumulators.values[4 * i / kShare][share * kShare + 4 * i % kShare];
  }

  /// Offset, in the buffer of `to`, of what `from` sends to this thread.
  __device__ static uint32_t offset(int from, int to) {
    return (from - (from > to)) * kShareBytes + threadIdx.x % 128 * 16;
  }

  /// The same address in another CTA.
  __device__ static uint32_t peer(uint32_t address, int rank) {
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
  }

  __device__ static void wait(uint32_t barrier, uint32_t parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "WAIT:\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra WAIT;\n"
        "}" ::"r"(barrier),
        "r"(parity)
        : "memory");
  }

  // Overloads by type, because the compiler would move casts of accumulators between the MMAs.
  __device__ static void put(uint32_t to, uint32_t barrier, float a, float b, float c, float d) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
                 "f"(a), "f"(b), "f"(c), "f"(d), "r"(barrier)
                 : "memory");
  }
  __device__ static void put(uint32_t to, uint32_t barrier, int32_t a, int32_t b, int32_t c, int32_t d) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
                 "r"(a), "r"(b), "r"(c), "r"(d), "r"(barrier)
                 : "memory");
  }
  __device__ static void get(uint32_t from, float (&x)[4]) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                 : "r"(from)
                 : "memory");
  }
  __device__ static void get(uint32_t from, int32_t (&x)[4]) {
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(from)
                 : "memory");
  }
};

/// No exchange: one CTA sums all of K.
template <class Accumulators>
struct ClusterSums<Accumulators, 1> {
  enum : int { kBytes = 0 };

  __device__ ClusterSums(char*, ClusterSumsBarriers<1>*, int) {}
};

}  // namespace gemmill
