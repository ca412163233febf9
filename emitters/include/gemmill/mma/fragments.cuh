/// Operands of mma.sync from a stage in shared memory to registers, whatever the type and the majorness.
///
/// Every mma.sync of the shapes m16n8 reads A as 16 rows of 8 words along K and B as 8 columns of 8 words; a word is 32
/// bits of elements that are neighbours along K, or one f64. Lane l holds words l % 4 and l % 4 + 4 of rows l / 4 and
/// l / 4 + 8 (PTX ISA, "Matrix fragments for mma.m16n8k8" and the like).
#pragma once

#include <gemmill/copy/async.cuh>

namespace gemmill {

/// Four 8 x 8 matrices of 16-bit elements; lanes 8i to 8i + 7 give the addresses of the rows of matrix i.
template <bool Transposed>
__device__ inline void load_matrices(void const* row, uint32_t (&words)[4]) {
  if constexpr (Transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(shared_address(row)));
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(shared_address(row)));
  }
}

/// Reads 16 rows (M or N) x 8 words of a stage: words[i] is of row l / 4 + i % 2 * 8 and word l % 4 + i / 2 * 4.
template <class Layout, class Word>
struct Fragments {
  using Element = typename Layout::Element;
  static constexpr int kWordElements = sizeof(Word) / sizeof(Element);
  static constexpr int kStepK = 8 * kWordElements;
  /// Whether ldmatrix reads them; otherwise words are put together from elements.
  static constexpr bool kWhole = sizeof(Word) == 4 && (Layout::kMajor == MajorIn::K || sizeof(Element) == 2);

  __device__ static void load(char const* stage, int mn, int k, Word (&words)[4]) {
    int const lane = threadIdx.x % 32;
    if constexpr (kWhole && Layout::kMajor == MajorIn::K) {
      load_matrices<false>(stage + Layout::at(mn + lane % 16, k + lane / 16 * (kStepK / 2)), words);
    } else if constexpr (kWhole) {
      load_matrices<true>(stage + Layout::at(mn + lane / 8 % 2 * 8, k + lane / 16 * 8 + lane % 8), words);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        words[i] = gather(stage, mn + lane / 4 + i % 2 * 8, k + (lane % 4 + i / 2 * 4) * kWordElements);
      }
    }
    if constexpr (cuda::std::is_same_v<Element, tf32>) {
#pragma unroll
      for (int i = 0; i < 4; ++i) asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(words[i]) : "f"(__uint_as_float(words[i])));
    }
  }

 private:
  /// A word whose elements need not be neighbours in memory.
  __device__ static Word gather(char const* stage, int mn, int k) {
    union {
      Word word;
      Element elements[kWordElements];
    } gathered;
#pragma unroll
    for (int i = 0; i < kWordElements; ++i) {
      gathered.elements[i] = *reinterpret_cast<Element const*>(stage + Layout::at(mn, k + i));
    }
    return gathered.word;
  }
};

}  // namespace gemmill
