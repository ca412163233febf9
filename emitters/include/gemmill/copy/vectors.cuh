/// Tiles of A and B, read through plain addresses by all threads of a CTA, with any strides and extents.
#pragma once

#include <gemmill/convert.cuh>
#include <gemmill/kernel/direct_params.cuh>

namespace gemmill {

/// One thread's vectors of the tiles of A or B along K. A vector is `Vector` elements along the tile's inner extent: M
/// or N for MajorIn::MN, else K. All threads share the rows, and a thread's rows are `kRowStep` apart. Each thread
/// keeps its place along the inner extent.
///
/// `Unit` elements are adjacent and aligned to their size together; a vector is `Vector / Unit` such units. Elements
/// outside the operand read as zero.
template <class Element_, MajorIn Major_, int TileMN, int TileK, int Vector_, int Unit_, int Threads>
struct TileVectors {
  using Element = Element_;
  static constexpr MajorIn kMajor = Major_;
  static constexpr bool kInnerMN = kMajor == MajorIn::MN;
  static constexpr int kVector = Vector_, kUnit = Unit_;
  static constexpr int kInner = kInnerMN ? TileMN : TileK;
  static constexpr int kRows = kInnerMN ? TileK : TileMN;
  static constexpr int kPerRow = kInner / kVector;
  static constexpr int kRowStep = Threads / kPerRow;
  /// The number of vectors of a thread.
  static constexpr int kCount = ceil_div(kRows, kRowStep);
  static_assert(kInner % kVector == 0 && Threads % kPerRow == 0, "a row is whole vectors, and threads share whole rows");
  static_assert(kMajor != MajorIn::ANY || kUnit == 1, "without a contiguous extent, elements are read one by one");

  /// The first vector in the tile at K = 0; `advance` moves it.
  Element const* pointer;
  /// Strides in elements: along the inner extent, between this thread's rows, and between tiles.
  int64_t inner_stride, row_step, tile_step;
  /// The coordinates of the first vector within a tile.
  int inner, row;
  /// The extent of M or N from the tile's origin on.
  int mn_left;

  __device__ TileVectors(Element const* matrix, int64_t mn_stride, int64_t k_stride, int mn, int mn_extent)
      : inner(threadIdx.x % kPerRow * kVector), row(threadIdx.x / kPerRow), mn_left(mn_extent - mn) {
    int64_t const strided = kInnerMN ? k_stride : mn_stride;
    inner_stride = kMajor == MajorIn::ANY ? k_stride : 1;
    row_step = kRowStep * strided;
    tile_step = kMajor == MajorIn::K ? TileK : TileK * k_stride;
    pointer = matrix + (kMajor == MajorIn::MN ? int64_t(mn) : mn * mn_stride) + row * strided + inner * inner_stride;
  }

  /// The row of a vector within the tile. It is `kRows` or more if the tile has fewer rows than the threads read at
  /// once.
  __device__ int row_of(int index) const { return row + index * kRowStep; }
  __device__ Element const* at(int index) const { return pointer + index * row_step; }
  /// Elements of a vector that lie in the operand, if `k_left` elements remain along K. May be negative or above
  /// Vector.
  __device__ int valid(int index, int k_left) const {
    int const rows = kInnerMN ? k_left : mn_left;
    int const along = kInnerMN ? mn_left : k_left;
    return row_of(index) < rows ? along - inner : 0;
  }
  /// Whether an element of a vector lies in the operand, for a tile that lies within K.
  __device__ bool inside(int index, int element) const {
    return (kInnerMN ? inner + element : row_of(index)) < mn_left;
  }
  /// Moves on to the next tile along K.
  __device__ void advance() { pointer += tile_step; }

  /// Reads one vector.
  __device__ Pack<Element, kVector> load(int index, int k_left) const {
    Pack<Element, kVector> loaded;
    Element const* const source = at(index);
    int const count = valid(index, k_left);
#pragma unroll
    for (int first = 0; first < kVector; first += kUnit) {
      auto& unit = reinterpret_cast<Pack<Element, kUnit>&>(loaded.elements[first]);
      if (kUnit > 1 && first + kUnit <= count) {
        unit = *reinterpret_cast<Pack<Element, kUnit> const*>(source + first);
      } else {
#pragma unroll
        for (int i = 0; i < kUnit; ++i) {
          unit.elements[i] = first + i < count ? source[(first + i) * inner_stride] : Element{};
        }
      }
    }
    return loaded;
  }
};

}  // namespace gemmill
