/// Scales that multiply fp8 sums as they leave the tensor cores.
#pragma once

#include <gemmill/kernel/params.cuh>

namespace gemmill {

/// K that shares a scale; a stage is as deep.
inline constexpr int kScaleBlock = 128;

/// No scales: sums are promoted as they are.
struct Unscaled {
  __device__ Unscaled(GemmParams const&, int, int, int) {}
  __device__ void load(GemmParams const&, int) {}
  __device__ void multiply() {}
  __device__ float operator()(int, int) const { return 1.0f; }
};

/// A scaled 1 x 128, B 128 x 128, as DeepSeek-V3 does: the scales that one thread needs for one stage.
///
/// A tile meets at most two blocks of columns (rule `block-scales`).
template <int Blocks, int TileN>
struct BlockScales {
  /// Whether all tiles lie within one block of columns.
  static constexpr bool kAligned = kScaleBlock % TileN == 0;
  static constexpr int kBlocksN = kAligned ? 1 : 2;

  float const* a;
  float const* b;
  /// Rows of this thread's that lie inside the problem: bit 2 * block + half.
  uint32_t inside;
  /// Columns of the tile in its first block of columns.
  int first;
  /// Scales of rows and of blocks of columns, read a stage ahead: nothing waits for them.
  float rows[2 * Blocks];
  float columns[kBlocksN];
  float scales[2 * Blocks][kBlocksN];

  /// For the rows from m on and the columns from n on of a matrix of the batch.
  __device__ BlockScales(GemmParams const& params, int m, int n, int batch) {
    int const row = m + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
    a = params.a_scale.pointer + batch * params.a_scale.batch_stride + row * params.a_scale.stride;
    b = params.b_scale.pointer + batch * params.b_scale.batch_stride + n / kScaleBlock * params.b_scale.stride;
    inside = 0;
#pragma unroll
    for (int i = 0; i < 2 * Blocks; ++i) inside |= uint32_t(row + i * 8 + i / 2 * 48 < params.m) << i;
    first = kScaleBlock - n % kScaleBlock;
    // Without a second block of columns there is no scale to read for it.
    if (first >= params.n - n) first = TileN;
  }

  /// Starts to read the scales of one block of K.
  __device__ void load(GemmParams const& params, int k_block) {
    columns[0] = b[k_block * params.b_scale.k_stride];
    if constexpr (!kAligned) columns[1] = first < TileN ? b[k_block * params.b_scale.k_stride + params.b_scale.stride] : 0;
#pragma unroll
    for (int i = 0; i < 2 * Blocks; ++i) {
      int const row = i * 8 + i / 2 * 48;
      rows[i] = inside >> i & 1 ? a[k_block * params.a_scale.k_stride + row * params.a_scale.stride] : 0;
    }
  }

  /// Multiplies what `load` has read.
  __device__ void multiply() {
#pragma unroll
    for (int i = 0; i < 2 * Blocks; ++i)
#pragma unroll
      for (int j = 0; j < kBlocksN; ++j) scales[i][j] = rows[i] * columns[j];
  }

  /// The scale of register `index` of a fragment (PTX ISA, "Register fragments for wgmma.mma_async.m64nNk32").
  __device__ float operator()(int block, int index) const {
    float const (&row)[kBlocksN] = scales[2 * block + index / 2 % 2];
    if constexpr (kAligned) return row[0];
    return index / 4 * 8 < first ? row[0] : row[1];
  }
};

}  // namespace gemmill
