/// Shared by the kernels without TMA: the loop over output tiles, and the epilogue of one tile.
#pragma once

#include <gemmill/epilogue/direct.cuh>
#include <gemmill/epilogue/linear.cuh>
#include <gemmill/kernel/direct_params.cuh>
#include <gemmill/pipeline/dependent_launch.cuh>
#include <gemmill/scheduler/persistent.cuh>

namespace gemmill {

template <class Config>
struct DirectGemm {
  /// Plain division: with a cached quotient, ptxas puts gemv's loads of A between those of B, which is 3% slower.
  using Order = TileOrder<Config::kTileM, Config::kTileN, 1, 1, Config::kRaster, Config::kSwizzle, PlainQuotient>;
  using Scheduler = PersistentScheduler<Order, Config::kTileK, DirectParams>;
  using MatrixC = OutputMatrix<typename Config::C, Config::kMajorC, Config::kAlignC>;
  using MatrixD = OutputMatrix<typename Config::D, Config::kMajorD, Config::kAlignD>;
  using Epilogue = DirectEpilogue<typename Config::Epilogue, MatrixC, MatrixD>;

  /// Calls `compute(work)` for every tile of this CTA. All threads must call it.
  template <class Compute>
  __device__ static void for_each_tile(DirectParams const& params, Compute const& compute) {
    Scheduler scheduler(params, 0);
    for (int index = Scheduler::first(); index < scheduler.total; index += Scheduler::stride()) {
      compute(scheduler.work(index));
    }
  }

  __device__ static Epilogue epilogue(DirectParams const& params, Work const& work) {
    return {typename Config::Epilogue(params),
            {params.c.at_batch<typename Config::C>(work.batch), params.c.row_stride, params.c.column_stride},
            {params.d.at_batch<typename Config::D>(work.batch_d), params.d.row_stride, params.d.column_stride},
            params.m,
            params.n,
            work.batch};
  }
};

}  // namespace gemmill
