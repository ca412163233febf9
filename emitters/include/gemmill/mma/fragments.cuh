/// Operands of mma.sync: reads them from a stage in shared memory to registers, for any type and majorness.
///
/// Every mma.sync of shape m16n8 reads A as 16 rows, and B as 8 columns, of 32 bytes along K. These are 8 words of 32
/// bits, each with adjacent elements along K, or 4 words of one f64. Lane l holds word l % 4 of rows l / 4 and l / 4 +
/// 8. With 8 words it also holds word l % 4 + 4 (PTX ISA, "Matrix fragments for mma.m16n8k8", "m16n8k4" and similar).
#pragma once

#include <gemmill/copy/shifted.cuh>

namespace gemmill {

enum class Side { A, B };

/// Rounds to the nearest tf32. Ties go to even on sm_90 and later, and away from zero before, where no single
/// instruction rounds to even.
__device__ inline uint32_t to_tf32(float x) {
  uint32_t rounded;
#if __CUDA_ARCH__ >= 900
  asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(x));
#else
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(x));
#endif
  return rounded;
}

/// The number of words of each row that a lane holds.
template <class Word>
inline constexpr int kLaneWords = 8 / int(sizeof(Word));

/// Maps word j of 16 rows to its group of eight rows and its half of a step of K, and back. `Words` is the number of
/// words per row.
template <Side kSide, int Words>
struct FragmentOrder {
  __device__ static constexpr int group_of(int j) { return kSide == Side::A ? j % 2 : j / Words; }
  __device__ static constexpr int half_of(int j) { return kSide == Side::A ? j / 2 : j % Words; }
  __device__ static constexpr int place_of(int group, int half) {
    return kSide == Side::A ? group + 2 * half : 2 * group + half;
  }
};

/// Rounds the words of a tf32 operand, which are f32 in memory. Other types stay as they are.
template <class Element, class Word, int Count>
__device__ inline void round_words(Word (&words)[Count]) {
  if constexpr (cuda::std::is_same_v<Element, tf32>) {
#pragma unroll
    for (int j = 0; j < Count; ++j) words[j] = to_tf32(__uint_as_float(words[j]));
  }
}

/// Reads rows (M or N) x 32 bytes of a stage, 16 rows at a time. words[i] has a lane's words of rows l / 4 of two
/// groups of eight, in the order in which MMAs take them: for A the two groups interleaved, for B one group after the
/// other.
///
/// If bytes are adjacent along M or N, a lane reads four adjacent bytes from each of four rows along K and transposes
/// them. Of 32 rows, group g then holds rows g, g + 4, g + 8 and so on.
template <class Layout, class Word, Side kSide>
struct Fragments {
  using Element = typename Layout::Element;
  static constexpr int kWordElements = sizeof(Word) / sizeof(Element);
  static constexpr int kStepK = 32 / int(sizeof(Element));
  static constexpr bool kPermuted = Layout::kMajor == MajorIn::MN && sizeof(Element) == 1;

  /// The row, within the warp's tile, of row `row` of group `group` of eight rows.
  __device__ static int position(int group, int row) {
    return kPermuted ? group / 4 * 32 + row * 4 + group % 4 : group * 8 + row;
  }

  /// The warp's rows begin at `mn` within the tile, and its K at `k`.
  __device__ Fragments(int mn, int k) {
    int const lane = threadIdx.x % 32;
    if constexpr (kMatrices) {
      int const group = Order::group_of(lane / 8), half = Order::half_of(lane / 8);
      constexpr bool kAlongK = Layout::kMajor == MajorIn::K;
      base = Layout::at(mn + group * 8 + (kAlongK ? lane % 8 : 0), k + half * kStepK / 2 + (kAlongK ? 0 : lane % 8));
    } else if constexpr (kPermuted) {
      base = Layout::at(mn + lane / 4 * 4, k + lane % 4 * 4);
    } else {
      base = Layout::at(mn + lane / 4, k + lane % 4);
    }
  }

  /// Reads the words `k` elements further along K, from the stage at shared-memory address `stage`.
  template <int Count, int Words>
  __device__ void load(uint32_t stage, int k, Word (&words)[Count][Words]) const {
    static_assert(!kPermuted || Count % 2 == 0, "bytes are transposed 32 rows at a time");
#pragma unroll
    for (int i = 0; i < Count; i += 1 + kPermuted) {
      if constexpr (kPermuted) {
        load_transposed(stage, i * 16, k, words[i], words[i + 1]);
      } else {
        load_16(stage, i * 16, k, words[i]);
      }
    }
  }

 private:
  /// Whether ldmatrix can load the words.
  static constexpr bool kMatrices = Layout::kMajor == MajorIn::K ? sizeof(Word) == 4 : sizeof(Element) == 2;

  using Order = FragmentOrder<kSide, kLaneWords<Word>>;

  /// Byte offset of the lane's first words within a stage.
  int base;

  __device__ uint32_t address(uint32_t stage, int mn, int k) const {
    return opaque(stage + (base ^ Layout::flipped(mn, k))) + Layout::added(mn, k);
  }

