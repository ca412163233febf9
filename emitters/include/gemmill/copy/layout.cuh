/// Layouts of stages in shared memory, as TMA writes them and WGMMA reads them: panels that are one swizzle span wide.
#pragma once

#include <gemmill/types.cuh>

namespace gemmill {

/// The widest swizzle span (128, 64 or 32 bytes) that divides a contiguous extent of `bytes`; 16 if none does, which
/// means no swizzle.
constexpr int swizzle_span(int bytes) { return bytes % 128 == 0 ? 128 : bytes % 64 == 0 ? 64 : bytes % 32 == 0 ? 32 : 16; }

/// The first element of the last 16 bytes of a contiguous extent. TMA loads begin at multiples of 16 bytes.
template <class Element>
__device__ constexpr int last_chunk(int extent) {
  constexpr int kElements = 16 / int(sizeof(Element));
  return (extent - 1) / kElements * kElements;
}

/// Applies the swizzle of the given span to a byte offset: XORs the index of the 16-byte chunk with that of the
/// 128-byte line (PTX ISA, "Swizzling modes"; the same function as CuTe's Swizzle<log2(span/16), 4, 3>).
template <int Span>
__device__ constexpr int swizzled(int byte) {
  return byte ^ (((byte >> 7) & (Span / 16 - 1)) << 4);
}

/// The same with the bits of the line index reversed: two adjacent chunks lie in different banks in each of four rows.
template <int Span>
__device__ constexpr int swizzled_in_pairs(int byte) {
  int const line = byte >> 7;
  int const reversed = Span == 128 ? (line & 1) << 2 | line & 2 | (line & 4) >> 2
                       : Span == 64 ? (line & 1) << 1 | (line & 2) >> 1
                                    : line & (Span / 16 - 1);
  return byte ^ (reversed << 4);
}

/// One stage of A or B in shared memory. Coordinates are (mn, k): mn is M for A and N for B.
///
/// The contiguous extent is cut into panels of one swizzle span. A panel holds all rows of the strided extent.
template <class Element_, MajorIn Major_, int TileMN, int TileK>
struct StageLayout {
  using Element = Element_;
  static constexpr MajorIn kMajor = Major_;
  static constexpr int kTileMN = TileMN;
  static constexpr int kContiguous = kMajor == MajorIn::K ? TileK : TileMN;
  static constexpr int kRows = kMajor == MajorIn::K ? TileMN : TileK;
  static constexpr int kSpan = swizzle_span(kContiguous * sizeof(Element));
  static constexpr int kPanelExtent = kSpan / sizeof(Element);
  static constexpr int kPanels = kContiguous / kPanelExtent;
  static constexpr int kPanelBytes = kRows * kSpan;
  static constexpr int kBytes = kPanels * kPanelBytes;
  /// Used for f64: half a warp reads four rows of four elements at a time, along either extent. TMA and WGMMA have no
  /// such swizzle.
  static constexpr bool kInPairs = sizeof(Element) == 8;
  static_assert(kSpan >= 32, "A's and B's contiguous tile extent must be a multiple of 32 bytes");

  /// Byte offset of an element whose strided coordinate is a multiple of eight; such rows are not swizzled.
  static constexpr int offset(int mn, int k) {
    int const along = kMajor == MajorIn::K ? k : mn;
    int const row = kMajor == MajorIn::K ? mn : k;
    return along / kPanelExtent * kPanelBytes + row * kSpan + along % kPanelExtent * int(sizeof(Element));
  }

  /// Byte offset of any element.
  __device__ static constexpr int at(int mn, int k) {
    int const along = kMajor == MajorIn::K ? k : mn;
    int const row = kMajor == MajorIn::K ? mn : k;
    return along / kPanelExtent * kPanelBytes + place(row * kSpan + along % kPanelExtent * int(sizeof(Element)));
  }

  /// Computes offsets relative to a base: `at(mn0 + mn, k0 + k) == (at(mn0, k0) ^ flipped(mn, k)) + added(mn, k)`, if
  /// mn0 and mn, and k0 and k, have no set bit in common.
  __device__ static constexpr int flipped(int mn, int k) {
    int const along = kMajor == MajorIn::K ? k : mn;
    int const line = (kMajor == MajorIn::K ? mn : k) * kSpan;
    return place(line) ^ line ^ (along % kPanelExtent * int(sizeof(Element)));
  }
  __device__ static constexpr int added(int mn, int k) {
    int const along = kMajor == MajorIn::K ? k : mn;
    int const row = kMajor == MajorIn::K ? mn : k;
    return row * kSpan + along / kPanelExtent * kPanelBytes;
  }

 private:
  /// Applies the swizzle to a byte offset within a panel.
  __device__ static constexpr int place(int byte) {
    return kInPairs ? swizzled_in_pairs<kSpan>(byte) : swizzled<kSpan>(byte);
  }
};

}  // namespace gemmill
