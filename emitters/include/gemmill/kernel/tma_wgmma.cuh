/// The sm_90a GEMM: TMA + WGMMA, warp-specialised, persistent; cooperative or pingpong.
///
/// Warpgroup 0 loads; the others multiply and store. Shared memory:
/// | D subtiles | C subtiles | A stages | B stages | scales of stages | sums of slices or of a cluster's blocks |
/// mbarriers |, as library/legality/resources.py lays it out for the host; stages of an operand that is transposed are followed by
/// what they are made of.
#pragma once

#include <cutlass/arch/reg_reconfig.h>

#include <gemmill/copy/tma.cuh>
#include <gemmill/epilogue/cluster_sums.cuh>
#include <gemmill/epilogue/linear.cuh>
#include <gemmill/epilogue/partials.cuh>
#include <gemmill/epilogue/staged.cuh>
#include <gemmill/kernel/params.cuh>
#include <gemmill/kernel/reduction.cuh>
#include <gemmill/mma/columns.cuh>
#include <gemmill/mma/narrow.cuh>
#include <gemmill/mma/promoted.cuh>
#include <gemmill/mma/transpose.cuh>
#include <gemmill/mma/wgmma.cuh>
#include <gemmill/pipeline/dependent_launch.cuh>
#include <gemmill/pipeline/named_barrier.cuh>
#include <gemmill/pipeline/pipeline.cuh>
#include <gemmill/scheduler/cluster.cuh>
#include <gemmill/scheduler/groups.cuh>
#include <gemmill/scheduler/persistent.cuh>
#include <gemmill/scheduler/split.cuh>
#include <gemmill/scheduler/stream.cuh>

