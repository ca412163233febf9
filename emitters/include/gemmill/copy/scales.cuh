/// Block scales of A and B: copies them to shared memory and applies them to sums.
#pragma once

#include <gemmill/kernel/params.cuh>
#include <gemmill/pipeline/named_barrier.cuh>

namespace gemmill {

/// Elements along K that share a scale. A stage has the same K.
inline constexpr int kScaleBlock = 128;

/// The scales of one stage in shared memory, in f32. There is one scale of A for each row of the tile. There are two
/// scales of B, because a tile overlaps at most two blocks of columns (rule `scaled-tile`): one after the other, or, if
/// its columns are runs of 8 of both halves of B, one of each half (rule `gated-halves`).
///
/// The stage is refilled when all threads that read it have arrived at its named barrier. It is not an mbarrier,
/// because racecheck does not follow a lane that arrives at an mbarrier for its whole warp.
template <int TileM, int Readers, int Fillers>
struct ScaleStage {
  static constexpr int kBytes = (TileM + 4) * int(sizeof(float));  // f32, whatever the type of the scales in memory
  static constexpr int kArrivals = Fillers;
  /// Threads of the named barrier: the readers and those that fill.
  static constexpr int kThreads = Readers + Fillers;

  /// Every reader calls it after it has read the stage.
  __device__ static void release(int stage) { named_barrier::arrive(named_barrier::kScales + stage, kThreads); }
  /// The warps that fill call it before they refill the stage.
  __device__ static void acquire(int stage) { named_barrier::sync(named_barrier::kScales + stage, kThreads); }
};

/// The block of columns that holds scale `i` of a tile that begins at column n. With `Halves`, the columns of the tile are
/// runs of 8 of both halves of B.
template <bool Halves>
__device__ inline int block_of_columns(GemmParams const& params, int n, int i) {
  return (Halves ? n / 2 + i % 2 * (params.n / 2) : n + i * kScaleBlock) / kScaleBlock;
}

/// Copies `bytes` (4 or 0) bytes to shared memory and zeroes the rest.
__device__ inline void copy_word(uint32_t target, void const* source, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(target), "l"(source), "r"(bytes) : "memory");
}

/// Copies the scales of one tile, stage by stage. One warp uses cp.async, 4 bytes at a time, so scales may have any
/// strides in global memory. Each lane arrives at the stage's full barrier. Addresses are computed once for each tile:
/// computing them takes as long as the MMAs of a stage.
///
/// For one-byte scales (ue8m0) it copies the aligned word around each scale, because cp.async copies no fewer than 4
/// bytes. When the word has arrived, the lane that copied it replaces it with the scale in f32.
template <int TileM, class Scale, bool Halves>
struct ScaleLoad {
  static constexpr bool kBytewise = sizeof(Scale) == 1;

  Scale const* row;
  Scale const* column;
  /// Strides in elements: between the rows of this lane, and from one block of K to the next for A and for B.
  int64_t row_stride, row_step, column_step;
  /// Rows of the tile that lie inside the problem, counted from this lane's first row.
  int rows;
  /// Bytes to copy of this lane's block of columns: 4, or 0 if it lies outside the problem.
  int column_bytes;
  /// One-byte scales: the low bits of the addresses of the scales that `upconvert` converts next.
  uint32_t row_place, column_place;

  __device__ ScaleLoad(GemmParams const& params, int m, int n, int k_block, int batch) {
    ScaleParams const& a = params.a_scale;
    ScaleParams const& b = params.b_scale;
    int const lane = threadIdx.x % 32;
    int const block = block_of_columns<Halves>(params, n, lane);
    row = static_cast<Scale const*>(a.pointer) + batch * a.batch_stride + k_block * a.k_stride + (m + lane) * a.stride;
    column = static_cast<Scale const*>(b.pointer) + batch * b.batch_stride + k_block * b.k_stride + block * b.stride;
    row_stride = 32 * a.stride;
    row_step = a.k_stride;
    column_step = b.k_stride;
    rows = params.m - m - lane;
    column_bytes = block * kScaleBlock < params.n ? 4 : 0;
    row_place = uint32_t(reinterpret_cast<uintptr_t>(row));
    column_place = uint32_t(reinterpret_cast<uintptr_t>(column));
  }

