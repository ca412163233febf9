/// Grids, and workspaces of kernels whose CTAs share K (library/decompositions/workspace_layout.py).
#pragma once

#include <cstdint>

#include "gemm.h"
#include "launch_spec.h"
#include "workspace.h"

namespace gemmill {

/// Extents of the matrices of partial sums of a split-K kernel, with rows padded to whole vectors, ordered by slice.
struct PartialMatrices {
  int64_t contiguous;
  int64_t strided;
  int64_t count;
};

/// CTAs of a persistent launch: a cluster for each cluster tile, but at most as many as the GPU holds at a time.
int64_t grid_ctas(const LaunchSpec& spec, const Gemm& gemm, int64_t slices, int64_t max_clusters);

PartialMatrices partial_matrices(const Gemm& gemm, int64_t slices);

/// CTAs of the second kernel of split-K.
int64_t reduction_ctas(const LaunchSpec& spec, const Gemm& gemm, int64_t slices);

/// The workspace of a launch of some clusters.
WorkspaceSize workspace_size(const LaunchSpec& spec, const Gemm& gemm, int64_t slices, int64_t clusters);

}  // namespace gemmill