namespace gemmill {

/// Facts that the host computes as well; the compiler refuses a kernel where the two disagree (emitters/emit.py).
struct KernelSpec {
  uint32_t threads, shared_bytes, tile_m, tile_n, cluster_m, cluster_n, params_bytes;
  uint32_t offset_a, offset_b, offset_c, offset_d, offset_m, offset_n, offset_k, offset_batch, offset_batched,
      offset_d_pointer, offset_d_stride, offset_d_batch_stride,
      offset_a_scale_pointer, offset_a_scale_stride, offset_a_scale_k_stride, offset_a_scale_batch_stride,
      offset_b_scale_pointer, offset_b_scale_stride, offset_b_scale_k_stride, offset_b_scale_batch_stride,
      offset_groups_pointer;
  uint32_t box_a_contiguous, box_a_strided, swizzle_a, window_a, box_b_contiguous, box_b_strided, swizzle_b, window_b;
  uint32_t box_c_contiguous, box_c_strided, swizzle_c, window_c, box_d_contiguous, box_d_strided, swizzle_d, window_d;
  /// Of a's group scales and zero points, 0 without: where their descriptors are, and the groups of a stage.
  uint32_t offset_scale, offset_zero, groups;
  /// Descriptors of the rows that boxes leave over, 0 where boxes reach beyond the operand.
  uint32_t offset_a_tail, offset_b_tail;
  uint32_t offset_epilogue;
};

/// The same of a kernel that sums parts of K, and of its reduction kernel.
struct PartsSpec {
  KernelSpec kernel;
  uint32_t offset_partials, offset_flags, offset_c_pointer, offset_c_stride, offset_c_batch_stride;
  uint32_t splits, slot_bytes, slot_flags, reduction_threads, reduction_vectors;
};

/// The same of a kernel that sums parts of K in the blocks of a cluster.
struct ClusterSpec {
  KernelSpec kernel;
  uint32_t splits;
};

template <class Config>
struct TmaWgmmaGemm {
  /// A is widened to B's type on its way to the tensor cores; its stages are bytes.
  static constexpr bool kMixed = bits_of<typename Config::A> < bits_of<typename Config::B>;
  static constexpr int kBitsA = bits_of<typename Config::A>;
  /// An M-major A of 32 bits goes to the tensor cores from registers, as A does that is widened.
  static constexpr bool kColumns = kBitsA == 32 && Config::kMajorA == MajorIn::MN;
  static constexpr bool kRegistersA = kMixed || kColumns;
  using StagesA =
      cute::conditional_t<kMixed, OperandStages<uint8_t, MajorIn::K, Config::kTileM, Config::kTileK * kBitsA / 8, false>,
                          OperandStages<typename Config::A, Config::kMajorA, Config::kTileM, Config::kTileK, !kColumns>>;
  using StagesB = OperandStages<typename Config::B, Config::kMajorB, Config::kTileN, Config::kTileK, true>;
  static constexpr bool kTransposes = StagesA::kTransposed || StagesB::kTransposed;
  using RawA = typename StagesA::Raw;
  using RawB = typename StagesB::Raw;
  using A = typename StagesA::Ready;
  using B = typename StagesB::Ready;
  static constexpr bool kPingpong = Config::kSchedule == Schedule::Pingpong;
  static constexpr int kConsumers = Config::kConsumers;
  static constexpr int kThreads = 128 * (1 + kConsumers);
  /// Tiles of 64 rows: the consumers split the K of each stage instead.
  static constexpr int kSlices = kMixed && !kPingpong && Config::kTileM == 64 ? kConsumers : 1;
  static constexpr int kStorers = kSlices > 1 ? 1 : kConsumers;
  static constexpr int kSliceK = Config::kTileK / kSlices;
  static constexpr int kWarpgroupM = kPingpong || kSlices > 1 ? Config::kTileM : Config::kTileM / kConsumers;
  static constexpr int kBlocks = kWarpgroupM / 64;
  /// Beside 192 accumulators cooperative kernels have no register left to remember a quotient in, nor have four consumers;
  /// pingpong's have.
  static constexpr bool kRemembers = kSlices == 1 && (kPingpong || kBlocks * Config::kTileN < 2 * 192);
  using Order = TileOrder<Config::kTileM, Config::kTileN, Config::kClusterM, Config::kClusterN, Config::kRaster,
                          Config::kSwizzle, Quotient<kRemembers>>;
  using Scheduler = typename Config::template Scheduler<Order, Config::kTileK>;
  /// Blocks of a cluster that share K of a tile, and store a share of its columns each.
  enum : int { kClusterParts = ClusterParts<Scheduler>::kCount };
  static constexpr int kClusterSize = Config::kClusterM * Config::kClusterN * kClusterParts;
  static constexpr int kTileWarpgroups = kPingpong ? 1 : kConsumers;
  /// The named barrier of the warpgroups that add up slices; the epilogues have the ones below.
  static constexpr int kSliceBarrier = named_barrier::kWarpgroups + kConsumers;
  static_assert(!Config::kBlockScales || named_barrier::kScales + Config::kStages <= named_barrier::kEnd,
                "a stage of scales has a named barrier");
  static_assert(kWarpgroupM % 64 == 0, "a consumer warpgroup computes a multiple of 64 rows");

  /// Columns of D that a block stores of a tile.
  static constexpr int kTileColumnsD = Config::kTileN / (Config::Epilogue::kGated ? 2 : 1) / kClusterParts;
  static_assert(kTileColumnsD % 8 == 0 || kClusterParts == 1, "blocks of a cluster store whole fragments");
  using SubtileC = Subtile<typename Config::C, Config::kMajorC, Config::kSubtileN>;
  using SubtileD = Subtile<typename Config::D, Config::kMajorD, Config::kSubtileN>;
  using Epilogue = StagedEpilogue<typename Config::Epilogue, SubtileC, SubtileD, kBlocks, kTileColumnsD,
                                  Config::kSubtileN, Config::kBuffersC, Config::kBuffersD>;