  /// Starts to fill a stage with the scales of the next block of K. For f32 scales it also makes each lane arrive when
  /// its copies have finished (PTX ISA, "cp.async.mbarrier.arrive").
  __device__ void operator()(uint32_t stage, uint32_t full) {
    int const lane = threadIdx.x % 32;
    uint32_t const target = stage + lane * 4;
    Scale const* source = word(row);
#pragma unroll
    for (int i = 0; i < TileM; i += 32, source += row_stride) copy(target + i * 4, source, i < rows ? 4 : 0);
    if (lane < 2) copy(target + TileM * 4, word(column), column_bytes);
    row += row_step;
    column += column_step;
    if constexpr (!kBytewise)
      asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(full) : "memory");
  }

  /// Closes the group of copies that were started since the last call.
  __device__ static void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

  /// One-byte scales: waits for the stage that was started `Lag` commits ago, converts it to f32 and arrives. The
  /// arrival releases what this thread wrote (PTX ISA, "mbarrier.arrive").
  template <int Lag>
  __device__ void upconvert(uint32_t stage, uint32_t full) {
    int const lane = threadIdx.x % 32;
    uint32_t const target = stage + lane * 4;
    asm volatile("cp.async.wait_group %0;" ::"n"(Lag) : "memory");
    uint32_t words[TileM / 32];
#pragma unroll
    for (int i = 0; i < TileM / 32; ++i) words[i] = load_word(target + i * 128);
    uint32_t const last = lane < 2 ? load_word(target + TileM * 4) : 0;
#pragma unroll
    for (int i = 0; i < TileM / 32; ++i) store(target + i * 128, words[i], row_place);  // 32 rows on, the same byte
    if (lane < 2) store(target + TileM * 4, last, column_place);
    row_place += uint32_t(row_step);
    column_place += uint32_t(column_step);
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(full) : "memory");
  }

 private:
  static_assert(TileM % 32 == 0, "each lane copies the scales of as many rows");
  static_assert(kBytewise || sizeof(Scale) == 4, "cp.async copies 4 bytes");

  /// The address of the aligned word that contains a scale. The word may extend up to 3 bytes beyond the tensor, but
  /// never beyond its allocation: cudaMalloc's allocations begin and end at multiples of 256 bytes.
  __device__ static Scale const* word(Scale const* scale) {
    if constexpr (kBytewise) return reinterpret_cast<Scale const*>(reinterpret_cast<uintptr_t>(scale) & ~uintptr_t(3));
    return scale;
  }

  __device__ static void copy(uint32_t target, Scale const* source, int bytes) { copy_word(target, source, bytes); }

  __device__ static uint32_t load_word(uint32_t source) {
    uint32_t word;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(source) : "memory");
    return word;
  }

  /// Replaces a word by the scale in it, in f32. The low bits of `place` select the byte.
  __device__ static void store(uint32_t target, uint32_t word, uint32_t place) {
    float const scale = to_float(Scale{uint8_t(word >> place % 4 * 8)});
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(target), "f"(scale) : "memory");
  }
};

/// Takes the place of BlockScales in kernels without block scales.
struct NoScales {
  __device__ void read(int) {}
  __device__ void release(int) {}
  __device__ float operator()(int, int) const { return 1.0f; }
  template <int>
  __device__ static constexpr int ordered(int i) {
    return i;
  }
};

/// The scales of one thread's sums: those of two rows in each of `Blocks` blocks of 64 rows, for up to two blocks of
/// columns. `Halves`: as for ScaleLoad.
template <class Stage, int Blocks, int TileM, int TileN, bool Halves>
struct BlockScales {
  /// Blocks of columns that a tile can overlap.
  static constexpr int kColumns = !Halves && kScaleBlock % TileN == 0 ? 1 : 2;
  /// Columns that certainly lie in one block, wherever the tile begins: the largest power of two that divides tile N,
  /// at most 128.
  static constexpr int kStep = min_of(TileN & -TileN, kScaleBlock);

  char const* stages;
  /// This thread's first row within the tile.
  int row;
  /// Columns of the tile that lie in its first block of columns.
  int first;
  float scales[2 * Blocks][kColumns] = {};

  __device__ BlockScales(char const* stages_, int warpgroup_row, int n)
      : stages(stages_),
        row(warpgroup_row + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4),
        first(kScaleBlock - n % kScaleBlock) {}

  /// Reads the scales of a stage.
  __device__ void read(int stage) {
    // This costs nothing and keeps the loads after the previous MMAs. Otherwise ptxas would issue the last MMA after
    // the loads, and MMAs of another warpgroup would come between.
    __syncwarp();
    float const* const values = reinterpret_cast<float const*>(stages + stage * Stage::kBytes);
    float columns[kColumns];
#pragma unroll
    for (int i = 0; i < kColumns; ++i) columns[i] = values[TileM + i];
#pragma unroll
    for (int i = 0; i < 2 * Blocks; ++i) {
      float const scale = values[row + i / 2 * 64 + i % 2 * 8];
#pragma unroll
      for (int j = 0; j < kColumns; ++j) scales[i][j] = scale * columns[j];
    }
  }

  /// Allows the stage to be refilled, after `read`. All lanes of the warp call it together.
  __device__ void release(int stage) { Stage::release(stage); }

  /// The order in which the registers of a part are scaled. Of halves, those with one scale follow each other, so that
  /// it is read from the register file once.
  template <int Registers>
  __device__ static constexpr int ordered(int i) {
    if constexpr (!Halves) return i;
    int const same = i % (Registers / 4), scale = i / (Registers / 4);
    return same / 2 * 8 + scale * 2 + same % 2;
  }

  /// The scale of register `index` of a fragment (PTX ISA, "Register fragments for wgmma.mma_async.m64nNk32").
  __device__ float operator()(int block, int index) const {
    float const (&columns)[kColumns] = scales[2 * block + index / 2 % 2];
    if constexpr (kColumns == 1) return columns[0];
    if constexpr (Halves) return columns[index / 4 % 2];  // four registers hold eight columns
    return index * 2 / kStep * kStep < first ? columns[0] : columns[1];
  }
};

}  // namespace gemmill
