/// Tiles of groups that the producer finds and hands to the consumers through shared memory.
#pragma once

#include <gemmill/copy/shared.cuh>
#include <gemmill/pipeline/pipeline.cuh>
#include <gemmill/scheduler/groups.cuh>

namespace gemmill {

/// A ring of tiles of groups. Consumers that searched the groups themselves would do so between two tiles, while the
/// tensor cores are idle, and the state of the search would take registers from their sums.
///
/// One lane of each warp reads a tile, because racecheck does not follow a lane that arrives for its whole warp.
struct HandedTiles {
  static constexpr int kTiles = 4;
  using Barrier = cutlass::arch::ClusterBarrier;

  uint64_t full[kTiles], empty[kTiles];
  /// Of each tile: its origin; the end of its group; twice the index of the group, and 1 more if CTAs are beside each
  /// other.
  int2 tiles[kTiles][2];

  /// `readers`: the consumer warps that take each tile.
  __device__ void init(int readers) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      Barrier::init(&full[i], 1);
      Barrier::init(&empty[i], readers);
    }
  }

  /// Called by one thread of the producer for the CTA's tiles, in order; `count` is the number of those before.
  __device__ void hand(GroupWork const& work, unsigned count) {
    int const at = count % kTiles;
    Barrier::wait(&empty[at], count / kTiles % 2 ^ 1);
    store_pair(&tiles[at][0], work.m, work.n);
    store_pair(&tiles[at][1], work.end, work.batch * 2 + work.beside);
    Barrier::arrive(&full[at]);
  }

  /// Called by a consumer warp for each of its tiles. `Masked` and `k_tiles`: as for GroupScheduler.
  template <bool Masked>
  __device__ GroupWork take(unsigned count, int k_tiles) {
    int const at = count % kTiles;
    Barrier::wait(&full[at], count / kTiles % 2);
    int2 origin{}, rest{};
    if (threadIdx.x % 32 == 0) {
      origin = load_shared<int2>(shared_address(&tiles[at][0]));
      rest = load_shared<int2>(shared_address(&tiles[at][1]));
      Barrier::arrive(&empty[at]);
    }
    int const m = __shfl_sync(~0u, origin.x, 0), n = __shfl_sync(~0u, origin.y, 0), end = __shfl_sync(~0u, rest.x, 0);
    // All lanes have the same value. A reduction puts it into a uniform register, which leaves one more to the sums.
    int const group = __reduce_max_sync(~0u, rest.y);
    return {{m, n, group / 2, Masked ? group / 2 : 0, 0, k_tiles}, end, group % 2 != 0};
  }

 private:
  __device__ static void store_pair(int2* target, int first, int second) {
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(shared_address(target)), "r"(first), "r"(second) : "memory");
  }
};

}  // namespace gemmill