  using Scales = ScaleStage<Config::kTileM, 128 * kTileWarpgroups>;
  using ThreadScales = cute::conditional_t<Config::kBlockScales,
                                           BlockScales<Scales, kBlocks, Config::kTileM, Config::kTileN>, NoScales>;
  using Accumulator = cute::conditional_t<
      Config::kPromote,
      PromotedAccumulators<typename Config::Atom, A, B, ThreadScales, kBlocks, Config::kTileN, Config::kTileK>,
      Accumulators<typename Config::Atom, A, B, kBlocks, kSliceK>>;
  using Groups = GroupLayout<typename Config::B, Config::kGroup, Config::kZeros, Config::kTileM, Config::kTileK>;
  using Narrow = NarrowOperand<typename Config::A, typename Config::B, A, Groups, kBlocks, kSliceK>;
  /// The kernel's only parameter: GemmParams, or what a scheduler adds to it, group scales to that, and the epilogue's.
  using Params = KernelParams<
      cute::conditional_t<(Groups::kGroups > 0), GroupParams<typename Scheduler::Params>, typename Scheduler::Params>,
      typename Config::Epilogue>;
  using Unit = decltype(cute::declval<Scheduler&>().work(0));
  /// Whether parts of K of one tile are summed by several blocks, one of which stores it.
  static constexpr bool kShared = cute::is_same_v<Unit, SharedWork>;
  using Partials = PartialTiles<Accumulator, kClusterSize * kTileWarpgroups>;
  using Sums = ClusterSums<Accumulator, kClusterParts>;
  using SumsBarriers = ClusterSumsBarriers<kClusterParts>;
  using StagePipeline = Pipeline<Config::kStages, Config::kClusterM, Config::kClusterN, 4 * kTileWarpgroups,
                                 Config::kBlockScales ? Scales::kArrivals : 0>;
  /// Groups along M: a warp shares the scheduler, and tiles end at the last row of their group.
  static constexpr bool kRowGroups = cute::is_same_v<Unit, RowGroupWork>;
  /// Groups along K: A and B are read through windows, which end where the group does.
  static constexpr bool kGroupsK = cute::is_same_v<Unit, KGroupWork>;
  static constexpr int kWindowK = kGroupsK ? Config::kTileK : 0;
  static constexpr bool kArray = cute::is_same_v<Unit, ArrayWork>;
  /// Whether work is found in memory that the kernel before may have written.
  enum : bool { kReadsGroups = kRowGroups || kGroupsK || kArray };
  /// Descriptors of A and B begin outside them. Every box then holds some of their K.
  static constexpr bool kInside = kGroupsK || kArray;
  using LoadA = StageLoad<RawA, Config::kClusterN, kInside ? Reach::Inside : kRowGroups ? Reach::Beyond : Reach::Cut>;
  using LoadB = StageLoad<RawB, Config::kClusterM, kInside ? Reach::Inside : Reach::Cut>;
  static_assert(!kInside || kClusterSize == 1, "a slice of a stage may lie wholly beyond K");
  static_assert(!kInside || ((RawA::kMajor == MajorIn::MN || RawA::kPanels == 1) &&
                             (RawB::kMajor == MajorIn::MN || RawB::kPanels == 1)),
                "a panel may lie wholly beyond K");
  static constexpr Matrices kMatrices = kRowGroups ? Matrices::Cut : kArray ? Matrices::Array : Matrices::Strided;
  static_assert(!kMixed || (kMatrices == Matrices::Strided && !kGroupsK), "narrow A has no groups");
  /// Whether the first MMAs of a tile run beside the epilogue of the one before, which sums that are added up elsewhere
  /// allow. (Pingpong's other warpgroup multiplies meanwhile.)
  enum : bool { kAhead = Config::kBlockScales && !kPingpong };
  using Position = RingPosition<Config::kStages>;
  /// Warps of the producer warpgroup transpose; the first one loads, the second fills block scales where there are some.
  static constexpr int kFirstTransposer = Config::kBlockScales ? 2 : 1;
  static constexpr int kTransposers = 4 - kFirstTransposer;
  using Ready = ReadyStages<Config::kStages, kTransposers>;

