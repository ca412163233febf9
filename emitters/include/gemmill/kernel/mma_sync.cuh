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
  /// Where these are fewer than four, others compute the same for other slices of a stage along K.
  static constexpr int kSlices =
      max_of(1, min_of(4 / (kWarpsM * kWarpsN), kTileK * int(sizeof(typename Config::A)) / (8 * int(sizeof(Word)))));
  static constexpr int kSliceK = kTileK / kSlices;
  static constexpr int kSliceThreads = 32 * kWarpsM * kWarpsN;
  static constexpr int kThreads = kSliceThreads * kSlices;
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
  static_assert(kSliceK % FragmentsA::kStepK == 0, "a slice of a stage is whole MMAs deep");
  static_assert((kSlices - 1) * kTileM * kTileN * int(sizeof(Accumulator)) <= kSharedBytes,
                "the stages hold the sums of all slices but one");

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
    int const slice = kSlices == 1 ? 0 : threadIdx.x / kSliceThreads;
    int const warp = threadIdx.x / 32 % (kWarpsM * kWarpsN), lane = threadIdx.x % 32;
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
      multiply(stage_a(shared, stage), stage_b(shared, stage), warp_m, warp_n, slice * kSliceK, sums);
      if (ahead < work.k_tiles) {
        a.finish(stage_a(shared, refilled));
        b.finish(stage_b(shared, refilled));
      }
      stage = stage == kStages - 1 ? 0 : stage + 1;
    }
    __syncthreads();
    if constexpr (kSlices > 1) {
      add_slices(reinterpret_cast<Accumulator*>(shared), slice, sums);
      if (slice > 0) return;
    }

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

  /// Adds the sums of the other slices to those of the first, through the stages, which are free before and after.
  __device__ static void add_slices(Accumulator* shared, int slice, Sums& sums) {
    constexpr int kCount = sizeof(Sums) / sizeof(Accumulator);
    Accumulator* const own = &sums[0][0][0];
    Accumulator* const first = shared + threadIdx.x % kSliceThreads;
    if (slice > 0) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) first[((slice - 1) * kCount + i) * kSliceThreads] = own[i];
    }
    __syncthreads();
    if (slice == 0) {
#pragma unroll
      for (int other = 0; other < kSlices - 1; ++other)
#pragma unroll
        for (int i = 0; i < kCount; ++i) own[i] += first[(other * kCount + i) * kSliceThreads];
    }
    __syncthreads();
  }

  /// Adds the products of a slice of a stage, which begins at `first`.
  __device__ static void multiply(char const* a, char const* b, int warp_m, int warp_n, int first, Sums& sums) {
    // Few steps at a time: their fragments share registers. On sm_90 an MMA of fp8 is several of f16, and conversions.
    constexpr bool kFp8 = sizeof(typename Config::A) == 1 && cuda::std::is_same_v<Accumulator, float>;
    constexpr int kUnroll = min_of(kSliceK / FragmentsA::kStepK, kFp8 ? 1 : 4);
#pragma unroll kUnroll
    for (int k = 0; k < kSliceK; k += FragmentsA::kStepK) {
      Word rows[kAtomsM][4], columns[kAtomsN / 2][4];
      FragmentsA::load(a, warp_m, first + k, rows);
      FragmentsB::load(b, warp_n, first + k, columns);
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
