/// GEMM with 8, 16 or 32 rows of A for each tile. It loads every element of B once, straight into registers, at the
/// speed of memory.
///
/// Columns of D are the rows of the MMA (16 x 8 x 32 bytes) and rows of A its columns, so one MMA covers 16 columns of
/// B. The order of K within an MMA is free as long as both operands have the same. A thread's part of an MMA is
/// therefore whatever it can load in whole vectors, and neither A nor B passes through shared memory. The warps of a
/// CTA split tile N and tile K. The sums of the warps along K are added in a fixed order, so results do not change from
/// run to run.
#pragma once

#include <gemmill/copy/stream.cuh>
#include <gemmill/kernel/direct.cuh>
#include <gemmill/mma/halves.cuh>

namespace gemmill {

template <class Config>
struct Gemv {
  using Direct = DirectGemm<Config>;
  using A = typename Config::A;
  using B = typename Config::B;
  using Sum = typename Config::Accumulator;
  static constexpr int kTileM = Config::kTileM, kTileN = Config::kTileN, kTileK = Config::kTileK;
  /// MMAs along M. Each has eight columns, one for each row of A.
  static constexpr int kMmasM = kTileM / 8;
  static_assert(kMmasM * 8 == kTileM, "the columns of MMAs");
  /// Whether vectors of B lie along K. Otherwise they lie along N.
  static constexpr bool kAlongK = Config::kMajorB == MajorIn::K;
  /// Elements of B in one load of a thread.
  static constexpr int kVector = Config::kAlignB / int(sizeof(B));
  /// Elements in a word of the MMA's fragments.
  static constexpr int kPerWord = 4 / int(sizeof(B));
  static_assert(sizeof(A) == sizeof(B), "fragments of A and B are words of as many elements");
  static_assert(kPerWord == 2 || (kAlongK && kVector >= kPerWord), "only pairs are put together from two vectors");
  /// Vectors of B that a thread has in flight.
  static constexpr int kLoads = Config::kStages;

  // A thread's K within kWarpK: kGroups runs of kRun adjacent elements. Runs are 4 * kRun apart; the four threads of a
  // quad fill the gaps.
  static constexpr int kGroups = kAlongK ? kLoads / 2 : 1;
  static constexpr int kRun = kAlongK ? kVector : kLoads;
  static constexpr int kThreadK = kGroups * kRun;
  static constexpr int kMmasK = kThreadK / (2 * kPerWord);
  static_assert(kThreadK % (2 * kPerWord) == 0, "a thread holds two words along K of each row of an MMA");
  // Accumulators of 16 columns of D each.
  static constexpr int kMmasN = kAlongK ? 1 : ceil_div(kVector, 2);
  static constexpr int kSums = 4 * kMmasN * kMmasM;

  static constexpr int kWarpN = kAlongK ? 16 : 8 * kVector;
  static constexpr int kWarpK = 4 * kThreadK;
  static constexpr int kWarpsN = kTileN / kWarpN;
  static constexpr int kWarpsK = kTileK / kWarpK;
  static constexpr int kThreads = 32 * kWarpsN * kWarpsK;
  static constexpr int kSharedBytes = kThreads * kSums * int(sizeof(Sum));
  static_assert(kWarpsN * kWarpN == kTileN && kWarpsK * kWarpK == kTileK, "whole warps");
  /// CTAs per SM at a time, for `__launch_bounds__`, which limits the registers of a thread.
  static constexpr int kBlocks = Config::kBlocks;

  __device__ static void run(DirectParams const& params) {
    extern __shared__ __align__(16) char shared[];
    auto* const sums = reinterpret_cast<Sum*>(shared);
    int const lane = threadIdx.x % 32;
    int const warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    int const warp_n = warp % kWarpsN;
    int const warp_k = warp / kWarpsN;

    wait_for_prerequisites();
    launch_dependents();
    Direct::for_each_tile(params, [&](Work const& work) {
      Operands const operands(params, work, warp_n, lane);
      int const end = min(whole_k(params), (work.k_tile + work.k_tiles) * kTileK);
      Sum accumulators[kMmasM][kMmasN][4] = {};
#pragma unroll 1
      for (int k = work.k_tile * kTileK + warp_k * kWarpK; k < end; k += kTileK)
        step(params, operands, k + lane % 4 * kRun, accumulators);

      __syncthreads();  // all threads have read the previous tile's sums
#pragma unroll
      for (int i = 0; i < kSums; ++i)
        sums[(warp * kSums + i) * 32 + lane] = accumulators[i / (4 * kMmasN)][i / 4 % kMmasN][i % 4];
      __syncthreads();
      store(params, work, sums);
    });
  }

 private:
  /// The part of K that whole runs of A and whole vectors of B cover; `store` adds the rest element by element. If N is
  /// not a multiple of a vector, the last vector of a row of B reaches into the next row, so the last row of B is left
  /// out.
  __device__ static int whole_k(DirectParams const& params) {
    bool const ragged = !kAlongK && params.n % kVector != 0;
    return (params.k - ragged) / kRun * kRun;
  }

  /// Addresses of a thread's elements of A and B at K = 0. Threads beyond the last row or column load other elements of
  /// the operand; their sums are not stored.
  struct Operands {
    A const* a[kMmasM];
    /// For two columns of D, or for as many as a vector has elements.
    B const* b[kAlongK ? 2 : 1];

