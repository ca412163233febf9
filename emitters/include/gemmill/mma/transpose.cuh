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
/// A lane reads vectors of the rows along K that fill 16 bytes, of one word where elements have 8 bits (4 x 16 of them)
/// and of four where they have 32 (4 x 4), and writes whole 16-byte chunks. Lanes whose vectors are neighbours work on
/// different chunks along K, so that neither side has bank conflicts where the stage is 128 bytes wide both ways. Places
/// of a lane's vectors differ by constants under exclusive or, which swizzles are linear in: addresses cost little.
template <class Raw, class Ready, int Warps>
struct StageTranspose {
  using Element = typename Raw::Element;
  static constexpr int kSize = sizeof(Element);
  static_assert(kSize == 1 || kSize == 4, "16-bit operands need no transposing");
  /// Rows of a chunk along K, chunks of a panel of Raw and of one of Ready.
  static constexpr int kChunkRows = 16 / kSize;
  static constexpr int kChunks = Raw::kRows / kChunkRows;
  static constexpr int kPanelChunks = Ready::kSpan / 16;
  /// Words of a vector (four, if a panel then has one for each lane), its elements along MN.
  static constexpr int kWords = kSize == 4 && kChunks * Raw::kSpan / 16 >= 32 ? 4 : 1;
  static constexpr int kElements = kWords * 4 / kSize;
  /// Vectors of a panel's row, lanes that share a row.
  static constexpr int kVectors = Raw::kSpan / (4 * kWords);
  static constexpr int kLaneGroups = 32 / kVectors;
  /// Chunks of a lane in a panel of Raw.
  static constexpr int kLaneChunks = kChunks / kLaneGroups;
  static_assert((kChunks & (kChunks - 1)) == 0 && kPanelChunks % kLaneGroups == 0 && kChunks % kPanelChunks == 0,
                "chunks along K are dealt out to lanes");

  struct alignas(4 * kWords) Vector {
    uint32_t words[kWords];
  };

  /// Warp `warp` of `Warps` does its share.
  __device__ static void run(char const* raw, char* ready, int warp) {
    int const lane = threadIdx.x % 32;
    int const vector = lane % kVectors;
    int const first_chunk = (lane / kVectors ^ vector / 2 * (kWords == 1 ? kLaneGroups : 1)) % kPanelChunks;
    int const source = from(first_chunk, 0) ^ vector * int(sizeof(Vector));
    int const target = to(first_chunk, vector * kElements);
#pragma unroll 1
    for (unsigned unit = warp; unit < Raw::kPanels * kLaneChunks; unit += Warps) {
      unsigned const panel = unit / kLaneChunks;
      unsigned const chunk = unit % kLaneChunks * kLaneGroups;
      char const* const panel_source = raw + panel * Raw::kPanelBytes;
      char* const panel_target =
          ready + panel * Raw::kPanelExtent * Ready::kSpan + chunk / kPanelChunks * Ready::kPanelBytes;
      int const chunk_source = source ^ from(chunk, 0);
      int const chunk_target = target ^ to(chunk % kPanelChunks, 0);
      Vector rows[kChunkRows];
#pragma unroll
      for (int i = 0; i < kChunkRows; ++i)
        rows[i] = *reinterpret_cast<Vector const*>(panel_source + (chunk_source ^ from(0, i)));
      if constexpr (kSize == 1) {
#pragma unroll
        for (int i = 0; i < kChunkRows; i += 4) transpose_bytes(reinterpret_cast<uint32_t(&)[4]>(rows[i]));
      }
#pragma unroll
      for (int i = 0; i < kElements; ++i)
        *reinterpret_cast<uint4*>(panel_target + (chunk_target ^ to(0, i))) =
            make_uint4(word(rows, i, 0), word(rows, i, 1), word(rows, i, 2), word(rows, i, 3));
    }
  }

 private:
  /// Byte in a panel of Raw of the first element of a row of a chunk along K.
  __device__ static constexpr int from(int chunk, int row) {
    return swizzled<Raw::kSpan>((chunk * kChunkRows + row) * Raw::kSpan);
  }
  /// Byte in a panel of Ready of a chunk along K, the panel's own.
  __device__ static constexpr int to(int chunk, int mn) {
    return swizzled<Ready::kSpan>(mn * Ready::kSpan + chunk * 16);
  }
  /// Word `index` of the chunk of element `mn`: four rows of it, which transpose_bytes has made a word, or one.
  __device__ static uint32_t word(Vector const (&rows)[kChunkRows], int mn, int index) {
    return kSize == 1 ? rows[index * 4 + mn].words[0] : rows[index].words[mn];
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
template <class Element, MajorIn Major, int TileMN, int TileK, bool Transposes>
struct OperandStages {
  static constexpr bool kTransposed = Transposes && Major == MajorIn::MN && sizeof(Element) != 2;
  using Raw = StageLayout<Element, Major, TileMN, TileK>;
  using Ready = StageLayout<Element, kTransposed ? MajorIn::K : Major, TileMN, TileK>;
  /// Shared memory of a stage beside what is multiplied.
  static constexpr int kExtraBytes = kTransposed ? Raw::kBytes : 0;
};

}  // namespace gemmill
