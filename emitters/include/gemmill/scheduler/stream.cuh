/// Stream-K (Osama et al., "Stream-K", PPoPP 2023), with CTAs abreast: every cluster multiplies about as many K tiles.
#pragma once

#include <gemmill/kernel/params.cuh>
#include <gemmill/scheduler/work.cuh>

namespace gemmill {

/// The tiles that would leave clusters idle in the last wave are shared, and come first; whole waves of whole tiles follow.
/// Where that would save less than it costs, nothing is shared.
///
/// The paper lays the K tiles of shared tiles end to end and cuts them into equal shares. Clusters then stand at
/// different places along K and have little in common in L2: a step took half as long again. Here each shared tile has an
/// owner, and all owners begin at the same place; so do the other clusters, which multiply the rest of K:
/// * where there are twice as many clusters as shared tiles, or more, the K of each tile is cut into equal splits;
/// * otherwise each of the others, the helpers, multiplies the last of K for as many tiles, one after the other, as lets
///   owners and helpers end together.
///
/// To hand over the sums of a tile counts as much as to multiply so many K tiles, ``ExchangeSteps``.
///
/// Share s is the owner of tile s, where there is such a tile. Higher shares are of lower clusters: a cluster waits only
/// for what clusters of lower index do first of all. So no wait is circular, however few clusters are resident.
template <class Order, int TileK, int ExchangeSteps>
struct StreamScheduler : SchedulerTraits<BatchMode::Strided, true> {
  using Params = PartialParams;
  static constexpr int kSplits = 1;

  Order order;
  int k_extent;
  int rank;
  /// Output tiles of the whole batch that are shared; they come first.
  int shared;
  /// Shares of such tiles that this cluster multiplies, and the K tiles of each: the first one, and how many.
  int segments, begin, length;
  /// The output tile of unit 0, were it a whole tile as those behind the segments are.
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
  /// Read anew each time: ptxas would rather spill the number than read it again.
  __device__ static int clusters() {
    int blocks;
    asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(blocks));
    return blocks / Order::kClusterSize;
  }
  __device__ static int share() { return clusters() - 1 - cluster(); }
  /// Of each shared tile.
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
