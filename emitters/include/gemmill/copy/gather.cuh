/// Copies rows of A by an index to stages, without TMA.
#pragma once

#include <gemmill/copy/layout.cuh>
#include <gemmill/kernel/params.cuh>

namespace gemmill {

/// Threads that copy rows: those of the producer warpgroup. Each arrives once at the full barrier of a stage.
inline constexpr int kGatherThreads = 128;

/// The row of A for a row of D.
__device__ inline uint32_t gathered_row(GatherParams const& params, int m) {
  return min(uint32_t(params.rows[m * params.rows_stride]), uint32_t(params.a_rows) - 1);
}

/// Copies the rows of A of one tile, stage by stage, with the threads of the producer warpgroup. A row of a stage is one
/// swizzle span of 128 bytes, which eight threads copy, 16 bytes each: a warp reads four whole lines of L2. Thread t
/// copies chunk t % 8 of rows t / 8 + 16 i. It reads the index and computes offsets once for each tile: a copy of a stage
/// takes two instructions. With ten, as with a predicate and a product for each row, the producer limits the kernel.
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
  /// Offsets of this thread's rows of A, in chunks: 32 bits reach 64 GiB.
  uint32_t rows[kRows];
  /// How many of them the group has.
  int count;
  /// This thread's chunk of the first row of A, at the current K tile.
  char const* from;

  __device__ explicit GatherLoad(char* stages)
      : first(cute::cast_smem_ptr_to_uint(stages) + row() * Layout::kSpan + (chunk() ^ row() % 8) * kChunk) {
    static_assert(Layout::kMajor == MajorIn::K && Layout::kPanels == 1 && Layout::kSpan == 128 && kStep % 8 == 0,
                  "all rows of a thread have the same place in the period of the swizzle");
  }

  /// Reads the index for the tile of rows from `m` on, of a group that ends at row `end`. Rows beyond the group are not
  /// copied: those in shared memory affect only rows of D that are not stored.
  __device__ void begin(GatherParams const& params, int m, int end) {
    from = params.a_pointer + chunk() * kChunk;
    count = (end - m - row() + kStep - 1) / kStep;
#pragma unroll
    for (int i = 0; i < kRows; ++i)
      rows[i] = gathered_row(params, min(m + row() + i * kStep, end - 1)) * uint32_t(params.a_row_chunks);
  }

  /// Starts to copy this thread's part of a stage, of which `left` bytes along K exist; the rest becomes 0. The next call
  /// is for the next K tile.
  __device__ void operator()(int stage, int left) {
    uint32_t const target = first + stage * Layout::kBytes;
    if (left >= Layout::kSpan && count >= kRows) {
#pragma unroll
      for (int i = 0; i < kRows; ++i)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(target + i * kStep * Layout::kSpan),
                     "l"(from + uint64_t(rows[i]) * kChunk)
                     : "memory");
    } else {
      int const bytes = min(max(left - chunk() * kChunk, 0), kChunk);
#pragma unroll
      for (int i = 0; i < kRows; ++i)
        if (i < count)
          asm volatile(
              "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(target + i * kStep * Layout::kSpan),
              "l"(from + uint64_t(rows[i]) * kChunk), "r"(bytes)
              : "memory");
    }
    from += Layout::kSpan;
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

}  // namespace gemmill
