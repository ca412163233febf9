/// The sm_90a GEMM: TMA + WGMMA, warp-specialised, persistent; cooperative or pingpong.
///
/// Warpgroup 0 loads; the others multiply and store. Shared memory:
/// | D subtiles | C subtiles | A stages | B stages | scales of stages | mbarriers |, as library/resources.py lays it out for the host.
#pragma once

#include <cutlass/arch/reg_reconfig.h>

#include <gemmill/copy/tma.cuh>
#include <gemmill/epilogue/linear.cuh>
#include <gemmill/epilogue/staged.cuh>
#include <gemmill/kernel/params.cuh>
#include <gemmill/mma/promoted.cuh>
#include <gemmill/mma/wgmma.cuh>
#include <gemmill/pipeline/pipeline.cuh>
#include <gemmill/scheduler/persistent.cuh>

namespace gemmill {

/// Facts that the host computes as well; the compiler refuses a kernel where the two disagree (emitters/emit.py).
struct KernelSpec {
  uint32_t threads, shared_bytes, tile_m, tile_n, cluster_m, cluster_n, params_bytes;
  uint32_t offset_a, offset_b, offset_c, offset_d, offset_m, offset_n, offset_k, offset_batch, offset_batched,
      offset_d_pointer, offset_d_stride, offset_d_batch_stride,
      offset_a_scale_pointer, offset_a_scale_stride, offset_a_scale_k_stride, offset_a_scale_batch_stride,
      offset_b_scale_pointer, offset_b_scale_stride, offset_b_scale_k_stride, offset_b_scale_batch_stride, offset_epilogue;
  uint32_t box_a_contiguous, box_a_strided, swizzle_a, box_b_contiguous, box_b_strided, swizzle_b;
  uint32_t box_c_contiguous, box_c_strided, swizzle_c, box_d_contiguous, box_d_strided, swizzle_d;
};

template <class Config>
struct TmaWgmmaGemm {
  using A = StageLayout<typename Config::A, Config::kMajorA, Config::kTileM, Config::kTileK>;
  using B = StageLayout<typename Config::B, Config::kMajorB, Config::kTileN, Config::kTileK>;
  static constexpr bool kPingpong = Config::kSchedule == Schedule::Pingpong;
  static constexpr int kConsumers = Config::kConsumers;
  static constexpr int kThreads = 128 * (1 + kConsumers);
  static constexpr int kWarpgroupM = kPingpong ? Config::kTileM : Config::kTileM / kConsumers;
  static constexpr int kBlocks = kWarpgroupM / 64;
  static constexpr int kClusterSize = Config::kClusterM * Config::kClusterN;
  static_assert(kWarpgroupM % 64 == 0, "a consumer warpgroup computes a multiple of 64 rows");

  /// Columns of D in a tile.
  static constexpr int kTileColumnsD = Config::kTileN / (Config::Epilogue::kGated ? 2 : 1);
  static constexpr int kSubtileN =
      subtile_n<typename Config::C, Config::kMajorC, typename Config::D, Config::kMajorD>(kTileColumnsD);
  using SubtileC = Subtile<typename Config::C, Config::kMajorC, kSubtileN>;
  using SubtileD = Subtile<typename Config::D, Config::kMajorD, kSubtileN>;
  using Epilogue = StagedEpilogue<typename Config::Epilogue, SubtileC, SubtileD, kBlocks, kTileColumnsD, kSubtileN,
                                  Config::kBuffersC, Config::kBuffersD>;

  using Scales = ScaleStage<Config::kTileM>;
  using ThreadScales = cute::conditional_t<Config::kBlockScales,
                                           BlockScales<Scales, kBlocks, Config::kTileM, Config::kTileN>, NoScales>;
  using Accumulator = cute::conditional_t<
      Config::kPromote,
      PromotedAccumulators<typename Config::Atom, A, B, ThreadScales, kBlocks, Config::kTileN, Config::kTileK>,
      Accumulators<typename Config::Atom, A, B, kBlocks, Config::kTileK>>;
  using Order = TileOrder<Config::kTileM, Config::kTileN, Config::kClusterM, Config::kClusterN, Config::kRaster,
                          Config::kSwizzle>;
  using Scheduler = typename Config::template Scheduler<Order, Config::kTileK>;
  using Params = KernelParams<typename Scheduler::Params, typename Config::Epilogue>;
  using StagePipeline =
      Pipeline<Config::kStages, Config::kClusterM, Config::kClusterN, 4 * (kPingpong ? 1 : kConsumers),
               Config::kBlockScales ? Scales::kArrivals : 0>;
  using Position = RingPosition<Config::kStages>;

  static constexpr int kOffsetC = kConsumers * Config::kBuffersD * SubtileD::kBytes;
  static constexpr int kOffsetA = kOffsetC + kConsumers * Config::kBuffersC * SubtileC::kBytes;
  static constexpr int kOffsetB = kOffsetA + Config::kStages * A::kBytes;
  static constexpr int kOffsetScales = kOffsetB + Config::kStages * B::kBytes;
  static constexpr int kOffsetBarriers = kOffsetScales + (Config::kBlockScales ? Config::kStages * Scales::kBytes : 0);
  static constexpr int kOffsetTurns =
      kOffsetBarriers + int(sizeof(StagePipeline)) + kConsumers * Config::kBuffersC * int(sizeof(uint64_t));
  static constexpr int kSharedBytes = kOffsetTurns + (kPingpong ? int(sizeof(Turns)) : 0);

