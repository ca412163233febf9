/// The mma.sync GEMM: tensor cores behind a cp.async pipeline (sm_80 and later), or behind two stages that are filled
/// through registers (sm_70), on operands of any strides.
///
/// Every warp loads and multiplies. Shared memory: | A stages | B stages |, swizzled as TMA would.
#pragma once

#include <gemmill/kernel/direct.cuh>
#include <gemmill/mma/fragments.cuh>
#include <gemmill/mma/quadpair.cuh>

namespace gemmill {

/// Mma: how a warp multiplies, WarpMma or QuadpairMma.
template <class Config, class Mma = WarpMma>
struct MmaSyncGemm {
  using Direct = DirectGemm<Config>;
  using Atom = typename Config::Atom;
  using Word = typename Atom::Word;
  using Accumulator = typename Config::Accumulator;
  static constexpr int kTileM = Config::kTileM, kTileN = Config::kTileN, kTileK = Config::kTileK;
  static constexpr int kStages = Config::kStages;
  /// A warp computes up to 64 x 64.
  static constexpr int kWarpsN = max_of(1, min_of(kTileN / 32, kTileM <= 128 ? 4 : 2));
  static constexpr int kWarpsM = max_of(1, min_of(kTileM / 32, 8 / kWarpsN));
  static constexpr int kThreads = 32 * kWarpsM * kWarpsN;
  static constexpr int kBlocks = 1;
  static constexpr int kWarpM = kTileM / kWarpsM, kWarpN = kTileN / kWarpsN;
  static constexpr int kAtomsM = kWarpM / 16, kAtomsN = kWarpN / 8;

  using CopyA =
      StageCopy<typename Config::A, Config::kMajorA, Config::kAlignA, kTileM, kTileK, kThreads, Mma::kHasAsync>;
  using CopyB =
      StageCopy<typename Config::B, Config::kMajorB, Config::kAlignB, kTileN, kTileK, kThreads, Mma::kHasAsync>;
  using A = typename CopyA::Layout;
  using B = typename CopyB::Layout;
  using FragmentsA = typename Mma::template FragmentsA<A, Word>;
  using FragmentsB = typename Mma::template FragmentsB<B, Word>;
  static constexpr int kSharedBytes = kStages * (A::kBytes + B::kBytes);
  static_assert(kTileK % FragmentsA::kStepK == 0, "a stage is whole MMAs deep");

  __device__ static void run(DirectParams const& params) {
    extern __shared__ __align__(1024) char shared[];
    wait_for_prerequisites();
    Direct::for_each_tile(params, [&](Work const& work) { compute(params, work, shared); });
  }

 private:
  using Sums = Accumulator[kAtomsM][kAtomsN][4];

  __device__ static char* stage_a(char* shared, int stage) { return shared + stage * A::kBytes; }
  __device__ static char* stage_b(char* shared, int stage) {
    return shared + kStages * A::kBytes + stage * B::kBytes;
  }

  __device__ static void compute(DirectParams const& params, Work work, char* shared) {
    int const warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int const warp_m = warp % kWarpsM * kWarpM, warp_n = warp / kWarpsM * kWarpN;
    CopyA a{{params.a.at_batch<typename Config::A const>(work.batch), params.a.row_stride, params.a.column_stride,
             work.m, params.m}};
    CopyB b{{params.b.at_batch<typename Config::B const>(work.batch), params.b.column_stride, params.b.row_stride,
             work.n, params.n}};

    for (int tile = 0; tile < kStages - 1; ++tile) {
      if (tile < work.k_tiles) {
        a.begin(stage_a(shared, tile), params.k - tile * kTileK);
        b.begin(stage_b(shared, tile), params.k - tile * kTileK);
        a.finish(stage_a(shared, tile));
        b.finish(stage_b(shared, tile));
      }
      if constexpr (Mma::kHasAsync) commit_copies();
    }
    Sums sums = {};
    int stage = 0;
    for (int tile = 0; tile < work.k_tiles; ++tile) {
      // This tile has arrived, for every thread; and all are done with the one before it, whose stage is filled anew.
      if constexpr (Mma::kHasAsync) wait_for_copies<kStages - 2>();
      __syncthreads();
      int const ahead = tile + kStages - 1;
      int const refilled = stage == 0 ? kStages - 1 : stage - 1;
      if (ahead < work.k_tiles) {
        a.begin(stage_a(shared, refilled), params.k - ahead * kTileK);
        b.begin(stage_b(shared, refilled), params.k - ahead * kTileK);
      }
      if constexpr (Mma::kHasAsync) commit_copies();
      multiply(stage_a(shared, stage), stage_b(shared, stage), warp_m, warp_n, sums);
      if (ahead < work.k_tiles) {
        a.finish(stage_a(shared, refilled));
        b.finish(stage_b(shared, refilled));
      }
      stage = stage == kStages - 1 ? 0 : stage + 1;
    }
    __syncthreads();

    auto const epilogue = Direct::epilogue(params, work);
    // What lies side by side in D: two columns of an atom, or a column of each of four.
    constexpr int kRun = FragmentsB::kPermuted ? 4 : 2;
#pragma unroll
    for (int i = 0; i < 2 * kAtomsM; ++i)
#pragma unroll
      for (int j = 0; j < 2 * kAtomsN; j += kRun) {
        Accumulator run[kRun];
#pragma unroll
        for (int r = 0; r < kRun; ++r) {
          int const atom = FragmentsB::kPermuted ? j / 8 * 4 + r : j / 2;
          int const column = FragmentsB::kPermuted ? j / 4 % 2 : r;
          run[r] = sums[i / 2][atom][i % 2 * 2 + column];
        }
        int const group = FragmentsB::kPermuted ? j / 8 * 4 : j / 2;
        int const column = Mma::sum_column(lane) + (FragmentsB::kPermuted ? j / 4 % 2 : 0);
        epilogue.store(run, work.m + warp_m + FragmentsA::position(i, Mma::sum_row(lane)),
                       work.n + warp_n + FragmentsB::position(group, column));
      }
  }

  __device__ static void multiply(char const* a, char const* b, int warp_m, int warp_n, Sums& sums) {
    // Few steps at a time: their fragments share registers. On sm_90 an MMA of fp8 is several of f16, and conversions.
    constexpr bool kFp8 = sizeof(typename Config::A) == 1 && cuda::std::is_same_v<Accumulator, float>;
    constexpr int kUnroll = min_of(kTileK / FragmentsA::kStepK, kFp8 ? 1 : 4);
#pragma unroll kUnroll
    for (int k = 0; k < kTileK; k += FragmentsA::kStepK) {
      Word rows[kAtomsM][4], columns[kAtomsN / 2][4];
      FragmentsA::load(a, warp_m, k, rows);
      FragmentsB::load(b, warp_n, k, columns);
#pragma unroll
      for (int i = 0; i < kAtomsM; ++i)
#pragma unroll
        for (int j = 0; j < kAtomsN; j += 2) {
          Mma::template multiply<Atom>(rows[i], columns[j / 2], sums[i][j], sums[i][j + 1]);
        }
    }
  }
};

template <class Config>
using QuadpairGemm = MmaSyncGemm<Config, QuadpairMma>;

}  // namespace gemmill
