/// Transposes stages of 8- and 32-bit operands that are not K-major in shared memory, because WGMMA reads these types
/// K-major only.
#pragma once

#include <cutlass/arch/barrier.h>

#include <cute/arch/copy_sm90_tma.hpp>

#include <gemmill/copy/layout.cuh>
#include <gemmill/copy/shared.cuh>
#include <gemmill/pipeline/pipeline.cuh>

namespace gemmill {

/// Whether a stage is transposed in place: its panels are squares, and the transposed stage has the same panels.
template <class Tma, class Mma>
constexpr bool kInPlace = Mma::kPanels == 1 && Tma::kSpan == Mma::kSpan;

/// Reads a stage as TMA wrote it (`Tma`, MN-major) and writes it as WGMMA reads it (`Mma`, K-major), with `Warps`
/// warps.
///
/// A warp reads everything that it will overwrite before it writes. Neither reads nor writes have bank conflicts,
/// except writes of 32-bit words in rows of less than 128 bytes. The addresses of a lane differ by constants under
/// exclusive or, because swizzles are linear under it, so they cost few instructions.
template <class Tma, class Mma, int Warps, int Size = sizeof(typename Tma::Element)>
struct StageTranspose;

/// 8-bit elements, in blocks of 16 x 16. ldmatrix transposes pairs of bytes, two byte permutations finish two of its
/// registers, and stmatrix writes them. FlashAttention-3 does the same for V (arXiv:2407.08608, section 3.3).
///
/// Block (i, j), i along K and j along MN, becomes block (j, i). One step swaps blocks (i, i ^ d) and (i ^ d, i) of a
/// square. If d is 0, one step transposes two blocks of the diagonal.
template <class Tma, class Mma, int Warps>
struct StageTranspose<Tma, Mma, Warps, 1> {
  /// Blocks in a span of each layout, and in the side of a square; squares in a panel of Tma along K and along MN.
  static constexpr unsigned kTmaBlocks = Tma::kSpan / 16, kMmaBlocks = Mma::kSpan / 16;
  static constexpr unsigned kSide = kTmaBlocks < kMmaBlocks ? kTmaBlocks : kMmaBlocks;
  static constexpr unsigned kSquaresK = Tma::kRows / 16 / kSide, kSquaresMN = kTmaBlocks / kSide;

  /// Does the share of warp `warp` of `Warps`.
  __device__ static void run(char const* source_stage, char* target_stage, int warp) {
    unsigned const lane = threadIdx.x % 32;
    // The row of a block whose address this lane passes to ldmatrix. The eight rows of a matrix lie in different bank
    // groups if half of them come from the matrix itself and half from its neighbour; the byte permutations put them
    // right.
    unsigned const row = lane % 8;
    unsigned const neighbour = lane / 8 % 2 ^ row / 4;
    unsigned const source = swizzled<Tma::kSpan>((row / 2 * 4 + neighbour * 2 + row % 2) * Tma::kSpan);
    unsigned const target = swizzled<Mma::kSpan>((row * 2 + neighbour) * Mma::kSpan);
    unsigned const even = (lane % 4 < 2 ? 0x6420 : 0x2064) ^ (lane < 16 ? 0 : 0x1111);
    unsigned const odd = even ^ 0x1111;
#pragma unroll 1
    for (unsigned unit = warp; unit < Tma::kPanels * kSquaresMN * kSquaresK * kSide; unit += Warps) {
      unsigned const d = unit % kSide;
      unsigned const square_k = unit / kSide % kSquaresK * kSide;
      unsigned const square_mn = unit / kSide / kSquaresK % kSquaresMN * kSide;
      unsigned const panel = unit / kSide / kSquaresK / kSquaresMN;
      char const* const panel_source = source_stage + panel * Tma::kPanelBytes;
      char* const panel_target =
          target_stage + panel * Tma::kPanelExtent * Mma::kSpan + square_k / kMmaBlocks * Mma::kPanelBytes;
      // Half of the lanes address rows of the second block of a pair, (i ^ other, i ^ other ^ d).
      unsigned const other = d == 0 ? kSide / 2 : d;
      unsigned const mine = lane < 16 ? 0 : other;
      unsigned const block_source = source ^ from(square_k ^ mine, square_mn ^ mine ^ d);
      unsigned const block_target = target ^ to(square_k % kMmaBlocks ^ mine, square_mn ^ mine ^ d);
      // Enumerates each i whose pair i ^ other does not occur: sums of two powers of two.
      unsigned const first = other % 2 == 0 ? 1 : 2, second = other % 4 == 0 ? 2 : 4;
      uint32_t words[kSide / 2][4];
#pragma unroll
      for (unsigned pair = 0; pair < kSide / 2; ++pair) {
        unsigned const i = pair % 2 * first ^ pair / 2 * second;
        load_matrices<true>(shared_address(panel_source + (block_source ^ from(i, i))), words[pair]);
      }
#pragma unroll
      for (unsigned pair = 0; pair < kSide / 2; ++pair) {
        unsigned const i = pair % 2 * first ^ pair / 2 * second;
        auto const& w = words[pair];
        uint32_t const columns[4] = {__byte_perm(w[0], w[1], even), __byte_perm(w[0], w[1], odd),
                                     __byte_perm(w[2], w[3], even), __byte_perm(w[2], w[3], odd)};
        store_matrices<false>(panel_target + (block_target ^ to(i, i)), columns);
      }
    }
  }

