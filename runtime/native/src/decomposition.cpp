#include "decomposition.h"

#include <algorithm>

#include "error.h"

namespace gemmill {
namespace {

constexpr int64_t kInt32Max = (int64_t{1} << 31) - 1;
/// Partial sums that the second kernel reads at a time, and the bytes of one and of a flag.
constexpr int64_t kVector = 4;
constexpr uint64_t kPartialBytes = 4;
constexpr uint64_t kFlagBytes = 4;
/// Fewest steps along K per cluster in stream-K where there are fewer tiles than clusters.
constexpr int64_t kMinShare = 8;
constexpr int64_t kReductionThreads = 256;

int64_t ceil_div(int64_t value, int64_t by) { return (value + by - 1) / by; }

/// Products of extents below 2^31; one that is too large for 64 bits is refused.
int64_t product(const LaunchSpec& spec, int64_t x, int64_t y, int64_t z) {
  const Wide value = static_cast<Wide>(x) * y * z;
  if (value > (static_cast<Wide>(1) << 60)) {
    throw Error(GEMMILL_UNSUPPORTED, spec.entry + ": the problem is too large: split it");
  }
  return static_cast<int64_t>(value);
}

/// In how many groups the second kernel adds the sums of slices.
int64_t reduction_groups(int64_t slices) { return slices <= 8 ? 1 : slices <= 16 ? 2 : slices <= 32 ? 4 : 8; }

}  // namespace

int64_t grid_ctas(const LaunchSpec& spec, const Gemm& gemm, int64_t slices, int64_t max_clusters) {
  const int64_t tiles = product(spec, ceil_div(gemm.m, spec.tile_m * spec.cluster_m),
                                ceil_div(gemm.n, spec.tile_n * spec.cluster_n), gemm.batch);
  const auto& shared = spec.k_decomposition;
  const int64_t units = product(spec, tiles, shared && shared->reduction ? slices : 1, 1);
  if (units > kInt32Max - 2 * max_clusters) {  // pingpong computes two strides of the grid ahead
    throw Error(GEMMILL_UNSUPPORTED, spec.entry + ": " + std::to_string(units) +
                                         " output tiles; at most 2^31 are supported: split the problem");
  }
  if (gemm.batching == "grouped" || gemm.batching == "ngrouped") {
    // A group starts with a new tile, and may end with a partial one.
    const bool is_m = gemm.batching == "grouped";
    const int64_t along_m = spec.tile_m * spec.cluster_m;
    const int64_t along_n = spec.tile_n * spec.cluster_n;
    const int64_t begun = (is_m ? gemm.m / along_m : gemm.n / along_n) + gemm.batch;
    const int64_t other = is_m ? ceil_div(gemm.n, along_n) : ceil_div(gemm.m, along_m);
    return std::min({tiles, product(spec, begun, other, 1), max_clusters}) * spec.cluster_ctas();
  }
  if (!shared || !shared->is_stream()) return std::min(units, max_clusters) * spec.cluster_ctas();
  const int64_t steps = ceil_div(gemm.k, shared->tile_k);
  if (product(spec, 2, max_clusters, steps) > kInt32Max) {
    throw Error(GEMMILL_UNSUPPORTED, spec.entry + ": K is " + std::to_string(gemm.k) +
                                         "; its number of steps exceeds the 2^31 that stream-K supports");
  }
  const int64_t busy = std::max(tiles, product(spec, tiles, steps, 1) / kMinShare);
  return std::min(busy, max_clusters) * spec.cluster_ctas();
}

PartialMatrices partial_matrices(const Gemm& gemm, int64_t slices) {
  const bool is_n = gemm.d.major == "n";
  const int64_t contiguous = is_n ? gemm.n : gemm.m;
  return {ceil_div(contiguous, kVector) * kVector, is_n ? gemm.m : gemm.n, slices * gemm.batch};
}

int64_t reduction_ctas(const LaunchSpec& spec, const Gemm& gemm, int64_t slices) {
  const PartialMatrices matrices = partial_matrices(gemm, slices);
  const int64_t vectors = product(spec, matrices.contiguous / kVector, matrices.strided, gemm.batch);
  if (vectors > kInt32Max) {
    throw Error(GEMMILL_UNSUPPORTED, spec.entry +
                                         ": D has too many elements; split-K supports fewer than 2^33: split "
                                         "the problem");
  }
  return ceil_div(vectors, kReductionThreads / reduction_groups(slices));
}

WorkspaceSize workspace_size(const LaunchSpec& spec, const Gemm& gemm, int64_t slices, int64_t clusters) {
  const KDecomposition& shared = *spec.k_decomposition;
  if (shared.reduction) {
    const PartialMatrices matrices = partial_matrices(gemm, slices);
    return {static_cast<uint64_t>(product(spec, matrices.contiguous, matrices.strided, matrices.count)) * kPartialBytes,
            0};
  }
  return {static_cast<uint64_t>(product(spec, clusters, shared.tile_bytes, 1)),
          static_cast<uint64_t>(product(spec, clusters, shared.tile_flags, 1)) * kFlagBytes};
}

}  // namespace gemmill
