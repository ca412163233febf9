/// Copies rows of an operand by an index to stages, without TMA.
#pragma once

#include <gemmill/copy/layout.cuh>
#include <gemmill/copy/scales.cuh>
#include <gemmill/kernel/params.cuh>

namespace gemmill {

/// Threads that copy rows: those of the producer warpgroup. Each arrives once at the full barrier of a stage.
inline constexpr int kGatherThreads = 128;

/// The row that an entry of the index names.
__device__ inline uint32_t row_of(GatherParams const& params, int entry) {
  return min(uint32_t(entry), uint32_t(params.row_count) - 1);
}

/// Its offset in chunks: 32 bits reach 64 GiB.
__device__ inline uint32_t gathered_row(GatherParams const& params, int entry) {
  return row_of(params, entry) * uint32_t(params.row_chunks);
}

/// Starts to copy 16 bytes to shared memory, of which `bytes` are read and the rest becomes 0.
__device__ inline void copy_chunk(uint32_t target, char const* from, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(target), "l"(from), "r"(bytes) : "memory");
}
__device__ inline void copy_chunk(uint32_t target, char const* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(target), "l"(from) : "memory");
}

/// How threads that copy with cp.async tell consumers that a stage is full.
struct CopyArrivals {
  /// Makes this thread arrive at a stage's full barrier when its copies have finished.
  __device__ static void arrive(uint64_t& full) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(cute::cast_smem_ptr_to_uint(&full))
                 : "memory");
  }

  /// Waits for all copies of this thread, which must not end before.
  __device__ static void finish() { asm volatile("cp.async.wait_all;" ::: "memory"); }
};

/// How the threads of the producer warpgroup share the rows of a stage, which are swizzle spans of 128 bytes: thread t
/// copies chunk t % 8 of rows t / 8 + 16 i.
///
/// cp.async writes through the generic proxy, and wgmma reads through the async proxy. A thread's arrival at the full
/// barrier follows its copies (PTX ISA, "cp.async.mbarrier.arrive"), and consumers call `fence` between their wait for
/// the barrier and their MMAs: the proxy fence is on the path of causality from each copy to each read.
template <class Layout>
struct GatherThreads : CopyArrivals {
  static constexpr int kChunk = 16, kThreadsOfRow = Layout::kSpan / kChunk;
  static constexpr int kStep = kGatherThreads / kThreadsOfRow;
  /// Most rows that a thread copies.
  static constexpr int kRows = ceil_div(Layout::kRows, kStep);
  static_assert(Layout::kSpan != 128 || kStep % 8 == 0,
                "all rows of a thread have the same place in the period of the swizzle");

  /// Shared-memory address of this thread's chunk of its first row in the first stage.
  __device__ static uint32_t first(char* stages) {
    return cute::cast_smem_ptr_to_uint(stages) + row() * Layout::kSpan + (chunk() ^ row() % 8) * kChunk;
  }

  /// Consumer: orders MMAs after the copies of a stage that is full.
  __device__ static void fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

 protected:
  __device__ static int row() { return threadIdx.x / kThreadsOfRow; }
  __device__ static int chunk() { return threadIdx.x % kThreadsOfRow; }
};

/// Copies the rows of A of one tile, or the columns of B with `OfB`, stage by stage. A row of a stage has a swizzle span in
/// each panel: a warp reads four whole lines of L2. A thread reads the index and computes offsets once for each tile: a copy of a stage takes two instructions.
/// With ten, as with a predicate and a product for each row, the producer limits the kernel.
template <class Layout, bool OfB>
struct GatherLoad : GatherThreads<Layout> {
  using Threads = GatherThreads<Layout>;
  using Threads::kChunk, Threads::kRows, Threads::kStep, Threads::chunk, Threads::row;

  GatherParams const& params;
  uint32_t first;
  /// Offsets of this thread's rows, in chunks.
  uint32_t rows[kRows];
  /// How many of them the group has.
  int count;
  /// This thread's chunk of the operand's first row, at the current K tile.
  char const* from;

