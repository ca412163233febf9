/// Stages of K-major operands whose rows begin anywhere: copied as they lie, 16 aligned bytes at a time.
///
/// A row of a tile then begins up to 15 bytes into its first 16: its shift. cp.async copies no less than 4 bytes, and
/// through registers such rows would pass element by element; here words are put together as fragments are read
/// (mma/fragments.cuh). Rows that are aligned to 4 bytes could be copied so too, but their words, unlike those of a
/// swizzled stage, meet in banks: 4 bytes at a time is faster.
#pragma once

#include <gemmill/copy/async.cuh>

namespace gemmill {

/// One stage: rows along K, each from the multiple of 16 bytes on at or before which it begins. `Align`: of rows, in bytes.
template <class Element, int Align, int TileMN, int TileK>
struct ShiftedLayout {
  static constexpr int kRowBytes = TileK * int(sizeof(Element));
  /// From a row to the next; as an odd number of 16 bytes it spreads eight rows over all banks.
  static constexpr int kPitch = kRowBytes + 16;
  static constexpr int kBytes = TileMN * kPitch;
};

/// One thread's part in filling stages, tile by tile along K; as StageCopy's.
template <class Element, int Align, int TileMN, int TileK, int Threads>
struct ShiftedCopy {
  using Layout = ShiftedLayout<Element, Align, TileMN, TileK>;
  static constexpr bool kAsync = true;
  static constexpr int kSize = sizeof(Element);
  /// Elements that are read behind a tile.
  static constexpr int kBehind = 16 / kSize;
  /// Lanes take neighbouring chunks of 16 bytes, of as many rows as there are threads for.
  static constexpr int kChunks = Layout::kPitch / 16;
  static constexpr int kRowStep = Threads / kChunks;
  static constexpr int kCount = ceil_div(TileMN, kRowStep);

  char const* matrix;
  int64_t stride;
  int mn_left;
  /// The row of this thread's first chunk, and its place in the row.
  int row, chunk;
  /// Its row's shift beyond where the latest chunk that was copied begins; how far the next tile's first is from there.
  char const* source;
  int64_t to_next_tile;

  /// Of the matrix from row (M or N) `mn` on; strides in elements.
  __device__ ShiftedCopy(Element const* operand, int64_t mn_stride, int64_t, int mn, int mn_extent)
      : matrix(reinterpret_cast<char const*>(operand + mn * mn_stride)),
        stride(mn_stride * kSize),
        mn_left(mn_extent - mn),
        row(threadIdx.x < kRowStep * kChunks ? threadIdx.x / kChunks : TileMN),
        chunk(threadIdx.x % kChunks),
        to_next_tile(Layout::kRowBytes - (kCount - 1) * kRowStep * stride) {
    source = matrix + row * stride + chunk * 16 - to_next_tile;
  }

  __device__ bool is_whole() const { return true; }

  /// The words of a warp's rows from `mn` on, from `k` on.
  template <class Fragments>
  __device__ Fragments fragments(int mn, int k) const {
    return Fragments(mn, k, matrix, stride);
  }

  /// Begins one of `Parts` parts of a tile, in their order. `Whole`: K has the tile and what is read behind it.
  template <bool Whole, int Parts>
  __device__ void begin(char* stage, int k_left, int part) {
    int const first = part * kCount / Parts, end = (part + 1) * kCount / Parts;
    if constexpr (Whole && kCount <= 32) {
#pragma unroll
      for (int i = first; i < end; ++i) begin_chunk<true>(stage, k_left, i);
    } else {
#pragma unroll 1
      for (int i = first; i < end; ++i) begin_chunk<Whole>(stage, k_left, i);
    }
  }

  __device__ void finish(char*) const {}

 private:
  template <bool Whole>
  __device__ void begin_chunk(char* stage, int k_left, int index) {
    // Before the copy, not after it: a register that a copy reads is free to be written only some time later.
    source += index == 0 ? to_next_tile : kRowStep * stride;
    int const at = row + index * kRowStep;
    if (at >= TileMN) return;
    int const shift = reinterpret_cast<uintptr_t>(source) % 16;
    uint32_t const target = shared_address(stage) + at * Layout::kPitch + chunk * 16;
    if constexpr (Whole) {
      copy_or_zero_async<16>(target, source - shift, at < mn_left);
    } else {
      int const valid = at < mn_left ? k_left * kSize + shift - chunk * 16 : 0;
      copy_async<16>(target, source - shift, min(max(valid, 0), 16));
    }
  }
};

/// Whether an operand is copied so: where rows are K-major and cp.async cannot copy as little as they are aligned to.
template <MajorIn Major, int Align, bool HasAsync>
inline constexpr bool kIsShifted = HasAsync && Major == MajorIn::K && Align < 4;

/// How a thread fills stages of A or B.
template <class Element, MajorIn Major, int Align, int TileMN, int TileK, int Threads, bool HasAsync>
using OperandCopy = cuda::std::conditional_t<kIsShifted<Major, Align, HasAsync>,
                                             ShiftedCopy<Element, Align, TileMN, TileK, Threads>,
                                             StageCopy<Element, Major, Align, TileMN, TileK, Threads, HasAsync>>;

}  // namespace gemmill