  static constexpr int kOffsetC = kStorers * Config::kBuffersD * Epilogue::kBytesD;
  static constexpr int kOffsetA = kOffsetC + kStorers * Config::kBuffersC * Epilogue::kBytesC;
  static constexpr int kOffsetRawA = kOffsetA + Config::kStages * StagesA::kExtraBytes;
  static constexpr int kOffsetB = kOffsetA + Config::kStages * (A::kBytes + StagesA::kExtraBytes);
  static constexpr int kOffsetRawB = kOffsetB + Config::kStages * StagesB::kExtraBytes;
  static constexpr int kOffsetScales = kOffsetB + Config::kStages * (B::kBytes + StagesB::kExtraBytes);
  /// TMA and WGMMA swizzle by address: eight rows are a period.
  static_assert(kOffsetA % (8 * A::kSpan) == 0 && kOffsetRawA % (8 * RawA::kSpan) == 0 &&
                    kOffsetB % (8 * B::kSpan) == 0 && kOffsetRawB % (8 * RawB::kSpan) == 0,
                "stages begin where their swizzle does");
  /// Whether the last tile of D that a block stores is staged where A and B were: no subtile then waits for another's copy.
  /// Cooperative warpgroups, which store at the same time, are slower so.
  enum : bool {
    kSpares = kPingpong && Epilogue::kSpares && !kShared && kClusterParts == 1 &&
              Epilogue::kSpareBytes <= kOffsetScales - kOffsetA
  };
  static constexpr int kOffsetSlices =
      kOffsetScales + Config::kStages * (Config::kBlockScales ? Scales::kBytes : Groups::kBytes);
  static_assert(kSlices == 1 || kClusterParts == 1, "either warpgroups or blocks share K of a tile");
  static constexpr int kOffsetBarriers =
      kOffsetSlices + (kSlices - 1) * Config::kTileM * Config::kTileN * int(sizeof(float)) + kConsumers * Sums::kBytes;
  static constexpr int kOffsetTurns =
      kOffsetBarriers + int(sizeof(StagePipeline)) + kStorers * Config::kBuffersC * int(sizeof(uint64_t));
  static constexpr int kOffsetReady = kOffsetTurns + (kPingpong ? int(sizeof(Turns)) : 0);
  enum : int { kOffsetSums = kOffsetReady + (kTransposes ? int(sizeof(Ready)) : 0) };
  static constexpr int kSharedBytes = kOffsetSums + (kClusterParts > 1 ? kConsumers * int(sizeof(SumsBarriers)) : 0);

  static constexpr uint32_t kOffsetScale = sizeof(typename Scheduler::Params);

  static constexpr KernelSpec spec() {
    return {kThreads, kSharedBytes, Config::kTileM, Config::kTileN, Config::kClusterM, Config::kClusterN,
            sizeof(Params), offsetof(GemmParams, a), offsetof(GemmParams, b), offsetof(GemmParams, c),
            offsetof(GemmParams, d), offsetof(GemmParams, m), offsetof(GemmParams, n), offsetof(GemmParams, k),
            offsetof(GemmParams, batch), offsetof(GemmParams, batched), offsetof(GemmParams, d_pointer), offsetof(GemmParams, d_stride),
            offsetof(GemmParams, d_batch_stride), offsetof(GemmParams, a_scale.pointer),
            offsetof(GemmParams, a_scale.stride), offsetof(GemmParams, a_scale.k_stride),
            offsetof(GemmParams, a_scale.batch_stride), offsetof(GemmParams, b_scale.pointer),
            offsetof(GemmParams, b_scale.stride), offsetof(GemmParams, b_scale.k_stride),
            offsetof(GemmParams, b_scale.batch_stride), offsetof(GemmParams, groups), RawA::kPanelExtent, LoadA::kRows,
            RawA::kSpan, kWindowK, RawB::kPanelExtent, LoadB::kRows, RawB::kSpan, kWindowK, SubtileC::kBoxContiguous,
            SubtileC::kBoxStrided, SubtileC::kSpan, 0, SubtileD::kBoxContiguous, SubtileD::kBoxStrided, SubtileD::kSpan,
            kRowGroups ? kSubtileM : 0, Groups::kGroups > 0 ? kOffsetScale : 0,
            Groups::kHasZeros ? kOffsetScale + uint32_t(sizeof(cute::TmaDescriptor)) : 0, Groups::kGroups,
            LoadA::kTails ? uint32_t(offsetof(GemmParams, a_tail)) : 0,
            LoadB::kTails ? uint32_t(offsetof(GemmParams, b_tail)) : 0, offsetof(Params, epilogue)};
  }

