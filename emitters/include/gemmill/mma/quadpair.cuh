/// The tensor cores of sm_70: each quadpair of a warp (lanes 4q to 4q + 3 and 4q + 16 to 4q + 19) multiplies 8 x 8 x 4.
///
/// The four quadpairs share 16 x 16 of D. Quadpairs q and q + 2 have the same rows, 2q and 2q + 1 the same columns.
/// Which of the 16 rows and columns they take is free. Here the first quadpair has 0 to 3 and 8 to 11, the second 4 to
/// 7 and 12 to 15. Lanes then load adjacent rows from shared memory (PTX ISA, "Matrix fragments for mma.m8n8k4 with
/// .f16").
#pragma once

#include <gemmill/convert.cuh>
#include <gemmill/copy/layout.cuh>
#include <gemmill/copy/shared.cuh>

namespace gemmill {

/// Reads rows (M or N) x 8 of a stage, 16 rows at a time; words[i] holds the operands of two MMAs for rows 16 * i and
/// on. K-major: a lane reads eight elements of its row. MN-major: a lane reads four rows at K = lane % 4, and the same
/// rows 4 further along K.
///
/// `Lanes` is the distance of lanes whose quadpairs have different rows: 4 for A, 8 for B.
template <class Layout, int Lanes>
struct QuadpairFragments {
  static_assert(sizeof(typename Layout::Element) == 2);
  static constexpr int kStepK = 8;
  static constexpr bool kPermuted = false;

  /// The first row that a lane reads of the 16.
  __device__ static int first_row(int lane) { return lane / 16 * 8 + lane / Lanes % 2 * 4; }

  /// The warp's rows begin at `mn` within the tile, and its K at `k`.
  __device__ QuadpairFragments(int mn, int k) {
    int const lane = threadIdx.x % 32;
    base = Layout::at(mn + first_row(lane) + (kAlongK ? lane % 4 : 0), k + (kAlongK ? 0 : lane % 4));
  }

  /// Reads the words `k` elements further along K.
  template <int Count>
  __device__ void load(uint32_t stage, int k, uint32_t (&words)[Count][4]) const {
    constexpr int kPiece = kAlongK ? 4 : 2;
#pragma unroll
    for (int i = 0; i < Count; ++i)
#pragma unroll
      for (int word = 0; word < 4; word += kPiece) {
        int const mn = i * 16, further = k + (kAlongK ? 0 : word * 2);
        auto const piece = load_shared<Pack<uint32_t, kPiece>>(opaque(stage + (base ^ Layout::flipped(mn, further))) +
                                                               Layout::added(mn, further));
#pragma unroll
        for (int j = 0; j < kPiece; ++j) words[i][word + j] = piece.elements[j];
      }
  }

 private:
  static constexpr bool kAlongK = Layout::kMajor == MajorIn::K;

  /// Byte offset of the lane's first words within a stage.
  int base;
};

/// How a warp multiplies 16 x 16 of D on sm_70: in two MMAs of K = 4. WarpMma has the same interface for later targets.
struct QuadpairMma {
  static constexpr bool kHasAsync = false;
  template <class Layout, class>
  struct FragmentsA : QuadpairFragments<Layout, 4> {
    using QuadpairFragments<Layout, 4>::QuadpairFragments;

    /// A lane's sums lie in pairs of rows that are two apart.
    __device__ static int position(int group, int row) { return group / 2 * 16 + group % 2 * 2 + row; }
  };
  template <class Layout, class>
  struct FragmentsB : QuadpairFragments<Layout, 8> {
    using QuadpairFragments<Layout, 8>::QuadpairFragments;

    __device__ static int position(int group, int column) { return group * 8 + column; }
  };

  __device__ static int sum_row(int lane) { return lane / 16 * 8 + lane / 4 % 2 * 4 + lane % 2; }
  __device__ static int sum_column(int lane) { return lane / 8 % 2 * 4 + lane / 2 % 2 * 2; }

  template <class Atom>
  __device__ static void multiply(uint32_t const (&a)[4], uint32_t const (&b)[4], float (&left)[4], float (&right)[4]) {
#pragma unroll
    for (int word = 0; word < 4; word += 2) Atom::multiply(a[word], a[word + 1], b[word], b[word + 1], left, right);
  }
};

}  // namespace gemmill
