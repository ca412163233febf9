/// Operands of mma.sync from a stage in shared memory to registers, whatever the type and the majorness.
///
/// Every mma.sync of the shapes m16n8 reads A as 16 rows of 8 words along K and B as 8 columns of 8 words; a word is 32
/// bits of elements that are neighbours along K, or one f64. Lane l holds words l % 4 and l % 4 + 4 of rows l / 4 and
/// l / 4 + 8 (PTX ISA, "Matrix fragments for mma.m16n8k8" and the like).
#pragma once

#include <gemmill/copy/async.cuh>

namespace gemmill {

/// Reads rows (M or N) x 8 words of a stage, 16 rows at a time: words[i][j] is of group 2i + j % 2 of eight rows, row
/// l / 4 of it, and of word l % 4 + j / 2 * 4.
///
/// Where memory's neighbours along M or N are bytes, a lane reads four of them at once, from four rows along K, and
/// transposes: of 32 rows, group g then holds rows g, g + 4, g + 8 and so on.
template <class Layout, class Word>
struct Fragments {
  using Element = typename Layout::Element;
  static constexpr int kWordElements = sizeof(Word) / sizeof(Element);
  static constexpr int kStepK = 8 * kWordElements;
  static constexpr bool kPermuted = Layout::kMajor == MajorIn::MN && sizeof(Element) == 1;

  /// Where row `row` of group `group` of eight rows lies in the tile.
  __device__ static int position(int group, int row) {
    return kPermuted ? group / 4 * 32 + row * 4 + group % 4 : group * 8 + row;
  }

  template <int Count>
  __device__ static void load(char const* stage, int mn, int k, Word (&words)[Count][4]) {
    static_assert(!kPermuted || Count % 2 == 0, "bytes are transposed 32 rows at a time");
#pragma unroll
    for (int i = 0; i < Count; i += 1 + kPermuted) {
      if constexpr (kPermuted) {
        load_transposed(stage, mn + i * 16, k, words[i], words[i + 1]);
      } else {
        load_16(stage, mn + i * 16, k, words[i]);
      }
    }
  }

 private:
  __device__ static void load_16(char const* stage, int mn, int k, Word (&words)[4]) {
    int const lane = threadIdx.x % 32;
    if constexpr (Layout::kMajor == MajorIn::K && sizeof(Word) == 4) {
      load_matrices<false>(stage + Layout::at(mn + lane % 16, k + lane / 16 * (kStepK / 2)), words);
    } else if constexpr (sizeof(Element) == 2) {
      load_matrices<true>(stage + Layout::at(mn + lane / 8 % 2 * 8, k + lane / 16 * 8 + lane % 8), words);
    } else {
      static_assert(kWordElements == 1, "neighbours along K are a word");
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        int const row = mn + lane / 4 + i % 2 * 8, word = lane % 4 + i / 2 * 4;
        words[i] = *reinterpret_cast<Word const*>(stage + Layout::at(row, k + word));
      }
    }
    if constexpr (cuda::std::is_same_v<Element, tf32>) {
#pragma unroll
      for (int i = 0; i < 4; ++i) asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(words[i]) : "f"(__uint_as_float(words[i])));
    }
  }

  __device__ static void load_transposed(char const* stage, int mn, int k, Word (&low)[4], Word (&high)[4]) {
    int const lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Word line[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        int const at = Layout::at(mn + lane / 4 * 4, k + (lane % 4 + half * 4) * 4 + i);
        line[i] = *reinterpret_cast<Word const*>(stage + at);
      }
      // Bytes 0 and 1, then 2 and 3, of two lines each, side by side; then of all four.
      Word const first[2] = {__byte_perm(line[0], line[1], 0x5140), __byte_perm(line[2], line[3], 0x5140)};
      Word const second[2] = {__byte_perm(line[0], line[1], 0x7362), __byte_perm(line[2], line[3], 0x7362)};
      low[2 * half] = __byte_perm(first[0], first[1], 0x5410);
      low[2 * half + 1] = __byte_perm(first[0], first[1], 0x7632);
      high[2 * half] = __byte_perm(second[0], second[1], 0x5410);
      high[2 * half + 1] = __byte_perm(second[0], second[1], 0x7632);
    }
  }
};

/// How a warp of sm_80 or later multiplies 16 x 16 of D, in two MMAs of 16 x 8.
struct WarpMma {
  /// Whether the target has cp.async.
  static constexpr bool kHasAsync = true;
  template <class Layout, class Word>
  using FragmentsA = Fragments<Layout, Word>;
  template <class Layout, class Word>
  using FragmentsB = Fragments<Layout, Word>;

  /// Where a lane's sums lie in a group of eight rows, and of eight columns of which it has two neighbours.
  __device__ static int sum_row(int lane) { return lane / 4; }
  __device__ static int sum_column(int lane) { return lane % 4 * 2; }

  /// `left` and `right`: sums of eight columns each, of two groups of eight rows.
  template <class Atom, class Word, class Sum>
  __device__ static void multiply(Word const (&a)[4], Word const (&b)[4], Sum (&left)[4], Sum (&right)[4]) {
    Atom::multiply(a, b[0], b[2], left);
    Atom::multiply(a, b[1], b[3], right);
  }
};

}  // namespace gemmill