  template <class Reduction>
  static constexpr PartsSpec parts_spec() {
    return {spec(), offsetof(Params, partials), offsetof(Params, flags), offsetof(Params, c_pointer),
            offsetof(Params, c_stride), offsetof(Params, c_batch_stride), Scheduler::kSplits,
            kShared ? Partials::kSlotBytes : 0, kShared ? Partials::kWarpgroups : 0, Reduction::kThreads,
            Reduction::kVectors};
  }

  static constexpr ClusterSpec cluster_spec() { return {spec(), kClusterParts}; }

  __device__ static void run(Params const& params) {
    extern __shared__ __align__(1024) char shared[];
    auto& pipeline = *reinterpret_cast<StagePipeline*>(shared + kOffsetBarriers);
    auto* const full_c = reinterpret_cast<uint64_t*>(&pipeline + 1);
    auto& turns = *reinterpret_cast<Turns*>(shared + kOffsetTurns);
    auto& ready = *reinterpret_cast<Ready*>(shared + kOffsetReady);
    auto* const sums_barriers = reinterpret_cast<SumsBarriers*>(shared + kOffsetSums);

    int const warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    int const rank = kClusterSize == 1 ? 0 : int(cute::block_rank_in_cluster());
    if (warp == 0 && cute::elect_one_sync()) {
      cute::prefetch_tma_descriptor(&params.a);
      cute::prefetch_tma_descriptor(&params.b);
      if constexpr (LoadA::kTails) cute::prefetch_tma_descriptor(&params.a_tail);
      if constexpr (LoadB::kTails) cute::prefetch_tma_descriptor(&params.b_tail);
      cute::prefetch_tma_descriptor(&params.d);
      pipeline.init();
      for (int i = 0; i < kStorers * Config::kBuffersC; ++i) cutlass::arch::ClusterBarrier::init(&full_c[i], 1);
      if constexpr (kPingpong) turns.init();
      if constexpr (kTransposes) ready.init();
      if constexpr (kClusterParts > 1)
        for (int i = 0; i < kConsumers; ++i) sums_barriers[i].init();
      cutlass::arch::fence_barrier_init();
    }
    sync_cluster();
    // What comes before a wait may overlap the end of the kernel before: a load waits once it is ready to be issued.
    if constexpr (kReadsGroups) wait_for_prerequisites();

    Scheduler scheduler(params, rank);
    if (warp < 4) {
      cutlass::arch::warpgroup_reg_dealloc<Config::kProducerRegisters>();
      if (warp == 0 && (kRowGroups || cute::elect_one_sync())) produce(params, shared, pipeline, scheduler);
      if (Config::kBlockScales && warp == 1) produce_scales(params, shared, pipeline, scheduler);
      if constexpr (kTransposes) {
        if (warp >= kFirstTransposer) transpose(shared, pipeline, ready, scheduler, warp - kFirstTransposer);
      }
    } else {
      cutlass::arch::warpgroup_reg_alloc<Config::kConsumerRegisters>();
      consume(params, shared, pipeline, ready, full_c, turns, sums_barriers, scheduler, warp - 4);
    }
  }

 private:
  __device__ static bool is_stored(Work const&) { return true; }
  __device__ static bool is_stored(SharedWork const& work) { return work.part == 0; }

  __device__ static void sync_cluster() {
    if constexpr (kClusterSize == 1) {
      __syncthreads();
    } else {
      __syncwarp();
      cute::cluster_arrive_relaxed();
      cute::cluster_wait();
    }
  }

