/// Stream-K (Osama et al., "Stream-K", PPoPP 2023), with clusters that advance along K together. All clusters multiply
/// about as many K tiles.
#pragma once

#include <gemmill/kernel/params.cuh>
#include <gemmill/scheduler/work.cuh>

namespace gemmill {

/// Clusters share the tiles that would form a partial last wave. These tiles come first; full waves of whole tiles
/// follow. If sharing would save less than it costs, no tile is shared.
///
/// The paper lays the K tiles of the shared tiles end to end and cuts them into equal shares. Clusters are then at
/// different places along K and share little in L2: a step took half as long again. Here each shared tile has an owner.
/// All owners begin at the same k. The other clusters, the helpers, multiply the rest of K:
/// * With at least twice as many clusters as shared tiles, the K of each shared tile is cut into equal splits.
/// * With fewer clusters, each helper multiplies the end of K of several tiles, one after the other. Their number and
///   the cut are such that owners and helpers finish together.
///
/// Handing over the sums of a tile counts as multiplying `ExchangeSteps` K tiles.
///
/// Share s owns tile s, if there is such a tile. Clusters of lower index have higher shares. A cluster therefore waits
/// only for work that clusters of lower index do first, so no wait is circular, however few clusters are resident.
template <class Order, int TileK, int ExchangeSteps>
struct StreamScheduler : SchedulerTraits<BatchMode::Strided, true> {
  using Params = PartialParams;
  static constexpr int kSplits = 1;

  Order order;
  int k_extent;
  int rank;
  /// Shared output tiles of the whole batch. They come first.
  int shared;
  /// How many shares of such tiles this cluster multiplies; the first K tile of each, and the number of its K tiles.
  int segments, begin, length;
  /// The output tile that unit 0 would have if it were a whole tile, like the units after the segments.
  int origin;
  int total;

  __device__ StreamScheduler(Params const& params, int rank_)
      : order(params.m, params.n), k_extent(ceil_div(params.k, TileK)), rank(rank_) {
    int const tiles = order.count() * params.batch;
    shared = tiles % clusters();
    segments = begin = length = 0;
    if (shared > 0) share_out();
    origin = shared + cluster() - segments * clusters();
    total = segments + ceil_div(tiles - shared - cluster(), clusters());
  }

  __device__ static int first() { return 0; }
  __device__ static int stride() { return 1; }
  __device__ int partial_stride() const { return shared; }
  __device__ int k_tiles(int index) const { return index < segments ? length : k_extent; }

  __device__ SharedWork work(int index) {
    SharedWork work;
    int tile = origin + index * clusters();
    work.k_tile = 0;
    work.k_tiles = k_tiles(index);
    work.split = 0;
    work.splits = 1;
    if (index < segments) {
      work.split = share() / shared;
      work.splits = splits();
      work.k_tile = begin;
      tile = share() - work.split * shared + index * (clusters() < 2 * shared ? clusters() - shared : shared);
      work.partial = tile + (work.split - 1) * shared;
    }
    work.batch = work.batch_d = Order::quotient(tile, order.count());
    auto const [m, n] = order.origin(tile - work.batch * order.count(), rank);
    work.m = m;
    work.n = n;
    return work;
  }

 private:
  __device__ static int cluster() { return blockIdx.x / Order::kClusterSize; }
  /// Reads the grid's size at each call. Without the asm statement, ptxas spills the number instead of reading it
  /// again.
  __device__ static int clusters() {
    int blocks;
    asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(blocks));
    return blocks / Order::kClusterSize;
  }
  __device__ static int share() { return clusters() - 1 - cluster(); }
  /// The number of splits of each shared tile.
  __device__ int splits() const { return max(clusters() / shared, 2); }

  __device__ void share_out() {
    int const helpers = clusters() - shared;
    int owned = ceil_div(k_extent, splits());
    if (helpers < shared) {
      int const each = ceil_div(shared, helpers);
      owned = min(ceil_div((k_extent + ExchangeSteps) * each, each + 1), k_extent);
    }
    if (k_extent - owned < ExchangeSteps) {
      shared = 0;
      return;
    }
    int const split = share() / shared;
    if (split >= splits()) return;
    segments = split == 0 || helpers >= shared ? 1 : ceil_div(2 * shared - share(), helpers);
    int const helped = ceil_div(k_extent - owned, splits() - 1);
    begin = split == 0 ? 0 : owned + (split - 1) * helped;
    length = split == 0 ? owned : max(min(k_extent - begin, helped), 0);
  }
};

}  // namespace gemmill