  static constexpr KernelSpec spec() {
    using LoadA = StageLoad<A, Config::kClusterN>;
    using LoadB = StageLoad<B, Config::kClusterM>;
    return {kThreads, kSharedBytes, Config::kTileM, Config::kTileN, Config::kClusterM, Config::kClusterN,
            sizeof(Params), offsetof(GemmParams, a), offsetof(GemmParams, b), offsetof(GemmParams, c),
            offsetof(GemmParams, d), offsetof(GemmParams, m), offsetof(GemmParams, n), offsetof(GemmParams, k),
            offsetof(GemmParams, batch), offsetof(GemmParams, batched), offsetof(GemmParams, d_pointer), offsetof(GemmParams, d_stride),
            offsetof(GemmParams, d_batch_stride), offsetof(GemmParams, a_scale.pointer),
            offsetof(GemmParams, a_scale.stride), offsetof(GemmParams, a_scale.k_stride),
            offsetof(GemmParams, a_scale.batch_stride), offsetof(GemmParams, b_scale.pointer),
            offsetof(GemmParams, b_scale.stride), offsetof(GemmParams, b_scale.k_stride),
            offsetof(GemmParams, b_scale.batch_stride), offsetof(Params, epilogue), A::kPanelExtent, LoadA::kRows, A::kSpan, B::kPanelExtent, LoadB::kRows,
            B::kSpan, SubtileC::kBoxContiguous, SubtileC::kBoxStrided, SubtileC::kSpan, SubtileD::kBoxContiguous,
            SubtileD::kBoxStrided, SubtileD::kSpan};
  }

  __device__ static void run(Params const& params) {
    extern __shared__ __align__(1024) char shared[];
    auto& pipeline = *reinterpret_cast<StagePipeline*>(shared + kOffsetBarriers);
    auto* const full_c = reinterpret_cast<uint64_t*>(&pipeline + 1);
    auto& turns = *reinterpret_cast<Turns*>(shared + kOffsetTurns);

    int const warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    int const rank = kClusterSize == 1 ? 0 : int(cute::block_rank_in_cluster());
    if (warp == 0 && cute::elect_one_sync()) {
      cute::prefetch_tma_descriptor(&params.a);
      cute::prefetch_tma_descriptor(&params.b);
      cute::prefetch_tma_descriptor(&params.d);
      pipeline.init();
      for (int i = 0; i < kConsumers * Config::kBuffersC; ++i) cutlass::arch::ClusterBarrier::init(&full_c[i], 1);
      if constexpr (kPingpong) turns.init();
      cutlass::arch::fence_barrier_init();
    }
    sync_cluster();
    // All of the above may overlap the end of the kernel before; nothing below may.
    wait_for_prerequisites();

    Scheduler const scheduler(params, rank);
    if (warp < 4) {
      cutlass::arch::warpgroup_reg_dealloc<Config::kProducerRegisters>();
      if (warp == 0 && cute::elect_one_sync()) produce(params, shared, pipeline, scheduler);
      if (Config::kBlockScales && warp == 1) produce_scales(params, shared, pipeline, scheduler);
    } else {
      cutlass::arch::warpgroup_reg_alloc<Config::kConsumerRegisters>();
      consume(params, shared, pipeline, full_c, turns, scheduler, warp - 4);
    }
    // Peers write to this block's shared memory and barriers until they are done.
    if constexpr (kClusterSize > 1) sync_cluster();
  }

 private:
  // Programmatic dependent launch (PTX ISA, "griddepcontrol"); without it in the launch, neither does anything.
  __device__ static void wait_for_prerequisites() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
  __device__ static void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

  __device__ static void sync_cluster() {
    if constexpr (kClusterSize == 1) {
      __syncthreads();
    } else {
      __syncwarp();
      cute::cluster_arrive_relaxed();
      cute::cluster_wait();
    }
  }

  __device__ static void produce(Params const& params, char* shared, StagePipeline& pipeline,
                                 Scheduler const& scheduler) {
    int const m = scheduler.rank % Config::kClusterM;
    int const n = scheduler.rank / Config::kClusterM;
    // A is shared by the blocks of a row of the cluster (same m), B by those of a column (same n).
    uint32_t row = 0;
    for (int i = 0; i < Config::kClusterN; ++i) row |= 1u << (m + i * Config::kClusterM);
    uint32_t const column = ((1u << Config::kClusterM) - 1) << (n * Config::kClusterM);
    StageLoad<A, Config::kClusterN> const load_a{n, uint16_t(row)};
    StageLoad<B, Config::kClusterM> const load_b{m, uint16_t(column)};

    Position at;
    for (int index = scheduler.first(); index < scheduler.total; index += scheduler.stride()) {
      Work const work = scheduler.work(index);
      int const batch_a = params.batched & 1 ? work.batch : 0;
      int const batch_b = params.batched & 2 ? work.batch : 0;
      for (int k_tile = work.k_tile; k_tile < work.k_tile + work.k_tiles; ++k_tile, at.advance()) {
        pipeline.acquire(at, A::kBytes + B::kBytes);
        uint64_t& full = pipeline.full[at.stage];
        int const k = k_tile * Config::kTileK;
        load_a(params.a, full, shared + kOffsetA + at.stage * A::kBytes, work.m, k, batch_a);
        load_b(params.b, full, shared + kOffsetB + at.stage * B::kBytes, work.n, k, batch_b);
      }
    }
    launch_dependents();
  }

