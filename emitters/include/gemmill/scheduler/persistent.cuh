/// Static persistent scheduling: each cluster walks the output tiles with the stride of the grid.
#pragma once

#include <gemmill/types.cuh>

namespace gemmill {

/// Origin of an output tile in elements, and its batch.
struct TileOrigin {
  int m;
  int n;
  int batch;
};

/// Maps tile indices to origins. Bands of `Swizzle` cluster tiles across the raster direction are walked one after the
/// other, so that the tiles in flight form a block whose operands stay in L2.
template <int TileM, int TileN, int ClusterM, int ClusterN, Raster RasterAlong, int Swizzle>
struct PersistentScheduler {
  static constexpr int kClusterSize = ClusterM * ClusterN;

  int clusters_m;
  int clusters_n;
  int total;
  int rank;

  __device__ PersistentScheduler(int m, int n, int batch, int rank_)
      : clusters_m(ceil_div(m, TileM * ClusterM)),
        clusters_n(ceil_div(n, TileN * ClusterN)),
        total(clusters_m * clusters_n * batch),
        rank(rank_) {}

  __device__ static int first() { return blockIdx.x / kClusterSize; }
  __device__ static int stride() { return gridDim.x / kClusterSize; }

  __device__ TileOrigin origin(int index) const {
    int const per_batch = clusters_m * clusters_n;
    int const batch = index / per_batch;
    int const within = index - batch * per_batch;
    int const along_extent = RasterAlong == Raster::M ? clusters_m : clusters_n;
    int const across_extent = RasterAlong == Raster::M ? clusters_n : clusters_m;
    int const band = within / (Swizzle * along_extent);
    int const in_band = within - band * Swizzle * along_extent;
    int const width = min(Swizzle, across_extent - band * Swizzle);
    int const along = in_band / width;
    int const across = band * Swizzle + in_band - along * width;
    int const cluster_m = RasterAlong == Raster::M ? along : across;
    int const cluster_n = RasterAlong == Raster::M ? across : along;
    return {(cluster_m * ClusterM + rank % ClusterM) * TileM, (cluster_n * ClusterN + rank / ClusterM) * TileN, batch};
  }
};

}  // namespace gemmill
