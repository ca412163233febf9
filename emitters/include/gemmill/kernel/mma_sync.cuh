/// The mma.sync GEMM: tensor cores of sm_80 and later behind a cp.async pipeline, on operands of any strides.
///
/// Every warp loads and multiplies. Shared memory: | A stages | B stages |, swizzled as TMA would.
#pragma once

#include <gemmill/epilogue/direct.cuh>
#include <gemmill/epilogue/linear.cuh>
#include <gemmill/mma/fragments.cuh>
#include <gemmill/pipeline/dependent_launch.cuh>
#include <gemmill/scheduler/persistent.cuh>

namespace gemmill {

template <class Config>
struct MmaSyncGemm {
  using Atom = typename Config::Atom;
  using Word = typename Atom::Word;
  using Accumulator = typename Config::Accumulator;
  static constexpr int kTileM = Config::kTileM, kTileN = Config::kTileN, kTileK = Config::kTileK;
  static constexpr int kStages = Config::kStages;
  /// A warp computes up to 64 x 64.
  static constexpr int kWarpsM = max_of(1, kTileM / 64);
  static constexpr int kWarpsN = min_of(kTileN / 16, kWarpsM <= 2 ? 4 : 2);
  static constexpr int kThreads = 32 * kWarpsM * kWarpsN;
  static constexpr int kBlocks = 1;
  static constexpr int kWarpM = kTileM / kWarpsM, kWarpN = kTileN / kWarpsN;
  static constexpr int kAtomsM = kWarpM / 16, kAtomsN = kWarpN / 8;

  using CopyA = StageCopy<typename Config::A, Config::kMajorA, Config::kAlignA, kTileM, kTileK, kThreads>;
  using CopyB = StageCopy<typename Config::B, Config::kMajorB, Config::kAlignB, kTileN, kTileK, kThreads>;
  using A = typename CopyA::Layout;
  using B = typename CopyB::Layout;
  using FragmentsA = Fragments<A, Word>;
  using FragmentsB = Fragments<B, Word>;
  using MatrixC = OutputMatrix<typename Config::C, Config::kMajorC, Config::kAlignC>;
  using MatrixD = OutputMatrix<typename Config::D, Config::kMajorD, Config::kAlignD>;
  using Epilogue = DirectEpilogue<typename Config::Epilogue, MatrixC, MatrixD>;
  using Order = TileOrder<kTileM, kTileN, 1, 1, Config::kRaster, Config::kSwizzle>;
  using Scheduler = PersistentScheduler<Order, kTileK, DirectParams>;
  static constexpr int kSharedBytes = kStages * (A::kBytes + B::kBytes);
  static_assert(kTileK % FragmentsA::kStepK == 0, "a stage is whole MMAs deep");

  __device__ static void run(DirectParams const& params) {
    extern __shared__ __align__(1024) char shared[];
    wait_for_prerequisites();
    Scheduler const scheduler(params, 0);
    for (int index = Scheduler::first(); index < scheduler.total; index += Scheduler::stride()) {
      compute(params, scheduler.work(index), shared);
    }
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
      commit_copies();
    }
    Sums sums = {};
    int stage = 0;
    for (int tile = 0; tile < work.k_tiles; ++tile) {
      // This tile has arrived, for every thread; and all are done with the one before it, whose stage is filled anew.
      wait_for_copies<kStages - 2>();
      __syncthreads();
      int const ahead = tile + kStages - 1;
      int const refilled = stage == 0 ? kStages - 1 : stage - 1;
      if (ahead < work.k_tiles) {
        a.begin(stage_a(shared, refilled), params.k - ahead * kTileK);
        b.begin(stage_b(shared, refilled), params.k - ahead * kTileK);
      }
      commit_copies();
      multiply(stage_a(shared, stage), stage_b(shared, stage), warp_m, warp_n, sums);
      if (ahead < work.k_tiles) {
        a.finish(stage_a(shared, refilled));
        b.finish(stage_b(shared, refilled));
      }
      stage = stage == kStages - 1 ? 0 : stage + 1;
    }
    __syncthreads();

    Epilogue const epilogue{typename Config::Epilogue(params),
                            {params.c.at_batch<typename Config::C>(work.batch), params.c.row_stride,
                             params.c.column_stride},
                            {params.d.at_batch<typename Config::D>(work.batch), params.d.row_stride,
                             params.d.column_stride},
                            params.m,
                            params.n,
                            work.batch};
#pragma unroll
    for (int i = 0; i < kAtomsM; ++i)
#pragma unroll
      for (int j = 0; j < kAtomsN; ++j)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          Accumulator const pair[2] = {sums[i][j][2 * half], sums[i][j][2 * half + 1]};
          epilogue.store(pair, work.m + warp_m + i * 16 + half * 8 + lane / 4,
                         work.n + warp_n + j * 8 + lane % 4 * 2);
        }
  }

  __device__ static void multiply(char const* a, char const* b, int warp_m, int warp_n, Sums& sums) {
    // Words put together from elements take registers: those of one step are enough at a time.
    constexpr int kUnroll = FragmentsA::kWhole && FragmentsB::kWhole ? kTileK / FragmentsA::kStepK : 1;
#pragma unroll kUnroll
    for (int k = 0; k < kTileK; k += FragmentsA::kStepK) {
      Word rows[kAtomsM][4], columns[kAtomsN / 2][4];
#pragma unroll
      for (int i = 0; i < kAtomsM; ++i) FragmentsA::load(a, warp_m + i * 16, k, rows[i]);
#pragma unroll
      for (int j = 0; j < kAtomsN / 2; ++j) FragmentsB::load(b, warp_n + j * 16, k, columns[j]);
#pragma unroll
      for (int i = 0; i < kAtomsM; ++i)
#pragma unroll
        for (int j = 0; j < kAtomsN; ++j) {
          Atom::multiply(rows[i], columns[j / 2][j % 2], columns[j / 2][j % 2 + 2], sums[i][j]);
        }
    }
  }
};

}  // namespace gemmill