  /// One warp: fills the scales of each stage, beside `produce`.
  __device__ static void produce_scales(Params const& params, char* shared, StagePipeline& pipeline,
                                        Scheduler const& scheduler) {
    uint32_t const stages = cute::cast_smem_ptr_to_uint(shared + kOffsetScales);
    uint32_t const full = cute::cast_smem_ptr_to_uint(&pipeline.full[0]);
    Position at;
    for (int index = scheduler.first(); index < scheduler.total; index += scheduler.stride()) {
      Work const work = scheduler.work(index);
      ScaleLoad<Config::kTileM> load(params, work.m, work.n, work.k_tile, work.batch);
#pragma unroll 1
      for (int i = 0; i < work.k_tiles; ++i, at.advance()) {
        pipeline.wait_empty(at);
        load(stages + at.stage * Scales::kBytes, full + at.stage * int(sizeof(uint64_t)));
      }
    }
  }

  /// The stages as a consumer warp walks them.
  struct ConsumerStages {
    StagePipeline& pipeline;
    Position& at;
    int lane;
    int rank;

    __device__ int index() const { return at.stage; }
    __device__ void wait() { pipeline.wait_full(at); }
    __device__ void advance() { at.advance(); }
    __device__ void release(int stage) { pipeline.release(stage, lane, rank); }
  };

  /// What scales a warpgroup's part of a tile, which begins at row m of it and at column n of D.
  __device__ static ThreadScales scales(char const* shared, int m, int n) {
    if constexpr (Config::kBlockScales) {
      return {shared + kOffsetScales, m, n};
    } else {
      return {};
    }
  }

  __device__ static void consume(Params const& params, char* shared, StagePipeline& pipeline, uint64_t* full_c,
                                 Turns& turns, Scheduler const& scheduler, int consumer_warp) {
    int const warpgroup = consumer_warp / 4;
    int const lane = threadIdx.x % 32;
    Epilogue epilogue{params,
                      params.epilogue,
                      shared + kOffsetC + warpgroup * Config::kBuffersC * SubtileC::kBytes,
                      shared + warpgroup * Config::kBuffersD * SubtileD::kBytes,
                      full_c + warpgroup * Config::kBuffersC,
                      uint32_t(1 + warpgroup)};
    MatrixDescriptors<A> const a(shared + kOffsetA, kPingpong ? 0 : A::offset(warpgroup * kWarpgroupM, 0));
    MatrixDescriptors<B> const b(shared + kOffsetB, 0);

    Position at;
    uint32_t turn = warpgroup == 0;
    int index = scheduler.first();
    int stride = scheduler.stride();
    if constexpr (kPingpong) {
      at.advance(warpgroup * scheduler.k_tiles(index));
      index += warpgroup * stride;
      stride *= 2;
    }
    for (; index < scheduler.total; index += stride) {
      Work const work = scheduler.work(index);
      int const m = work.m + (kPingpong ? 0 : warpgroup * kWarpgroupM);
      int const n_d = work.n / (Config::kTileN / kTileColumnsD);
      epilogue.prefetch(m, n_d, work.batch);

      Accumulator accumulators;
      if constexpr (kPingpong) turns.wait(warpgroup, turn);
      if constexpr (Config::kPromote) {
        accumulators.multiply(a, b, ConsumerStages{pipeline, at, lane, scheduler.rank}, work.k_tiles,
                              scales(shared, m - work.m, work.n));
      } else {
        if (work.k_tiles == 0) accumulators.clear();
        for (int k_tile = 0; k_tile < work.k_tiles; ++k_tile) {
          pipeline.wait_full(at);
          accumulators.multiply(a, b, at.stage, k_tile == 0);
          // One batch of MMAs stays in flight; the one before it has read its stage.
          wgmma_wait<1>();
          if (k_tile > 0) pipeline.release(at.previous(), lane, scheduler.rank);
          at.advance();
        }
      }
      if constexpr (kPingpong) {
        turns.pass(warpgroup, lane);
        turn ^= 1;
      }
      if constexpr (!Config::kPromote) {
        wgmma_wait<0>();
        accumulators.fence();
        if (work.k_tiles > 0) pipeline.release(at.previous(), lane, scheduler.rank);
      }
      if constexpr (kPingpong) at.advance(scheduler.k_tiles(index + stride / 2));

      epilogue.store(accumulators, m, n_d, work.batch_d);
    }
    epilogue.finish();
  }
};

}  // namespace gemmill