  template <int Words>
  __device__ void load_16(uint32_t stage, int mn, int k, Word (&words)[Words]) const {
    if constexpr (kMatrices) {
      load_matrices<Layout::kMajor == MajorIn::MN>(address(stage, mn, k), words);
    } else {
      static_assert(kWordElements == 1, "neighbours along K are a word");
#pragma unroll
      for (int j = 0; j < Words; ++j) {
        words[j] = load_shared<Word>(address(stage, mn + Order::group_of(j) * 8, k + Order::half_of(j) * 4));
      }
    }
    round_words<Element>(words);
  }

  __device__ void load_transposed(uint32_t stage, int mn, int k, Word (&low)[4], Word (&high)[4]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Word line[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) line[i] = load_shared<Word>(address(stage, mn, k + half * 16 + i));
      // Interleaves bytes 0 and 1, then 2 and 3, of two lines each; then combines all four lines.
      Word const first[2] = {__byte_perm(line[0], line[1], 0x5140), __byte_perm(line[2], line[3], 0x5140)};
      Word const second[2] = {__byte_perm(line[0], line[1], 0x7362), __byte_perm(line[2], line[3], 0x7362)};
      low[Order::place_of(0, half)] = __byte_perm(first[0], first[1], 0x5410);
      low[Order::place_of(1, half)] = __byte_perm(first[0], first[1], 0x7632);
      high[Order::place_of(0, half)] = __byte_perm(second[0], second[1], 0x5410);
      high[Order::place_of(1, half)] = __byte_perm(second[0], second[1], 0x7632);
    }
  }
};

/// The same for rows that begin at any element: a word may span two words of shared memory.
template <class Element, int Align, int TileMN, int TileK, class Word, Side kSide>
struct Fragments<ShiftedLayout<Element, Align, TileMN, TileK>, Word, kSide> {
  using Layout = ShiftedLayout<Element, Align, TileMN, TileK>;
  using Order = FragmentOrder<kSide, kLaneWords<Word>>;
  static constexpr int kStepK = 32 / int(sizeof(Element));
  static constexpr bool kPermuted = false;

  __device__ static int position(int group, int row) { return group * 8 + row; }

  /// The warp's rows begin at `mn`, its K at `k`. `matrix` is the global address of the tile's first row; rows are
  /// `stride` bytes apart.
  __device__ Fragments(int mn, int k, char const* matrix, int64_t stride) {
    int const row = mn + threadIdx.x % 32 / 4;
#pragma unroll
    for (int i = 0; i < kShifts; ++i) {
      int const shift = reinterpret_cast<uintptr_t>(matrix + (row + i * 8) * stride) % 16;
      bases[i] = row * Layout::kPitch + k * int(sizeof(Element)) + shift / 4 * 4 + threadIdx.x % 4 * 4;
      bits = shift % 4 * 8;
    }
  }

  template <int Count>
  __device__ void load(uint32_t stage, int k, Word (&words)[Count][4]) const {
#pragma unroll
    for (int i = 0; i < Count; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        int const group = Order::group_of(j);
        uint32_t const address = stage + bases[group % kShifts] + (i * 16 + group * 8) * Layout::kPitch +
                                 k * int(sizeof(Element)) + Order::half_of(j) * 16;
        words[i][j] = load_shared<Word>(address);
        if constexpr (sizeof(Element) < sizeof(Word))
          words[i][j] = __funnelshift_r(words[i][j], load_shared<Word>(address + 4), bits);
      }
      round_words<Element>(words[i]);
    }
  }

 private:
  /// Rows 16 apart have the same shift; with even strides also rows 8 apart. The shift within a word, in bits, is the
  /// same for all rows of a lane.
  static constexpr int kShifts = Align % 2 == 0 ? 1 : 2;

  int bases[kShifts], bits;
};

/// How a warp multiplies 16 x 16 of D on sm_80 and later: two MMAs of 16 x 8.
struct WarpMma {
  /// Whether the target has cp.async.
  static constexpr bool kHasAsync = true;
  template <class Layout, class Word>
  using FragmentsA = Fragments<Layout, Word, Side::A>;
  template <class Layout, class Word>
  using FragmentsB = Fragments<Layout, Word, Side::B>;

  /// A lane's row within a group of eight rows, and the first of its two adjacent columns within a group of eight
  /// columns.
  __device__ static int sum_row(int lane) { return lane / 4; }
  __device__ static int sum_column(int lane) { return lane % 4 * 2; }

  /// `left` and `right` are the sums of eight columns each, for two groups of eight rows.
  template <class Atom, class Word, class Sum, int Words>
  __device__ static void multiply(Word const (&a)[Words], Word const (&b)[Words], Sum (&left)[4], Sum (&right)[4]) {
    if constexpr (kLaneWords<Word> == 1) {
      Atom::multiply(a, b[0], left);
      Atom::multiply(a, b[1], right);
    } else {
      Atom::multiply(a, b[0], b[1], left);
      Atom::multiply(a, b[2], b[3], right);
    }
  }
};

}  // namespace gemmill
