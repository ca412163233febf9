/// Copies rows of A by an index to stages, without TMA.
#pragma once

#include <gemmill/copy/layout.cuh>
#include <gemmill/copy/scales.cuh>

namespace gemmill {

/// Threads that copy rows: those of the producer warpgroup. Each arrives once at the full barrier of a stage.
inline constexpr int kGatherThreads = 128;

/// The row of A for a row of D.
__device__ inline uint32_t gathered_row(GatherParams const& params, int m) {
  return min(uint32_t(params.rows[m * params.rows_stride]), uint32_t(params.a_rows) - 1);
}

/// Copies the rows of A of one tile, stage by stage, with the threads of the producer warpgroup. A row of a stage is one
/// swizzle span of 128 bytes, which eight threads copy, 16 bytes each: a warp reads four whole lines of L2. Thread t
/// copies chunk t % 8 of rows t / 8 + 16 i. It reads the index and computes addresses once for each tile.
///
/// cp.async writes through the generic proxy, and wgmma reads through the async proxy. A thread's arrival at the full
/// barrier follows its copies (PTX ISA, "cp.async.mbarrier.arrive"), and consumers call `fence` between their wait for
/// the barrier and their MMAs: the proxy fence is on the path of causality from each copy to each read.
template <class Layout>
struct GatherLoad {
  static constexpr int kChunk = 16, kThreadsOfRow = Layout::kSpan / kChunk;
  static constexpr int kStep = kGatherThreads / kThreadsOfRow;
  /// Rows that a thread copies.
  static constexpr int kRows = Layout::kTileMN / kStep;

  /// Shared-memory address of this thread's chunk of its first row in the first stage.
  uint32_t first;
  /// This thread's rows of A.
  uint32_t rows[kRows];
  /// Rows of the tile that belong to the group, counted from this thread's first row.
  int inside;

  __device__ explicit GatherLoad(char* stages)
      : first(cute::cast_smem_ptr_to_uint(stages) + row() * Layout::kSpan + (chunk() ^ row() % 8) * kChunk) {
    static_assert(Layout::kMajor == MajorIn::K && Layout::kPanels == 1 && Layout::kSpan == 128 && kStep % 8 == 0,
                  "all rows of a thread have the same place in the period of the swizzle");
  }

  /// Reads the index for the tile of rows from `m` on, of a group that ends at row `end`.
  __device__ void begin(GatherParams const& params, int m, int end) {
    inside = end - m - row();
#pragma unroll
    for (int i = 0; i < kRows; ++i) rows[i] = i * kStep < inside ? gathered_row(params, m + row() + i * kStep) : 0;
  }

  /// Starts to copy this thread's part of a stage, from `k` on. What lies beyond K becomes 0. Rows beyond the group keep
  /// stale data, which affects only rows of D that are not stored.
  __device__ void operator()(GatherParams const& params, int stage, int k) const {
    constexpr int kBytes = sizeof(typename Layout::Element);
    uint32_t const target = first + stage * Layout::kBytes;
    char const* const from = params.a_pointer + chunk() * kChunk + int64_t(k) * kBytes;
    int const left = min(max((params.k - k) * kBytes - chunk() * kChunk, 0), kChunk);
#pragma unroll
    for (int i = 0; i < kRows; ++i)
      if (i * kStep < inside)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(target + i * kStep * Layout::kSpan),
                     "l"(from + uint64_t(rows[i]) * uint32_t(params.a_row_bytes)), "r"(left)
                     : "memory");
  }

  /// Makes this thread arrive at a stage's full barrier when its copies have finished.
  __device__ static void arrive(uint64_t& full) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(cute::cast_smem_ptr_to_uint(&full))
                 : "memory");
  }

  /// Waits for all copies of this thread, which must not end before.
  __device__ static void finish() { asm volatile("cp.async.wait_all;" ::: "memory"); }

  /// Consumer: orders MMAs after the copies of a stage that is full.
  __device__ static void fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

 private:
  __device__ static int row() { return threadIdx.x / kThreadsOfRow; }
  __device__ static int chunk() { return threadIdx.x % kThreadsOfRow; }
};

/// Copies the block scales of gathered rows of A, and those of B, with the same threads: thread t the scale of row t.
template <int TileM>
struct GatherScales {
  /// This thread's scale of A, and of B for the first two threads, for the next block of K.
  float const* row;
  float const* column;
  /// Bytes to copy of each: 4, or 0 for what does not exist.
  int row_bytes, column_bytes;

  __device__ GatherScales(GatherParams const& params, int m, int end, int n, int batch) {
    ScaleParams const& a = params.a_scale;
    ScaleParams const& b = params.b_scale;
    int const thread = threadIdx.x, block = n / kScaleBlock + thread;
    row_bytes = thread < TileM && m + thread < end ? 4 : 0;
    uint32_t const place = row_bytes > 0 ? gathered_row(params, m + thread) : 0;
    row = static_cast<float const*>(a.pointer) + place * a.stride;
    column = static_cast<float const*>(b.pointer) + batch * b.batch_stride + block * b.stride;
    column_bytes = thread < 2 && block * kScaleBlock < params.n ? 4 : 0;
  }

  /// Starts to fill a stage. Scales of rows beyond the group become 0.
  __device__ void operator()(GatherParams const& params, uint32_t stage) {
    uint32_t const target = stage + threadIdx.x * 4;
    if (threadIdx.x < TileM) copy(target, row, row_bytes);
    if (threadIdx.x < 2) copy(target + TileM * 4, column, column_bytes);
    row += params.a_scale.k_stride;
    column += params.b_scale.k_stride;
  }

 private:
  /// Copies `bytes` (4 or 0) bytes and zeroes the rest.
  __device__ static void copy(uint32_t target, float const* source, int bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(target), "l"(source), "r"(bytes) : "memory");
  }
};

/// Takes the place of GatherScales in kernels without block scales.
struct NoGatherScales {
  __device__ NoGatherScales(GatherParams const&, int, int, int, int) {}
  __device__ void operator()(GatherParams const&, uint32_t) {}
};

}  // namespace gemmill
