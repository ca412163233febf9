/// Stages of A and B filled through plain addresses: by cp.async where target and alignment allow, or through registers.
#pragma once

#include <gemmill/copy/layout.cuh>
#include <gemmill/copy/shared.cuh>
#include <gemmill/copy/vectors.cuh>

namespace gemmill {

/// Copies `Bytes` bytes, or zeroes them without reading the source (PTX ISA, "cp.async": ignore-src).
template <int Bytes>
__device__ inline void copy_or_zero_async(uint32_t target, void const* source, bool copied) {
  if constexpr (Bytes == 16) {
    asm volatile(
        "{ .reg .pred ignored; setp.eq.s32 ignored, %2, 0; cp.async.cg.shared.global [%0], [%1], 16, ignored; }" ::"r"(
            target),
        "l"(source), "r"(int(copied))
        : "memory");
  } else {
    asm volatile(
        "{ .reg .pred ignored; setp.eq.s32 ignored, %3, 0; cp.async.ca.shared.global [%0], [%1], %2, ignored; }" ::"r"(
            target),
        "l"(source), "n"(Bytes), "r"(int(copied))
        : "memory");
  }
}

/// Copies `valid` of `Bytes` bytes and zeroes the rest; without valid bytes the source is not read (PTX ISA, "cp.async").
template <int Bytes>
__device__ inline void copy_async(uint32_t target, void const* source, int valid) {
  if constexpr (Bytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(valid)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(target), "l"(source), "n"(Bytes),
                 "r"(valid)
                 : "memory");
  }
}

__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits until at most `Pending` of the groups that this thread committed are under way.
template <int Pending>
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

/// One thread's part in filling stages of A or B, tile by tile along K.
///
/// The lanes of a warp take neighbouring units of a row: taking 16 bytes each in four copies of 4 looks up four times as
/// many lines in L1, and meets bank conflicts in shared memory. Through registers a lane has 8 bytes, and 16 of what has
/// no contiguous extent.
///
/// `begin` before the MMAs of an earlier stage and `finish` after them hide the latency of loads through registers;
/// cp.async needs no `finish`. `HasAsync`: whether the target has cp.async (sm_80 and later).
template <class Element, MajorIn Major, int Align, int TileMN, int TileK, int Threads, bool HasAsync>
struct StageCopy {
  using Layout = StageLayout<Element, Major == MajorIn::ANY ? MajorIn::K : Major, TileMN, TileK>;
  static constexpr int kSize = sizeof(Element);
  static constexpr int kUnit = Major == MajorIn::ANY ? 1 : max_of(1, Align / kSize);
  static constexpr bool kAsync = HasAsync && kUnit * kSize >= 4;
  static constexpr int kInner = Major == MajorIn::MN ? TileMN : TileK;
  static constexpr int kLane = kAsync ? kUnit : max_of(kUnit, 8 / kSize);
  static constexpr int kVector = Major == MajorIn::ANY ? 16 / kSize : max_of(kLane, kInner / Threads);
  using Vectors = TileVectors<Element, Major, TileMN, TileK, kVector, kUnit, Threads>;
  using Vector = Pack<Element, Vectors::kVector>;
  /// Elements that are read behind a tile.
  static constexpr int kBehind = 0;

  Vectors vectors;
  /// How far the first vector of the next tile is from a tile's last, and where the latest is that was copied.
  int64_t to_next_tile;
  Element const* source;
  /// Where the first vector lies in a stage.
  int base;
  Vector loaded[kAsync ? 1 : Vectors::kCount];

  /// Of the matrix from row (M or N) `mn` on; strides in elements.
  __device__ StageCopy(Element const* matrix, int64_t mn_stride, int64_t k_stride, int mn, int mn_extent)
      : vectors(matrix, mn_stride, k_stride, mn, mn_extent),
        to_next_tile(vectors.tile_step - (Vectors::kCount - 1) * vectors.row_step),
        source(vectors.pointer - to_next_tile),
        base(Vectors::kInnerMN ? Layout::at(vectors.inner, vectors.row) : Layout::at(vectors.row, vectors.inner)) {}

  /// Whether units lie in the operand or outside, but never across its end, in tiles of which K has all.
  __device__ bool is_whole() const {
    return !Vectors::kInnerMN || vectors.mn_left % kUnit == 0 || vectors.mn_left >= TileMN;
  }

  /// The words of a warp's rows from `mn` on, from `k` on.
  template <class Fragments>
  __device__ Fragments fragments(int mn, int k) const {
    return Fragments(mn, k);
  }

  /// Begins one of `Parts` parts of a tile, in their order. `Whole`: K has all of the tile, and units are whole.
  template <bool Whole, int Parts>
  __device__ void begin(char* stage, int k_left, int part) {
    int const first = part * Vectors::kCount / Parts, end = (part + 1) * Vectors::kCount / Parts;
    if constexpr (kAsync && (!Whole || Vectors::kCount * Vectors::kVector / kUnit > 32)) {
      // At the end of K, and where they are many, few instructions and registers are worth more than speed.
#pragma unroll 1
      for (int i = first; i < end && !outside(i); ++i) begin_vector<Whole>(stage, k_left, i);
    } else {
#pragma unroll
      for (int i = first; i < end; ++i) {
        if (outside(i)) break;
        begin_vector<Whole>(stage, k_left, i);
      }
    }
  }

  __device__ void finish(char* stage) const {
    if constexpr (!kAsync) {
#pragma unroll
      for (int i = 0; i < Vectors::kCount; ++i) {
        if (outside(i)) break;
        *reinterpret_cast<Vector*>(stage + target(0, i)) = loaded[i];
      }
    }
  }

 private:
  template <bool Whole>
  __device__ void begin_vector(char* stage, int k_left, int index) {
    if constexpr (kAsync) {
      // Before the copy, not after it: a register that a copy reads is free to be written only some time later.
      source += index == 0 ? to_next_tile : vectors.row_step;
#pragma unroll
      for (int element = 0; element < Vectors::kVector; element += kUnit) {
        uint32_t const unit = target(shared_address(stage), index) + element * kSize;
        Element const* const from = source + element * vectors.inner_stride;
        if constexpr (Whole) {
          copy_or_zero_async<kUnit * kSize>(unit, from, vectors.inside(index, element));
        } else {
          int const valid = vectors.valid(index, k_left) - element;
          copy_async<kUnit * kSize>(unit, from, min(max(valid, 0), kUnit) * kSize);
        }
      }
    } else {
      loaded[index] = vectors.load(index, Whole ? TileK : k_left);
      if (index == Vectors::kCount - 1) vectors.advance();
    }
  }
  /// Whether the tile has fewer rows than the threads fill at once, and none for this thread.
  __device__ bool outside(int index) const {
    return Vectors::kRows % Vectors::kRowStep != 0 && vectors.row_of(index) >= Vectors::kRows;
  }
  /// Where a vector goes in the stage at that address.
  __device__ uint32_t target(uint32_t stage, int index) const {
    int const further = index * Vectors::kRowStep;
    int const mn = Vectors::kInnerMN ? 0 : further, k = Vectors::kInnerMN ? further : 0;
    return opaque(stage + (base ^ Layout::flipped(mn, k))) + Layout::added(mn, k);
  }
};

}  // namespace gemmill
