/// Stages of 8- and 32-bit operands that are not K-major, transposed in shared memory: WGMMA reads those K-major alone.
#pragma once

#include <cutlass/arch/barrier.h>

#include <cute/arch/copy_sm90_tma.hpp>

#include <gemmill/copy/layout.cuh>
#include <gemmill/pipeline/pipeline.cuh>

namespace gemmill {

/// Four words that hold four rows of four bytes each become the four columns.
__device__ inline void transpose_bytes(uint32_t (&words)[4]) {
  uint32_t const low01 = __byte_perm(words[0], words[1], 0x5140);
  uint32_t const high01 = __byte_perm(words[0], words[1], 0x7362);
  uint32_t const low23 = __byte_perm(words[2], words[3], 0x5140);
  uint32_t const high23 = __byte_perm(words[2], words[3], 0x7362);
  words[0] = __byte_perm(low01, low23, 0x5410);
  words[1] = __byte_perm(low01, low23, 0x7632);
  words[2] = __byte_perm(high01, high23, 0x5410);
  words[3] = __byte_perm(high01, high23, 0x7632);
}

/// Reads a stage as TMA wrote it (`Raw`, MN-major) and writes it as WGMMA reads it (`Ready`, K-major).
///
/// A lane reads one word of each of the rows along K that fill 16 bytes, so 4 x 16 elements of 8 bits or 1 x 4 of 32, and
/// writes whole 16-byte chunks. Lanes whose words are neighbours work on different chunks along K, so that neither side
/// has bank conflicts where the stage is 128 bytes wide both ways.
template <class Raw, class Ready, int Warps>
struct StageTranspose {
  using Element = typename Raw::Element;
  static constexpr int kSize = sizeof(Element);
  static_assert(kSize == 1 || kSize == 4, "16-bit operands need no transposing");
  /// Elements of a word along MN, rows of a chunk along K, words of a panel's row, lanes that share a row.
  static constexpr int kWordElements = 4 / kSize;
  static constexpr int kChunkRows = 16 / kSize;
  static constexpr int kWords = Raw::kSpan / 4;
  static constexpr int kLaneGroups = 32 / kWords;
  static constexpr int kChunks = Raw::kRows / kChunkRows;
  static_assert(kChunks % kLaneGroups == 0 && (kChunks & (kChunks - 1)) == 0, "chunks along K are dealt out to lanes");

  /// Warp `warp` of `Warps` does its share.
  __device__ static void run(char const* raw, char* ready, int warp) {
    int const lane = threadIdx.x % 32;
    int const word = lane % kWords;
    int const first_chunk = lane / kWords + word / 2 * kLaneGroups;
#pragma unroll 1
    for (int unit = warp; unit < Raw::kPanels * (kChunks / kLaneGroups); unit += Warps) {
      int const panel = unit / (kChunks / kLaneGroups);
      int const chunk = (unit * kLaneGroups + first_chunk) % kChunks;
      int const mn = panel * Raw::kPanelExtent + word * kWordElements;
      char const* const source = raw + panel * Raw::kPanelBytes;
      uint32_t rows[kChunkRows];
#pragma unroll
      for (int i = 0; i < kChunkRows; ++i)
        rows[i] = *reinterpret_cast<uint32_t const*>(
            source + swizzled<Raw::kSpan>((chunk * kChunkRows + i) * Raw::kSpan + word * 4));
      if constexpr (kSize == 1) {
#pragma unroll
        for (int i = 0; i < 4; ++i) transpose_bytes(reinterpret_cast<uint32_t(&)[4]>(rows[4 * i]));
      }
#pragma unroll
      for (int i = 0; i < kWordElements; ++i)
        *reinterpret_cast<uint4*>(ready + target(mn + i, chunk)) =
            make_uint4(rows[i], rows[i + kWordElements], rows[i + 2 * kWordElements], rows[i + 3 * kWordElements]);
    }
  }

 private:
  /// Byte of a chunk of 16 bytes along K in a K-major stage.
  __device__ static int target(int mn, int chunk) {
    constexpr int kPanelChunks = Ready::kSpan / 16;
    return chunk / kPanelChunks * Ready::kPanelBytes +
           swizzled<Ready::kSpan>(mn * Ready::kSpan + chunk % kPanelChunks * 16);
  }
};

/// Tells consumers that a stage has been transposed.
template <int Stages, int Warps>
struct ReadyStages {
  using Barrier = cutlass::arch::ClusterBarrier;

  uint64_t barriers[Stages];

  __device__ void init() {
    for (uint64_t& barrier : barriers) Barrier::init(&barrier, Warps);
  }
  /// Every lane of a warp, after its writes: WGMMA reads through the asynchronous proxy.
  __device__ void arrive(RingPosition<Stages> at) {
    cute::tma_store_fence();
    __syncwarp();
    if (threadIdx.x % 32 == 0) Barrier::arrive(&barriers[at.stage]);
  }
  __device__ void wait(RingPosition<Stages> at) { Barrier::wait(&barriers[at.stage], at.phase); }
};

/// An operand's stages as they are loaded and as they are multiplied; both are one where WGMMA takes them as they are.
template <class Element, MajorIn Major, int TileMN, int TileK>
struct OperandStages {
  static constexpr bool kTransposed = Major == MajorIn::MN && sizeof(Element) != 2;
  using Raw = StageLayout<Element, Major, TileMN, TileK>;
  using Ready = StageLayout<Element, kTransposed ? MajorIn::K : Major, TileMN, TileK>;
  /// Shared memory of a stage beside what is multiplied.
  static constexpr int kExtraBytes = kTransposed ? Raw::kBytes : 0;
};

}  // namespace gemmill
