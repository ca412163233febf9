/// Stages of A and B filled through plain addresses: by cp.async where target and alignment allow, or through registers.
#pragma once

#include <gemmill/copy/layout.cuh>
#include <gemmill/copy/shared.cuh>
#include <gemmill/copy/vectors.cuh>

namespace gemmill {

/// Copies `valid` of `Bytes` bytes and zeroes the rest; without valid bytes the source is not read (PTX ISA, "cp.async").
template <int Bytes>
__device__ inline void copy_async(char* target, void const* source, int valid) {
  if constexpr (Bytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(target)), "l"(source), "r"(valid)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(target)), "l"(source), "n"(Bytes),
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

/// One thread's part in filling stages of A or B, tile by tile along K, 16 bytes of a row at a time.
///
/// `begin` before the MMAs of an earlier stage and `finish` after them hide the latency of loads through registers;
/// cp.async needs no `finish`. `HasAsync`: whether the target has cp.async (sm_80 and later).
template <class Element, MajorIn Major, int Align, int TileMN, int TileK, int Threads, bool HasAsync>
struct StageCopy {
  using Layout = StageLayout<Element, Major == MajorIn::ANY ? MajorIn::K : Major, TileMN, TileK>;
  static constexpr int kSize = sizeof(Element);
  static constexpr int kUnit = Major == MajorIn::ANY ? 1 : max_of(1, Align / kSize);
  static constexpr bool kAsync = HasAsync && kUnit * kSize >= 4;
  using Vectors = TileVectors<Element, Major, TileMN, TileK, 16 / kSize, kUnit, Threads>;
  using Vector = Pack<Element, Vectors::kVector>;

  Vectors vectors;
  Vector loaded[kAsync ? 1 : Vectors::kCount];

  __device__ void begin(char* stage, int k_left) {
#pragma unroll
    for (int i = 0; i < Vectors::kCount; ++i) {
      if (outside(i)) break;
      if constexpr (kAsync) {
        int const valid = vectors.valid(i, k_left);
#pragma unroll
        for (int first = 0; first < Vectors::kVector; first += kUnit) {
          copy_async<kUnit * kSize>(stage + target(i) + first * kSize, vectors.at(i) + first * vectors.inner_stride,
                                    min(max(valid - first, 0), kUnit) * kSize);
        }
      } else {
        loaded[i] = vectors.load(i, k_left);
      }
    }
    vectors.advance();
  }

  __device__ void finish(char* stage) const {
    if constexpr (!kAsync) {
#pragma unroll
      for (int i = 0; i < Vectors::kCount; ++i) {
        if (outside(i)) break;
        *reinterpret_cast<Vector*>(stage + target(i)) = loaded[i];
      }
    }
  }

 private:
  /// Whether the tile has fewer rows than the threads fill at once, and none for this thread.
  __device__ bool outside(int index) const {
    return Vectors::kRows % Vectors::kRowStep != 0 && vectors.row_of(index) >= Vectors::kRows;
  }
  __device__ int target(int index) const {
    int const row = vectors.row_of(index);
    return Vectors::kInnerMN ? Layout::at(vectors.inner, row) : Layout::at(row, vectors.inner);
  }
};

}  // namespace gemmill
