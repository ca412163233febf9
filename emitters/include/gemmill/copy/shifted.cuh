/// Stages of K-major operands whose rows begin at any address. They are copied in aligned chunks of 16 bytes, without
/// realignment.
///
/// A row of a tile then begins up to 15 bytes into its first chunk: this is its shift. Fragments are put together when
/// they are read (mma/fragments.cuh). The alternatives are worse: cp.async copies no fewer than 4 bytes, and through
/// registers such rows would pass element by element. Rows that are aligned to 4 bytes could be copied the same way,
/// but 4 bytes at a time is faster, because a swizzled stage has no bank conflicts.
#pragma once

#include <gemmill/copy/async.cuh>

namespace gemmill {

/// One stage: rows along K, each from the 16-byte boundary at or before its beginning. `Align`: alignment of rows in
/// bytes.
template <class Element, int Align, int TileMN, int TileK>
struct ShiftedLayout {
  static constexpr int kRowBytes = TileK * int(sizeof(Element));
  /// Bytes from a row to the next: an odd multiple of 16, which spreads eight rows over all banks.
  static constexpr int kPitch = kRowBytes + 16;
  static constexpr int kBytes = TileMN * kPitch;
};

/// One thread's part in filling stages, tile by tile along K. It has the interface of StageCopy.
template <class Element, int Align, int TileMN, int TileK, int Threads>
struct ShiftedCopy {
  using Layout = ShiftedLayout<Element, Align, TileMN, TileK>;
  static constexpr bool kAsync = true;
  static constexpr int kSize = sizeof(Element);
  /// Elements that `begin` reads beyond the end of a tile along K.
  static constexpr int kBehind = 16 / kSize;
  /// Lanes take adjacent chunks of 16 bytes, of as many rows as there are threads for.
  static constexpr int kChunks = Layout::kPitch / 16;
  static constexpr int kRowStep = Threads / kChunks;
  static constexpr int kCount = ceil_div(TileMN, kRowStep);

  char const* matrix;
  int64_t stride;
  int mn_left;
  /// The row of this thread's first chunk, and the chunk's index within the row.
  int row, chunk;
  /// The address of the latest chunk, plus the shift of its row; the distance from there to the first chunk of the next
  /// tile.
  char const* source;
  int64_t to_next_tile;

  /// Begins at row (M or N) `mn` of `operand`. Strides are in elements.
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

  /// The fragments of a warp whose rows begin at `mn` within the tile, and its K at `k`.
  template <class Fragments>
  __device__ Fragments fragments(int mn, int k) const {
    return Fragments(mn, k, matrix, stride);
  }

  /// Starts part `part` of the `Parts` parts of a tile; call it for the parts in order. `Whole`: the tile and the
  /// elements read behind it lie within K.
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
    // Advances before the copy, not after it: a register that a copy reads can be written only some time later.
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

/// Whether an operand uses ShiftedCopy: its rows are K-major, and cp.async cannot copy units of their alignment.
template <MajorIn Major, int Align, bool HasAsync>
inline constexpr bool kIsShifted = HasAsync && Major == MajorIn::K && Align < 4;

/// How a thread fills stages of A or B.
template <class Element, MajorIn Major, int Align, int TileMN, int TileK, int Threads, bool HasAsync>
using OperandCopy = cuda::std::conditional_t<kIsShifted<Major, Align, HasAsync>,
                                             ShiftedCopy<Element, Align, TileMN, TileK, Threads>,
                                             StageCopy<Element, Major, Align, TileMN, TileK, Threads, HasAsync>>;

}  // namespace gemmill
