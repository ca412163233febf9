/// Scales of blocks of A and B, on their way to the sums they multiply.
#pragma once

#include <gemmill/kernel/params.cuh>
#include <gemmill/pipeline/named_barrier.cuh>

namespace gemmill {

/// K that shares a scale; a stage is as deep.
inline constexpr int kScaleBlock = 128;

/// The scales of one stage in shared memory: A's, one for each row of the tile, and B's, for the two blocks of columns
/// that a tile meets at most (rule `block-scales`).
///
/// It is filled anew when all threads that read it have arrived at its named barrier: racecheck follows those, but no lane
/// that arrives at an mbarrier for its warp.
template <int TileM, int Readers>
struct ScaleStage {
  static constexpr int kBytes = (TileM + 4) * int(sizeof(float));  // f32, whatever the scales are in memory
  static constexpr int kArrivals = 32;
  /// Those that read, and the warp that fills.
  static constexpr int kThreads = Readers + 32;

  /// Every reader, when it has read the stage.
  __device__ static void release(int stage) { named_barrier::arrive(named_barrier::kScales + stage, kThreads); }
  /// The warp that fills, before it fills the stage anew.
  __device__ static void acquire(int stage) { named_barrier::sync(named_barrier::kScales + stage, kThreads); }
};

/// Copies the scales of one tile, stage by stage. One warp does, with cp.async, 4 bytes at a time, so that scales of any
/// strides come straight from where the caller has them. Each lane arrives at the stage's full barrier. Addresses are made
/// once a tile: they took as long as the MMAs of a stage.
///
/// Of scales of a byte (ue8m0) the aligned word around each is copied, as cp.async takes words alone.
/// When it is there, the lane that copied it writes f32 in its place.
template <int TileM, class Scale>
struct ScaleLoad {
  static constexpr bool kBytewise = sizeof(Scale) == 1;

  Scale const* row;
  Scale const* column;
  /// Elements from a row of this lane to its next, and from a block of K to the next.
  int64_t row_stride, row_step, column_step;
  /// Rows of the tile from this lane's first on that lie inside the problem.
  int rows;
  /// Bytes of a word to read of this lane's block of columns: 4 or 0.
  int column_bytes;
  /// Of scales of a byte: the low bits of the addresses of those that are to be upconverted next.
  uint32_t row_place, column_place;

  __device__ ScaleLoad(GemmParams const& params, int m, int n, int k_block, int batch) {
    ScaleParams const& a = params.a_scale;
    ScaleParams const& b = params.b_scale;
    int const lane = threadIdx.x % 32;
    int const block = n / kScaleBlock + lane;
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

  /// Starts to fill a stage with the scales of the next block of K. Of f32 nothing else remains to be done: each lane
  /// arrives when its copies have (PTX ISA, "cp.async.mbarrier.arrive").
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

  /// Ends what copies have been started since the last call.
  __device__ static void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

  /// Scales of a byte: upconverts the stage that was started `Lag` commits ago, when its words are there, and arrives. An
  /// arrival releases what its thread wrote (PTX ISA, "mbarrier.arrive").
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

  /// The aligned word that a scale lies in. It may reach 3 bytes beyond the tensor, never beyond its memory: what
  /// cudaMalloc gives begins and ends at multiples of 256 bytes.
  __device__ static Scale const* word(Scale const* scale) {
    if constexpr (kBytewise) return reinterpret_cast<Scale const*>(reinterpret_cast<uintptr_t>(scale) & ~uintptr_t(3));
    return scale;
  }

  /// 4 bytes, or where there are 0 none, and zeros in place.
  __device__ static void copy(uint32_t target, Scale const* source, int bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(target), "l"(source), "r"(bytes) : "memory");
  }

  __device__ static uint32_t load_word(uint32_t source) {
    uint32_t word;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(source) : "memory");
    return word;
  }

  /// Writes f32 in place of the word around a scale at an address with these low bits.
  __device__ static void store(uint32_t target, uint32_t word, uint32_t place) {
    float const scale = to_float(Scale{uint8_t(word >> place % 4 * 8)});
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(target), "f"(scale) : "memory");
  }
};

/// No scales: sums move as they are.
struct NoScales {
  __device__ void read(int) {}
  __device__ void release(int) {}
  __device__ float operator()(int, int) const { return 1.0f; }
};

/// The scales of one thread's sums: of two rows in each of `Blocks` blocks of 64, and of two blocks of columns.
template <class Stage, int Blocks, int TileM, int TileN>
struct BlockScales {
  /// Blocks of columns that a tile may meet.
  static constexpr int kColumns = kScaleBlock % TileN == 0 ? 1 : 2;
  /// Columns that lie in one block, wherever the tile begins: the largest power of two in tile N, at most 128.
  static constexpr int kStep = min_of(TileN & -TileN, kScaleBlock);

  char const* stages;
  /// This thread's first row within the tile.
  int row;
  /// Columns of the tile in its first block of columns.
  int first;
  float scales[2 * Blocks][kColumns] = {};

  __device__ BlockScales(char const* stages_, int warpgroup_row, int n)
      : stages(stages_),
        row(warpgroup_row + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4),
        first(kScaleBlock - n % kScaleBlock) {}

  /// Reads the scales of a stage.
  __device__ void read(int stage) {
    // It costs nothing and keeps the loads behind the MMAs before: ptxas would issue the last MMA when they are done, and
    // MMAs of another warpgroup come in between.
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

  /// Lets the stage be filled anew, once `read`. The warp calls it together.
  __device__ void release(int stage) { Stage::release(stage); }

  /// The scale of register `index` of a fragment (PTX ISA, "Register fragments for wgmma.mma_async.m64nNk32").
  __device__ float operator()(int block, int index) const {
    float const (&columns)[kColumns] = scales[2 * block + index / 2 % 2];
    if constexpr (kColumns == 1) return columns[0];
    return index * 2 / kStep * kStep < first ? columns[0] : columns[1];
  }
};

}  // namespace gemmill