  __device__ GatherLoad(char* stages, GatherParams const& params_) : params(params_), first(Threads::first(stages)) {
    static_assert(Layout::kMajor == MajorIn::K && Layout::kSpan == 128);
  }

  /// Reads the index for a tile of a group. Rows beyond the group are not copied: those in shared memory affect only rows
  /// of D that are not stored.
  template <class Work>
  __device__ void begin(Work const& work) {
    int const begin = OfB ? work.n : work.m;
    int const end = Layout::kRows % kStep == 0 ? work.end : min(work.end, begin + Layout::kRows);
    from = params.operand + chunk() * kChunk;
    count = (end - begin - row() + kStep - 1) / kStep;
#pragma unroll
    for (int i = 0; i < kRows; ++i)
      rows[i] = gathered_row(params, params.rows[min(begin + row() + i * kStep, work.end - 1) * params.rows_stride]);
  }

  /// Starts to copy this thread's part of a stage, of which `left` elements along K exist; the rest becomes 0. The next
  /// call is for the next K tile.
  __device__ void operator()(int stage, int left) {
    uint32_t const target = first + stage * Layout::kBytes;
    int const bytes = left * int(sizeof(typename Layout::Element));
    if (bytes >= Layout::kPanels * Layout::kSpan && count >= kRows) {
#pragma unroll
      for (int i = 0; i < kRows; ++i)
#pragma unroll
        for (int panel = 0; panel < Layout::kPanels; ++panel)
          copy_chunk(target + panel * Layout::kPanelBytes + i * kStep * Layout::kSpan,
                     from + uint64_t(rows[i]) * kChunk + panel * Layout::kSpan);
    } else {
#pragma unroll 1
      for (int panel = 0; panel < Layout::kPanels; ++panel) {
        int const offset = panel * Layout::kSpan, inside = min(max(bytes - offset - chunk() * kChunk, 0), kChunk);
#pragma unroll
        for (int i = 0; i < kRows; ++i)
          if (i < count)
            copy_chunk(target + panel * Layout::kPanelBytes + i * kStep * Layout::kSpan,
                       from + uint64_t(rows[i]) * kChunk + offset, inside);
      }
    }
    from += Layout::kPanels * Layout::kSpan;
  }
};

/// Copies the K rows of an A that is contiguous along M, stage by stage, for groups along K. A stage has a panel for each
/// swizzle span along M. A thread reads the entries of the index for a stage while it copies the stage before.
template <class Layout>
struct GatherLoadAlongK : GatherThreads<Layout> {
  using Threads = GatherThreads<Layout>;
  using Threads::kChunk, Threads::kRows, Threads::kStep, Threads::chunk, Threads::row;

  GatherParams const& params;
  uint32_t first;
  /// Entries of the index for the next stage; those beyond the group are not read.
  int entries[kRows];
  /// The place of the first of them, and the group's end.
  int at, end;
  /// This thread's chunk of the first row of A in the tile's first panel, and the bytes of a row from there on.
  char const* from;
  int inside;

  __device__ GatherLoadAlongK(char* stages, GatherParams const& params_) : params(params_), first(Threads::first(stages)) {
    static_assert(Layout::kMajor == MajorIn::MN && Layout::kSpan == 128);
  }

  /// Reads the index for the first stage of a group's tile.
  template <class Work>
  __device__ void begin(Work const& work) {
    constexpr int kSize = sizeof(typename Layout::Element);
    from = params.operand + work.m * kSize + chunk() * kChunk;
    inside = (params.m - work.m) * kSize - chunk() * kChunk;
    at = work.begin + row();
    end = work.end;
    read();
  }