  /// One thread issues the loads; where a warp shares the scheduler, the others follow it.
  __device__ static void produce(Params const& params, char* shared, StagePipeline& pipeline, Scheduler& scheduler) {
    bool const issues = !kRowGroups || cute::elect_one_sync();
    int const m = scheduler.rank % Config::kClusterM;
    int const n = scheduler.rank / Config::kClusterM;
    // A is shared by the blocks of a row of the cluster (same m), B by those of a column (same n).
    uint32_t row = 0;
    for (int i = 0; i < Config::kClusterN; ++i) row |= 1u << (m + i * Config::kClusterM);
    uint32_t const column = ((1u << Config::kClusterM) - 1) << (n * Config::kClusterM);
    LoadA const load_a{params.a, params.a_tail, n, uint16_t(row), params.m};
    LoadB const load_b{params.b, params.b_tail, m, uint16_t(column), params.n};

    Position at;
    bool waits = !kReadsGroups;
    for (int index = scheduler.first(); index < scheduler.total; index += scheduler.stride()) {
      Unit const work = scheduler.work(index);
      int const batch_a = params.batched & 1 ? work.batch : 0;
      int const batch_b = params.batched & 2 ? work.batch : 0;
      uint32_t const bytes = load_a.bytes(work.m) + load_b.bytes(work.n) + Groups::kBytes;
      auto const tile_a = load_a.tile(work.m);
      auto const tile_b = load_b.tile(work.n);
      for (int k_tile = work.k_tile; k_tile < work.k_tile + work.k_tiles; ++k_tile, at.advance()) {
        if (!issues) continue;
        pipeline.acquire(at, bytes);
        uint64_t& full = pipeline.full[at.stage];
        char* const stage_a = shared + kOffsetRawA + at.stage * A::kBytes;
        char* const stage_b = shared + kOffsetRawB + at.stage * B::kBytes;
        int const k = k_tile * Config::kTileK;
        if (waits) wait_for_prerequisites();
        waits = false;
        if constexpr (kGroupsK) {
          // A window of tile K rows: what is beyond the group's end arrives as zeros.
          int const rows = min(work.end - work.begin - k, Config::kTileK);
          int const place = work.begin + k + rows;
          load_a(tile_a, full, stage_a, Config::kTileK - rows, place, 0);
          load_b(tile_b, full, stage_b, Config::kTileK - rows, place, 0);
        } else if constexpr (kArray) {
          ArrayMatrix const matrix_a(params, Operand::A, work.batch), matrix_b(params, Operand::B, work.batch);
          load_a(tile_a, full, stage_a, k, matrix_a.low(), matrix_a.high());
          load_b(tile_b, full, stage_b, k, matrix_b.low(), matrix_b.high());
        } else {
          load_a(tile_a, full, stage_a, kMixed ? k * kBitsA / 8 : k, batch_a);
          load_b(tile_b, full, stage_b, k, batch_b);
        }
        if constexpr (Groups::kGroups > 0)
          Groups::load(params, full, shared + kOffsetScales + at.stage * Groups::kBytes, work.m, k, batch_a);
      }
    }
    if (issues) launch_dependents();
    // Peers arrive at this block's barriers until they have read its last stages: it must not end before. (All else that
    // reaches its shared memory, loads of peers and sums of other parts of K, it has waited for.)
    if constexpr (StagePipeline::kPeers > 1) {
      for (int i = 0; issues && i < Config::kStages; ++i, at.advance()) pipeline.wait_empty(at);
    }
  }

  /// One warp: fills the scales of each stage, beside `produce`. A full barrier has seen all arrivals of one lap before the
  /// readers of that lap release its scales.
  __device__ static void produce_scales(Params const& params, char* shared, StagePipeline& pipeline,
                                        Scheduler& scheduler) {
    uint32_t const stages = cute::cast_smem_ptr_to_uint(shared + kOffsetScales);
    uint32_t const full = cute::cast_smem_ptr_to_uint(&pipeline.full[0]);
    wait_for_prerequisites();
    Position at;
    bool again = false;
    for (int index = scheduler.first(); index < scheduler.total; index += scheduler.stride()) {
      Unit const work = scheduler.work(index);
      ScaleLoad<Config::kTileM> load(params, work.m, work.n, work.k_tile, work.batch);
#pragma unroll 1
      for (int i = 0; i < work.k_tiles; ++i) {
        if (again) Scales::acquire(at.stage);
        load(stages + at.stage * Scales::kBytes, full + at.stage * int(sizeof(uint64_t)));
        at.advance();
        again |= at.stage == 0;
      }
    }
    // No barrier is left half arrived at.
    for (int stage = 0; stage < (again ? Config::kStages : at.stage); ++stage) Scales::acquire(stage);
  }

