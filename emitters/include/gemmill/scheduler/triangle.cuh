/// Scheduling of symmetric products: only the output tiles that meet the lower triangle.
#pragma once

#include <gemmill/scheduler/persistent.cuh>

namespace gemmill {

/// The cluster tiles of a symmetric matrix that have elements on or below the diagonal, with the constants of `Order`.
///
/// The order walks groups of `kSwizzle` columns of cluster tiles one after the other, as TileOrder does. Within a group,
/// the rows that the diagonal shortens come first, then the rows of whole width.
template <class Order>
struct TriangleOrder {
  static constexpr int kClusterSize = Order::kClusterSize;
  static constexpr int kClusterM = Order::kClusterM;
  static constexpr int kTileM = Order::kTileM, kTileN = Order::kTileN;
  static constexpr int kRows = kTileM * kClusterM, kColumns = kTileN * (kClusterSize / kClusterM);
  static constexpr int kSwizzle = Order::kSwizzle;
  static_assert(Order::kRaster == Raster::M, "groups follow one another along N");

  int rows, columns;
  int total = 0;
  /// The first column of the group of the last tile, its number of columns, and the tiles of the groups before it and of
  /// it. Indices mostly grow, so that few calls of `origin` change the group.
  int first = 0, width = 0, before = 0, tiles = 0;

  __device__ TriangleOrder(int m, int n) : rows(ceil_div(m, kRows)), columns(ceil_div(n, kColumns)) {
    for (int row = 0; row < rows; ++row) total += columns_of(row);
    begin_group(0, 0);
  }

  /// The quotient of a single value.
  __device__ static int quotient(int value, int divisor) { return Order::quotient(value, divisor); }

  __device__ int count() const { return total; }

  /// The origin, in elements, of the tile of CTA `rank` in cluster tile `index`.
  __device__ typename Order::Origin origin(int index, int rank) {
    if (index < before) begin_group(0, 0);
    while (index >= before + tiles) begin_group(first + kSwizzle, before + tiles);
    int row = first * kColumns / kRows;
    int column = index - before;
    for (int own = shortened(row); own < width && column >= own; own = shortened(row)) {
      column -= own;
      ++row;
    }
    if (shortened(row) == width) {
      int const down = column / width;
      row += down;
      column -= down * width;
    }
    return {(row * kClusterM + rank % kClusterM) * kTileM,
            (first + column) * kColumns + rank / kClusterM * kTileN};
  }

 private:
  /// The cluster tiles of a row.
  __device__ int columns_of(int row) const { return min(ceil_div((row + 1) * kRows, kColumns), columns); }
  /// Those of them in the group.
  __device__ int shortened(int row) const { return min(columns_of(row) - first, width); }

  __device__ void begin_group(int column_of_group, int tiles_before) {
    first = column_of_group;
    before = tiles_before;
    width = min(kSwizzle, columns - first);
    tiles = 0;
    for (int column = first; column < first + width; ++column) tiles += rows - column * kColumns / kRows;
  }
};

/// Like the persistent scheduler, for a D that equals its transpose. A tile below the diagonal is stored twice.
template <class Order, int TileK>
struct TriangleScheduler : PersistentScheduler<TriangleOrder<Order>, TileK> {
  using Base = PersistentScheduler<TriangleOrder<Order>, TileK>;
  enum : bool { kIsSymmetric = true };

  using Base::Base;
};

}  // namespace gemmill