  /// Starts to copy this thread's part of a stage, of which `left` rows belong to the group; the others become 0, since
  /// they are multiplied. The next call is for the next K tile.
  __device__ void operator()(int stage, int left) {
    uint32_t const target = first + stage * Layout::kBytes;
    char const* sources[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i)
      sources[i] = from + uint64_t(gathered_row(params, entries[i])) * kChunk;
    at += Layout::kRows;
    read();
    bool const whole = left >= Layout::kRows && inside >= (Layout::kPanels - 1) * Layout::kSpan + kChunk;
#pragma unroll
    for (int i = 0; i < kRows; ++i)
#pragma unroll
      for (int panel = 0; panel < Layout::kPanels; ++panel) {
        uint32_t const to = target + panel * Layout::kPanelBytes + i * kStep * Layout::kSpan;
        if (whole) {
          copy_chunk(to, sources[i] + panel * Layout::kSpan);
        } else {
          int const bytes = row() + i * kStep < left ? min(max(inside - panel * Layout::kSpan, 0), kChunk) : 0;
          copy_chunk(to, sources[i] + panel * Layout::kSpan, bytes);
        }
      }
  }

 private:
  __device__ void read() {
#pragma unroll
    for (int i = 0; i < kRows; ++i)
      if (at + i * kStep < end) entries[i] = params.rows[(at + i * kStep) * params.rows_stride];
  }
};

/// Copies the scales of gathered rows of A, and those of B, stage by stage: of each row of the tile one thread, which also
/// copies a block of columns if it is one of the first two. `Stage` is a ScaleStage; its full barrier counts these threads
/// once for rows and scales.
template <class Stage, int TileM, int Stages, bool Halves>
struct GatherScales {
  GatherParams const& params;
  /// Shared-memory address of this thread's scale in the first stage.
  uint32_t first;
  float const* row;
  float const* column;
  /// Bytes to copy of the block of columns: 4, or 0 if it lies outside the problem.
  int column_bytes;
  /// Whether all stages have been filled.
  bool again = false;

  __device__ GatherScales(char* stages, GatherParams const& params_)
      : params(params_), first(cute::cast_smem_ptr_to_uint(stages) + threadIdx.x * 4) {}

  /// Finds the scales of a group's tile. A thread without a row of the group takes that of the last one.
  template <class Work>
  __device__ void begin(Work const& work) {
    int const thread = threadIdx.x, block = block_of_columns<Halves>(params, work.n, thread);
    int const entry = params.rows[min(work.m + thread, work.end - 1) * params.rows_stride];
    row = static_cast<float const*>(params.a_scale.pointer) + row_of(params, entry) * params.a_scale.stride;
    column = static_cast<float const*>(params.b_scale.pointer) + work.batch * params.b_scale.batch_stride +
             block * params.b_scale.stride;
    column_bytes = block * kScaleBlock < params.n ? 4 : 0;
  }

  /// Starts to fill a stage. The next call is for the next block of K.
  __device__ void operator()(int stage) {
    if (again) {
      __syncwarp();  // threads that waited for the stage may have parted
      Stage::acquire(stage);
    }
    again |= stage == Stages - 1;
    uint32_t const target = first + stage * Stage::kBytes;
    if (TileM >= kGatherThreads || threadIdx.x < TileM) copy_word(target, row, 4);
    if (threadIdx.x < 2) copy_word(target + TileM * 4, column, column_bytes);
    row += params.a_scale.k_stride;
    column += params.b_scale.k_stride;
  }

  /// Completes the barriers on which the consumers of the last stages have arrived; `stage` would be filled next.
  __device__ void finish(int stage) const {
    __syncwarp();
    for (int i = 0; i < (again ? Stages : stage); ++i) Stage::acquire(i);
  }
};

/// Takes the place of GatherScales in kernels without block scales.
struct GatherNoScales {
  __device__ GatherNoScales(char*, GemmParams const&) {}
  template <class Work>
  __device__ void begin(Work const&) {}
  __device__ void operator()(int) {}
  __device__ void finish(int) const {}
};

}  // namespace gemmill