  /// Warps of the producer warpgroup that do not load: transpose each stage as it arrives.
  __device__ static void transpose(char* shared, StagePipeline& pipeline, Ready& ready, Scheduler& scheduler,
                                   int warp) {
    Position at;
    for (int index = scheduler.first(); index < scheduler.total; index += scheduler.stride()) {
      int const k_tiles = scheduler.k_tiles(index);
      for (int k_tile = 0; k_tile < k_tiles; ++k_tile, at.advance()) {
        pipeline.wait_full(at);
        if constexpr (StagesA::kTransposed)
          StageTranspose<RawA, A, kTransposers>::run(shared + kOffsetRawA + at.stage * RawA::kBytes,
                                                     shared + kOffsetA + at.stage * A::kBytes, warp);
        if constexpr (StagesB::kTransposed)
          StageTranspose<RawB, B, kTransposers>::run(shared + kOffsetRawB + at.stage * RawB::kBytes,
                                                     shared + kOffsetB + at.stage * B::kBytes, warp);
        ready.arrive(at);
      }
    }
  }

  /// Consumer: waits until a stage can be multiplied.
  __device__ static void wait_stage(StagePipeline& pipeline, Ready& ready, Position at) {
    pipeline.wait_full(at);
    if constexpr (kTransposes) ready.wait(at);
  }

  /// The stages as a consumer warp walks them.
  struct ConsumerStages {
    StagePipeline& pipeline;
    Ready& ready;
    Position& at;
    StageRelease<StagePipeline> release;

    __device__ int index() const { return at.stage; }
    __device__ void wait() { wait_stage(pipeline, ready, at); }
    __device__ void advance() { at.advance(); }
  };

  /// Promoted sums give stages back themselves.
  struct NoRelease {
    __device__ NoRelease(StagePipeline&, int, int) {}
  };
  using Release = cute::conditional_t<Config::kPromote, NoRelease, StageRelease<StagePipeline>>;

  /// What scales a warpgroup's part of a tile, which begins at row m of it and at column n of D.
  __device__ static ThreadScales scales(char const* shared, int m, int n) {
    if constexpr (Config::kBlockScales) {
      return {shared + kOffsetScales, m, n};
    } else {
      return {};
    }
  }

