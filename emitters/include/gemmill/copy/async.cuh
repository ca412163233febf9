/// Fills stages of A and B through plain addresses: with cp.async if the target and the alignment allow it, else
/// through registers.
#pragma once

#include <gemmill/copy/layout.cuh>
#include <gemmill/copy/shared.cuh>
#include <gemmill/copy/vectors.cuh>

namespace gemmill {

/// Copies `Bytes` bytes if `copied`; else zeroes them without reading the source (PTX ISA, "cp.async": ignore-src).
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

/// Copies `valid` of `Bytes` bytes and zeroes the rest. If `valid` is 0, it does not read the source (PTX ISA,
/// "cp.async").
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

/// Waits until at most `Pending` of the copy groups that this thread committed are unfinished.
template <int Pending>
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

/// One thread's part in filling stages of A or B, tile by tile along K.
///
/// The lanes of a warp take adjacent units of a row. If each lane copied its own 16 bytes in four copies of 4, L1 would
/// look up four times as many lines, and shared memory would have bank conflicts. Through registers, a lane has 8
/// bytes, or 16 of an operand without a contiguous extent.
///
/// Call `begin` before the MMAs of an earlier stage and `finish` after them, which hides the latency of loads through
/// registers. cp.async needs no `finish`. `HasAsync`: whether the target has cp.async (sm_80 and later).
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
  /// Elements that `begin` reads beyond the end of a tile along K.
  static constexpr int kBehind = 0;

  Vectors vectors;
  /// Distance, in elements, from a tile's last vector to the first vector of the next tile; the source of the latest
  /// copy.
  int64_t to_next_tile;
  Element const* source;
  /// Byte offset of the first vector within a stage.
  int base;
  Vector loaded[kAsync ? 1 : Vectors::kCount];

  /// Begins at row (M or N) `mn` of `matrix`. Strides are in elements.
  __device__ StageCopy(Element const* matrix, int64_t mn_stride, int64_t k_stride, int mn, int mn_extent)
      : vectors(matrix, mn_stride, k_stride, mn, mn_extent),
        to_next_tile(vectors.tile_step - (Vectors::kCount - 1) * vectors.row_step),
        source(vectors.pointer - to_next_tile),
        base(Vectors::kInnerMN ? Layout::at(vectors.inner, vectors.row) : Layout::at(vectors.row, vectors.inner)) {}

  /// Whether each unit lies wholly inside or wholly outside the operand, for tiles that lie within K.
  __device__ bool is_whole() const {
    return !Vectors::kInnerMN || vectors.mn_left % kUnit == 0 || vectors.mn_left >= TileMN;
  }

  /// The fragments of a warp whose rows begin at `mn` within the tile, and its K at `k`.
  template <class Fragments>
  __device__ Fragments fragments(int mn, int k) const {
    return Fragments(mn, k);
  }

  /// Starts part `part` of the `Parts` parts of a tile; call it for the parts in order. `Whole`: the tile lies within
  /// K, and `is_whole()`.
  template <bool Whole, int Parts>
  __device__ void begin(char* stage, int k_left, int part) {
    int const first = part * Vectors::kCount / Parts, end = (part + 1) * Vectors::kCount / Parts;
    if constexpr (kAsync && (!Whole || Vectors::kCount * Vectors::kVector / kUnit > 32)) {
      // At the end of K, and with many vectors, few instructions and registers matter more than speed.
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
      // Advances before the copy, not after it: a register that a copy reads can be written only some time later.
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
  /// Whether the tile has fewer rows than the threads fill at once, and this thread has none.
  __device__ bool outside(int index) const {
    return Vectors::kRows % Vectors::kRowStep != 0 && vectors.row_of(index) >= Vectors::kRows;
  }
  /// Address of a vector in the stage at address `stage`.
  __device__ uint32_t target(uint32_t stage, int index) const {
    int const further = index * Vectors::kRowStep;
    int const mn = Vectors::kInnerMN ? 0 : further, k = Vectors::kInnerMN ? further : 0;
    return opaque(stage + (base ^ Layout::flipped(mn, k))) + Layout::added(mn, k);
  }
};

}  // namespace gemmill
