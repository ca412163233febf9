/// The sm_90a GEMM: TMA and WGMMA, warp-specialised and persistent, cooperative or pingpong.
///
/// Warpgroup 0 loads; the others multiply and store. The mainloop and the epilogue are under collective/, the tile
/// schedulers under scheduler/. Traits, shared memory, exported facts and the consumer loop are under kernel/wgmma/.
#pragma once

#include <cutlass/arch/reg_reconfig.h>

#include <gemmill/kernel/wgmma/consumer.cuh>
#include <gemmill/kernel/wgmma/spec.cuh>

namespace gemmill {

template <class Config_>
struct TmaWgmmaGemm : WgmmaSpec<WgmmaTraits<Config_>> {
  using Traits = WgmmaTraits<Config_>;
  using Storage = WgmmaStorage<Traits>;
  using Mainloop = CollectiveMainloop<Traits>;
  using Config = typename Traits::Config;
  using LoadA = typename Traits::LoadA;
  using LoadB = typename Traits::LoadB;
  using Params = typename Traits::Params;
  using Scheduler = typename Traits::Scheduler;
  static constexpr int kThreads = Traits::kThreads, kClusterSize = Traits::kClusterSize;

  __device__ static void run(Params const& params) {
    extern __shared__ __align__(1024) char shared[];
    Storage const storage{shared};
    auto& pipeline = storage.pipeline();
    auto* const full_c = storage.full_c();
    auto* const sums_barriers = storage.sums_barriers();

    int const warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    int const rank = Traits::kClusterSize == 1 ? 0 : int(cute::block_rank_in_cluster());
    if (warp == 0 && cute::elect_one_sync()) {
      if constexpr (!Traits::kGathersA) cute::prefetch_tma_descriptor(&params.a);
      if constexpr (!Traits::kGathersB) cute::prefetch_tma_descriptor(&params.b);
      if constexpr (!Traits::kGathersA && LoadA::kTails) cute::prefetch_tma_descriptor(&params.a_tail);
      if constexpr (LoadB::kTails) cute::prefetch_tma_descriptor(&params.b_tail);
      cute::prefetch_tma_descriptor(&params.d);
      pipeline.init();
      for (int i = 0; i < Traits::kStorers * Config::kBuffersC; ++i) cutlass::arch::ClusterBarrier::init(&full_c[i], 1);
      if constexpr (Traits::kPingpong) storage.pingpong_order().init();
      if constexpr (Traits::kTransposes) storage.transposed().init();
      if constexpr (Traits::kHandsTiles) storage.handed().init(Traits::kTakers);
      if constexpr (Traits::kClusterSplits > 1)
        for (int i = 0; i < Traits::kConsumers; ++i) sums_barriers[i].init();
      cutlass::arch::fence_barrier_init();
    }
    sync_cluster();
    // Everything before the wait may overlap the end of the previous kernel. The producer therefore waits only before
    // its first load.
    if constexpr (Traits::kReadsGroups) wait_for_prerequisites();

    Scheduler scheduler(params, rank);
    if (warp < 4) {
      cutlass::arch::warpgroup_reg_dealloc<Config::kProducerRegisters>();
      if constexpr (Traits::kGathers) {
        Mainloop::load_gathered(params, storage, scheduler);
      } else {
        if (warp == 0 && (Traits::kTilesEndInGroups || cute::elect_one_sync())) Mainloop::load(params, storage, scheduler);
      }
      if constexpr (Traits::kBlockScales && !Traits::kGathers) {
        if (warp == 1) Mainloop::load_scales(params, storage, scheduler);
      }
      if constexpr (Traits::kTransposes) {
        if (warp >= Traits::kFirstTransposer) Mainloop::transpose(storage, scheduler, warp - Traits::kFirstTransposer);
      }
    } else {
      cutlass::arch::warpgroup_reg_alloc<Config::kConsumerRegisters>();
      WgmmaConsumer<Traits>::consume(params, storage, scheduler, warp - 4);
    }
  }

 private:
  __device__ static void sync_cluster() {
    if constexpr (Traits::kClusterSize == 1) {
      __syncthreads();
    } else {
      __syncwarp();
      cute::cluster_arrive_relaxed();
      cute::cluster_wait();
    }
  }
};

}  // namespace gemmill