  __device__ static void consume(Params const& params, char* shared, StagePipeline& pipeline, Ready& ready,
                                 uint64_t* full_c, Turns& turns, SumsBarriers* sums_barriers, Scheduler& scheduler,
                                 int consumer_warp) {
    int const warpgroup = consumer_warp / 4;
    int const lane = threadIdx.x % 32;
    wait_for_prerequisites();
    Epilogue epilogue{params,
                      params.epilogue,
                      shared + kOffsetC + warpgroup * Config::kBuffersC * Epilogue::kBytesC,
                      shared + warpgroup * Config::kBuffersD * Epilogue::kBytesD,
                      full_c + warpgroup * Config::kBuffersC,
                      named_barrier::kWarpgroups + warpgroup};
    // What this warpgroup computes of a tile, and of the K of a stage.
    int const first_row = kPingpong || kSlices > 1 ? 0 : warpgroup * kWarpgroupM;
    int const first_k = kSlices > 1 ? warpgroup * kSliceK : 0;
    bool const stores = kSlices == 1 || warpgroup == 0;
    MatrixDescriptors<A> const a(shared + kOffsetA, A::offset(first_row, 0));
    MatrixDescriptors<B> const b(shared + kOffsetB, B::offset(0, first_k));

    Sums sums(shared + kOffsetSlices, sums_barriers, warpgroup);

    Position at;
    uint32_t turn = warpgroup == 0;
    int index = scheduler.first();
    int stride = scheduler.stride();
    if constexpr (kPingpong) {
      at.advance(warpgroup * scheduler.k_tiles(index));
      index += warpgroup * stride;
      stride *= 2;
    }
    Accumulator accumulators;
    auto const stages = [&] { return ConsumerStages{pipeline, ready, at, {pipeline, lane, scheduler.rank}}; };
    auto const begin_ahead = [&](int next) {
      if constexpr (kAhead) {
        if (next < scheduler.total && scheduler.k_tiles(next) > 0) accumulators.begin(a, b, stages());
      }
    };
    begin_ahead(index);
    for (; index < scheduler.total; index += stride) {
      Unit const work = scheduler.work(index);
      int const m = work.m + first_row;
      int n_d = work.n / (Config::Epilogue::kGated ? 2 : 1);
      if constexpr (kClusterParts > 1) n_d += work.part * kTileColumnsD;
      if (stores && is_stored(work)) epilogue.template prefetch<kMatrices>(m, n_d, work.batch);

      [[maybe_unused]] Release const release(pipeline, lane, scheduler.rank);
      if constexpr (kPingpong) turns.wait(warpgroup, turn);
      if constexpr (Config::kPromote) {
        accumulators.template multiply<kAhead>(a, b, stages(), work.k_tiles, scales(shared, m - work.m, work.n));
        begin_ahead(index + stride);
      } else if constexpr (kRegistersA) {
        if (work.k_tiles == 0) accumulators.clear();
        auto const operand = [&] {
          if constexpr (kMixed) {
            return Narrow(shared + kOffsetA, shared + kOffsetScales, first_row, first_k);
          } else {
            return ColumnOperand<A, kBlocks, Config::kTileK>(shared + kOffsetA, first_row);
          }
        }();
        typename decltype(operand)::Fragment even, odd;
        // One set of fragments is read from shared memory while MMAs read the other.
        auto const step = [&](auto& fragment, auto& before, bool first) {
          wait_stage(pipeline, ready, at);
          operand.load(fragment, at.stage);
          accumulators.multiply(fragment, b, at.stage, first);
          wgmma_wait<1>();
          before.pin();
          if (!first) release(at.previous());
          at.advance();
        };
        // No branch lies between MMAs in flight and the next: ptxas would serialise them.
        int k_tile = 0;
        for (; k_tile + 1 < work.k_tiles; k_tile += 2) {
          step(even, odd, k_tile == 0);
          step(odd, even, false);
        }
        if (k_tile < work.k_tiles) step(even, odd, k_tile == 0);
      } else {
        if (work.k_tiles == 0) accumulators.clear();
        for (int k_tile = 0; k_tile < work.k_tiles; ++k_tile) {
          wait_stage(pipeline, ready, at);
          accumulators.multiply(a, b, at.stage, k_tile == 0);
          // One batch of MMAs stays in flight; the one before it has read its stage.
          wgmma_wait<1>();
          if (k_tile > 0) release(at.previous());
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
        if (work.k_tiles > 0) release(at.previous());
      }
      if constexpr (kPingpong) at.advance(scheduler.k_tiles(index + stride / 2));

      if constexpr (kShared) {
        int const of_cluster = scheduler.rank * kTileWarpgroups + (kPingpong ? 0 : warpgroup);
        Partials const partials{params, of_cluster, named_barrier::kWarpgroups + warpgroup};
        if (!partials.add_up(accumulators, work, scheduler.slot_stride())) continue;
      }
      if constexpr (kSlices > 1) reduce_slices<kSlices>(accumulators, shared + kOffsetSlices, warpgroup, kSliceBarrier);
      int row_end = 0;
      if constexpr (kRowGroups) row_end = work.end;
      char* spare = nullptr;
      if constexpr (kSpares) {
        // The other warpgroup has no tile behind this one, and had read its last where this one has filled all stages.
        if (index + stride / 2 >= scheduler.total && work.k_tiles >= Config::kStages) {
          named_barrier::sync(named_barrier::kWarpgroups + warpgroup, 128);
          spare = shared + kOffsetA;
        }
      }
      if constexpr (kClusterParts > 1) {
        auto const share = sums.add_up(accumulators, index + stride < scheduler.total);
        epilogue.template store<kMatrices>(share, m, n_d, work.batch_d, row_end, work.batch, spare);
      } else {
        if (stores) epilogue.template store<kMatrices>(accumulators, m, n_d, work.batch_d, row_end, work.batch, spare);
      }
    }
    if constexpr (kAhead) accumulators.wait();
    epilogue.finish();
  }
};

}  // namespace gemmill