    __device__ Operands(DirectParams const& params, Work const& work, int warp_n, int lane) {
      auto const* const rows = params.a.at_batch<A const>(work.batch);
      for (int i = 0; i < kMmasM; ++i) a[i] = rows + min(work.m + i * 8 + lane / 4, params.m - 1) * params.a.row_stride;
      auto const* const matrix = params.b.at_batch<B const>(work.batch);
      int const n = work.n + warp_n * kWarpN + lane / 4 * (kAlongK ? 1 : kVector);
      if constexpr (kAlongK) {
        for (int i = 0; i < 2; ++i) b[i] = matrix + min(n + i * 8, params.n - 1) * params.b.column_stride;
      } else {
        b[0] = matrix + (n < params.n ? n : 0);
      }
    }
  };

  /// Multiplies kTileK elements along K; `k` is this thread's first.
  __device__ static void step(DirectParams const& params, Operands const& operands, int k,
                              Sum (&accumulators)[kMmasM][kMmasN][4]) {
    int const end = whole_k(params);
    Vector<B, kVector> b[kLoads];
    if constexpr (kAlongK) {
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        int const at = k + i / 2 * (4 * kRun);
        b[i].stream(operands.b[i % 2] + at, at < end);
      }
    } else {
      B const* row = operands.b[0] + k * params.b.row_stride;
#pragma unroll
      for (int i = 0; i < kLoads; ++i, row += params.b.row_stride) b[i].stream(row, k < end);
    }
    uint32_t a[kMmasM][kThreadK / kPerWord];
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      int const at = k + group * (4 * kRun);
#pragma unroll
      for (int i = 0; i < kMmasM; ++i) load_run(params, operands.a[i], at, at < end, group * kRun, a[i]);
    }
#pragma unroll
    for (int slice = 0; slice < kMmasK; ++slice) {
#pragma unroll
      for (int i = 0; i < kMmasN; ++i) {
        uint32_t weights[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          // Rows 0 to 7 and 8 to 15 alternate, first for one word along K, then for the next.
          int const word = slice * 2 + j / 2;
          if constexpr (kAlongK && kVector >= kPerWord) {
            constexpr int kWords = kVector / kPerWord;
            weights[j] = b[word / kWords * 2 + j % 2].words[word % kWords];
          } else if constexpr (kAlongK) {
            weights[j] = pair(b[word * 4 + j % 2], 0, b[word * 4 + 2 + j % 2], 0);
          } else {
            int const column = min_of(i * 2 + j % 2, kVector - 1);
            weights[j] = pair(b[word * 2], column, b[word * 2 + 1], column);
          }
        }
#pragma unroll
        for (int m = 0; m < kMmasM; ++m)
          Config::Atom::multiply(weights, a[m][slice * 2], a[m][slice * 2 + 1], accumulators[m][i]);
      }
    }
  }

  /// Loads kRun elements of A from K = `k` on into elements `first` and on of `a`; zeros unless `present`.
  __device__ static void load_run(DirectParams const& params, A const* row, int k, bool present, int first,
                                  uint32_t (&a)[kThreadK / kPerWord]) {
    constexpr int kPiece = Config::kMajorA == MajorIn::K ? min_of(Config::kAlignA / int(sizeof(A)), kRun) : 1;
    if constexpr (kPiece >= kPerWord) {
#pragma unroll
      for (int i = 0; i < kRun; i += kPiece) {
        Vector<A, kPiece> piece{};
        if (present) piece = *reinterpret_cast<Vector<A, kPiece> const*>(row + k + i);
#pragma unroll
        for (int j = 0; j < kPiece / kPerWord; ++j) a[(first + i) / kPerWord + j] = piece.words[j];
      }
    } else {
#pragma unroll
      for (int i = first; i < first + kRun; ++i) {
        uint32_t const bits = present ? raw_bits(row[(k + i - first) * params.a.column_stride]) : 0;
        uint32_t& word = a[i / kPerWord];
        word = i % kPerWord ? word | bits << i % kPerWord * 8 * int(sizeof(A)) : bits;
      }
    }
  }

  /// Adds the sums of the warps along K and the products of the rest of K, applies the epilogue and stores D.
  __device__ static void store(DirectParams const& params, Work const& work, Sum const* sums) {
    auto const epilogue = Direct::epilogue(params, work);
    for (int index = threadIdx.x; index < kWarpsN * kSums * 32; index += kThreads) {
      int const lane = index % 32;
      int const i = index / 32 % (4 * kMmasN);
      int const column = kAlongK ? lane / 4 + i / 2 * 8 : lane / 4 * kVector + i / 2;
      int const m = work.m + index / 32 % kSums / (4 * kMmasN) * 8 + lane % 4 * 2 + i % 2;
      int const n = work.n + index / 32 / kSums * kWarpN + column;
      if (m >= params.m || n >= params.n || (!kAlongK && i / 2 >= kVector)) continue;
      Sum sum[1] = {};
#pragma unroll
      for (int warp_k = 0; warp_k < kWarpsK; ++warp_k) sum[0] += sums[index + warp_k * kWarpsN * kSums * 32];
      int const end = min(params.k, (work.k_tile + work.k_tiles) * kTileK);
#pragma unroll 2
      for (int k = max(whole_k(params), work.k_tile * kTileK); k < end; ++k) {
        A const a = params.a.at_batch<A const>(work.batch)[m * params.a.row_stride + k * params.a.column_stride];
        B const b = params.b.at_batch<B const>(work.batch)[k * params.b.row_stride + n * params.b.column_stride];
        sum[0] += load_as<Sum>(a) * load_as<Sum>(b);
      }
      epilogue.store(sum, m, n);
    }
  }
};

}  // namespace gemmill
