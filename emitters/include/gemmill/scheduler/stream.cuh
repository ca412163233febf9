/// Stream-K (Osama et al., "Stream-K", PPoPP 2023): every cluster multiplies the same number of K tiles, give or take one.
#pragma once

#include <gemmill/kernel/params.cuh>
#include <gemmill/scheduler/work.cuh>

namespace gemmill {

/// The tiles that would leave clusters idle in the last wave are shared: their K tiles, one after the other, are cut into
/// equal shares, one for each cluster of the grid. Then whole waves of whole tiles follow. Where that would save less
/// than it costs, nothing is shared. (Sharing another wave as well, as the paper does, would halve the parts of a tile;
/// but clusters would not go along K abreast, and lose more in L2.)
///
/// Share s ends with the first K tiles of some output tile: its cluster stores that tile, to which shares s + 1, s + 2
/// and so on contribute. They begin with it, and higher shares are of lower clusters: a cluster waits only for what
/// clusters of lower index do first of all. So no wait is circular, however few clusters of the grid are resident.
template <class Order, int TileK>
struct StreamScheduler {
  using Params = PartialParams;
  static constexpr int kSplits = 1;
  /// K tiles that a cluster multiplies while parts of a tile are added up.
  static constexpr int kCost = 16;

  Order order;
  int k_extent;
  int rank;
  /// Output tiles of the whole batch that are shared; they come first.
  int shared;
  /// K tiles of each share, and how many of the first shares have one more.
  int length, longer;
  /// This cluster's share, and its first K tile.
  int share, begin;
  /// Output tiles, or parts of them, in the share.
  int segments;
  int total;

  __device__ StreamScheduler(Params const& params, int rank_)
      : order(params.m, params.n), k_extent(ceil_div(params.k, TileK)), rank(rank_) {
    int const tiles = order.count() * params.batch;
    shared = tiles % clusters();
    if ((clusters() - shared) * k_extent < kCost * clusters()) shared = 0;
    length = shared * k_extent / clusters();
    longer = shared * k_extent % clusters();
    share = clusters() - 1 - cluster();
    begin = share * length + min(share, longer);
    segments = end() > begin ? (end() - 1) / k_extent - begin / k_extent + 1 : 0;
    total = segments + ceil_div(tiles - shared - cluster(), clusters());
  }

  __device__ static int first() { return 0; }
  __device__ static int stride() { return 1; }
  __device__ static int slot_stride() { return 1; }

  __device__ SharedWork work(int index) {
    SharedWork work;
    int tile = shared + cluster() + (index - segments) * clusters();
    work.k_tile = 0;
    work.k_tiles = k_extent;
    work.slot = share;
    work.part = 0;
    work.parts = 1;
    if (index < segments) {
      tile = begin / k_extent + index;
      int const start = tile * k_extent;
      work.k_tile = max(begin - start, 0);
      work.k_tiles = min(end() - start, k_extent) - work.k_tile;
      int const owner = share_of(start);
      work.part = share - owner;
      work.parts = share_of(start + k_extent - 1) - owner + 1;
    }
    work.batch = work.batch_d = Order::quotient(tile, order.count());
    auto const [m, n] = order.origin(tile - work.batch * order.count(), rank);
    work.m = m;
    work.n = n;
    return work;
  }

 private:
  __device__ static int cluster() { return blockIdx.x / Order::kClusterSize; }
  __device__ static int clusters() { return gridDim.x / Order::kClusterSize; }
  __device__ int end() const { return begin + length + (share < longer); }
  /// The share that has a K tile.
  __device__ int share_of(int k_tile) const {
    int const in_longer = longer * (length + 1);
    return k_tile < in_longer ? k_tile / (length + 1) : longer + (k_tile - in_longer) / length;
  }
};

}  // namespace gemmill