 private:
  /// Byte offset of block (i, j) in a panel of Tma, and of the block that it becomes in a panel of Mma whose first
  /// block along MN is 0.
  __device__ static constexpr unsigned from(unsigned i, unsigned j) { return i * 16 * Tma::kSpan ^ j * 16; }
  __device__ static constexpr unsigned to(unsigned i, unsigned j) { return j * 16 * Mma::kSpan ^ i * 16; }
};

/// 32-bit elements, in blocks of 4 x 4: a lane reads four rows of 16 bytes and writes four.
template <class Tma, class Mma, int Warps>
struct StageTranspose<Tma, Mma, Warps, 4> {
  /// Chunks of four rows along K in a panel of Tma, and in a panel of Mma; blocks in a row.
  static constexpr int kChunks = Tma::kRows / 4;
  static constexpr int kPanelChunks = Mma::kSpan / 16;
  static constexpr int kRowBlocks = Tma::kSpan / 16;
  /// Chunks that a warp reads at once, of one panel of Mma. If there are more lanes than work, two lanes do the same.
  static constexpr int kLaneChunks = kPanelChunks < 32 / kRowBlocks ? kPanelChunks : 32 / kRowBlocks;
  static_assert((kChunks & (kChunks - 1)) == 0, "chunks along K are dealt out to lanes");

  /// Does the share of warp `warp` of `Warps`.
  __device__ static void run(char const* source_stage, char* target_stage, int warp) {
    int const lane = threadIdx.x % 32;
    int const block = lane % kRowBlocks;
    // Lanes with adjacent blocks work on different chunks, so their 16-byte writes go to different banks. Lanes of a
    // row's second half take the second half of the panel, so that a block and its mirror image are read together.
    int const first_chunk = (lane / kRowBlocks ^ block / 2 ^ block / 4 * 4) % kPanelChunks;
    int const source = from(first_chunk, 0) ^ block * 16;
    int const target = to(first_chunk, block * 4);
#pragma unroll 1
    for (unsigned unit = warp; unit < Tma::kPanels * kChunks / kLaneChunks; unit += Warps) {
      unsigned const panel = unit * kLaneChunks / kChunks;
      unsigned const chunk = unit * kLaneChunks % kChunks;
      char const* const panel_source = source_stage + panel * Tma::kPanelBytes;
      char* const panel_target =
          target_stage + panel * Tma::kPanelExtent * Mma::kSpan + chunk / kPanelChunks * Mma::kPanelBytes;
      int const chunk_source = source ^ from(chunk, 0);
      int const chunk_target = target ^ to(chunk % kPanelChunks, 0);
      uint4 rows[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        rows[i] = *reinterpret_cast<uint4 const*>(panel_source + (chunk_source ^ from(0, i)));
      if constexpr (kInPlace<Tma, Mma>) __syncwarp();
      auto const& [r0, r1, r2, r3] = rows;
      uint4 const columns[4] = {{r0.x, r1.x, r2.x, r3.x},
                                {r0.y, r1.y, r2.y, r3.y},
                                {r0.z, r1.z, r2.z, r3.z},
                                {r0.w, r1.w, r2.w, r3.w}};
#pragma unroll
      for (int i = 0; i < 4; ++i)
        *reinterpret_cast<uint4*>(panel_target + (chunk_target ^ to(0, i))) = columns[i];
    }
  }

 private:
  /// Byte offset, in a panel of Tma, of the first element of row `row` of chunk `chunk` along K.
  __device__ static constexpr int from(int chunk, int row) {
    return swizzled<Tma::kSpan>((chunk * 4 + row) * Tma::kSpan);
  }
  /// Byte offset, in a panel of Mma, of chunk `chunk` along K in row `mn`.
  __device__ static constexpr int to(int chunk, int mn) {
    return swizzled<Mma::kSpan>(mn * Mma::kSpan + chunk * 16);
  }
};

/// Mbarriers that tell consumers that a stage has been transposed.
template <int Stages, int Warps>
struct TransposeBarriers {
  using Barrier = cutlass::arch::ClusterBarrier;

  uint64_t barriers[Stages];

  __device__ void init() {
    for (uint64_t& barrier : barriers) Barrier::init(&barrier, Warps);
  }
  /// Every lane of a warp calls it after its writes. The fence is needed because WGMMA reads through the asynchronous
  /// proxy.
  __device__ void arrive(RingPosition<Stages> at) {
    cute::tma_store_fence();
    __syncwarp();
    if (threadIdx.x % 32 == 0) Barrier::arrive(&barriers[at.stage]);
  }
  __device__ void wait(RingPosition<Stages> at) { Barrier::wait(&barriers[at.stage], at.phase); }
};

/// The layouts of an operand's stages as TMA writes them and as WGMMA reads them. They are the same unless stages are
/// transposed.
template <class Element, MajorIn Major, int TileMN, int TileK, bool Transposes>
struct OperandStages {
  static constexpr bool kTransposed = Transposes && Major == MajorIn::MN && sizeof(Element) != 2;
  using TmaLayout = StageLayout<Element, Major, TileMN, TileK>;
  using MmaLayout = StageLayout<Element, kTransposed ? MajorIn::K : Major, TileMN, TileK>;
  /// Bytes of a stage as TMA writes it, where it does not share memory with the transposed stage.
  static constexpr int kExtraBytes = kTransposed && !kInPlace<TmaLayout, MmaLayout> ? TmaLayout::kBytes : 0;
};

}  // namespace gemmill
