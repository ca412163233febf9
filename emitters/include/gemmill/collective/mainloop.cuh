/// The collective mainloop of the WGMMA kernel: the producer warpgroup loads stages of A and B, and the consumer
/// warpgroups multiply them.
#pragma once

#include <gemmill/kernel/wgmma/storage.cuh>
#include <gemmill/pipeline/dependent_launch.cuh>

namespace gemmill {

/// `load`, `load_gathered`, `load_scales` and `transpose` run in warps of the producer warpgroup, the others in a
/// consumer warpgroup. They are static functions, because an object that holds references compiles to different machine
/// code.
template <class Traits>
struct CollectiveMainloop {
  using Storage = WgmmaStorage<Traits>;
  using Config = typename Traits::Config;
  using A = typename Traits::A;
  using Accumulator = typename Traits::Accumulator;
  using B = typename Traits::B;
  using Gather = typename Traits::Gather;
  using GatherScales = typename Traits::GatherScales;
  using Groups = typename Traits::Groups;
  using LoadA = typename Traits::LoadA;
  using LoadB = typename Traits::LoadB;
  using Params = typename Traits::Params;
  using Position = typename Traits::Position;
  using Scales = typename Traits::Scales;
  using Scheduler = typename Traits::Scheduler;
  using StagePipeline = typename Traits::StagePipeline;
  using StagesA = typename Traits::StagesA;
  using StagesB = typename Traits::StagesB;
  using ThreadScales = typename Traits::ThreadScales;
  using Terms = typename Config::Terms;
  using TmaLayoutA = typename Traits::TmaLayoutA;
  using TmaLayoutB = typename Traits::TmaLayoutB;
  using TransposeBarriers = typename Traits::TransposeBarriers;
  using Unit = typename Traits::Unit;

  // Producer.

  /// Loads of B in clusters of 2x1 whose CTAs have tiles of different columns (`GroupWork::beside`). Each CTA loads
  /// the first half of its tile, and the second half of the other's: peers must wait for each other's loads.
  struct BesideB {
    Params const& params;
    int rank;

    /// Issues the loads of a stage, if they are such.
    __device__ bool operator()(Unit const& work, uint64_t& full, char* stage, int k, int batch) const {
      if constexpr (Scheduler::kPairs) {
        if (!work.beside) return false;
        int const other = rank ^ 1;
        LoadB const own{params.b, params.b_tail, 0, uint16_t(1 << rank), params.n};
        LoadB const others{params.b, params.b_tail, 1, uint16_t(1 << other), params.n};
        own(own.tile(work.n), full, stage, k, batch);
        others(others.tile(work.n + (other - rank) * Config::kTileN), full, stage, k, batch);
        return true;
      }
      return false;
    }
  };

  /// The CTAs of row m of the cluster, a bit for each.
  __device__ static uint32_t row_of_cluster(int m) {
    uint32_t row = 0;
    for (int i = 0; i < Config::kClusterN; ++i) row |= 1u << (m + i * Config::kClusterM);
    return row;
  }

  /// The unit of an index. Tiles of groups are also handed to the consumers; `count` is the number of those before.
  __device__ static Unit found(Storage const& storage, Scheduler& scheduler, int index, unsigned& count, bool issues) {
    Unit const work = scheduler.work(index);
    if constexpr (Traits::kHandsTiles) {
      if (issues) storage.handed().hand(work, count);
      ++count;
    }
    return work;
  }

  /// The producer loop. One thread issues the loads. With groups along M or N the whole warp runs the loop, because
  /// the scheduler uses warp votes.
  __device__ static void load(Params const& params, Storage storage, Scheduler& scheduler) {
    StagePipeline& pipeline = storage.pipeline();
    bool const issues = !Traits::kTilesEndInGroups || cute::elect_one_sync();
    int const m = scheduler.rank % Config::kClusterM, n = scheduler.rank / Config::kClusterM;
    // The CTAs of one row of the cluster (same m) share A; those of one column (same n) share B.
    uint32_t const row = row_of_cluster(m), column = ((1u << Config::kClusterM) - 1) << (n * Config::kClusterM);
    LoadA const load_a{params.a, params.a_tail, n, uint16_t(row), params.m};
    LoadB const load_b{params.b, params.b_tail, m, uint16_t(column), params.n};
    BesideB const beside_b{params, m};

    Position at;
    unsigned handed = 0;
    bool waits = !Traits::kReadsGroups;
    for (int index = scheduler.first(); index < scheduler.total; index += scheduler.stride()) {
      Unit const work = found(storage, scheduler, index, handed, issues);
      int batch_a = params.batched & 1 ? work.batch : 0, batch_b = params.batched & 2 ? work.batch : 0;
      if constexpr (Traits::kNested) batch_a = work.place_a, batch_b = work.place_b;
      uint32_t const bytes = Terms::kComponents * (load_a.bytes(work.m) + load_b.bytes(work.n)) + Groups::kBytes;
      auto const tile_a = load_a.tile(work.m);
      auto const tile_b = load_b.tile(work.n);
      for (int k_tile = work.k_tile; k_tile < work.k_tile + work.k_tiles; ++k_tile, at.advance()) {
        if (!issues) continue;
        pipeline.acquire(at, bytes);
        uint64_t& full = pipeline.full[at.stage];
        char* const stage_a = storage.base + Storage::kOffsetTmaA + at.stage * Traits::kStageBytesA;
        char* const stage_b = storage.base + Storage::kOffsetTmaB + at.stage * Traits::kStageBytesB;
        int const k = k_tile * Config::kTileK;
        if (waits) wait_for_prerequisites();
        waits = false;
        if constexpr (Traits::kGroupedK) {
          // A window of tile K rows that ends with the group. TMA fills what lies beyond the window with zeros.
          int const rows = min(work.end - work.begin - k, Config::kTileK), place = work.begin + k + rows;
          load_a(tile_a, full, stage_a, Config::kTileK - rows, place, 0);
          load_b(tile_b, full, stage_b, Config::kTileK - rows, place, 0);
        } else if constexpr (Traits::kArray) {
          ArrayMatrix const matrix_a(params, Operand::A, work.batch), matrix_b(params, Operand::B, work.batch);
          load_a(tile_a, full, stage_a, k, matrix_a.low(), matrix_a.high());
          load_b(tile_b, full, stage_b, k, matrix_b.low(), matrix_b.high());
        } else {
#pragma unroll 1
          for (int i = 0; i < Terms::kComponents; ++i) {
            int const a = batch_a * Terms::kComponents + i, b = batch_b * Terms::kComponents + i;
            load_a(tile_a, full, stage_a + i * A::kBytes, Traits::kMixed ? k * Traits::kBitsA / 8 : k, a);
            char* const of_b = stage_b + i * B::kBytes;
            if (!beside_b(work, full, of_b, k, b)) load_b(tile_b, full, of_b, k, b);
          }
        }
        if constexpr (Groups::kGroups > 0)
          Groups::load(params, full, storage.base + Storage::kOffsetScales + at.stage * Groups::kBytes, work.m, k, batch_a);
      }
    }
    if (issues) launch_dependents();
    // Peers arrive at this CTA's barriers until they have read its last stages, so this CTA must not exit before. It
    // has already waited for everything else that reaches its shared memory: the loads of peers and the sums of other
    // slices of K.
    if constexpr (StagePipeline::kPeers > 1) {
      for (int i = 0; issues && i < Config::kStages; ++i, at.advance()) pipeline.wait_empty(at);
    }
  }

  /// The producer loop of kernels that find the rows of an operand by an index, or whose A has any alignment: all four
  /// warps copy it, and one thread also issues the loads of the other operand.
  __device__ static void load_gathered(Params const& params, Storage storage, Scheduler& scheduler) {
    constexpr bool kOfB = Traits::kGathersB;
    using Load = cute::conditional_t<kOfB, LoadA, LoadB>;
    constexpr int kOffset = kOfB ? Storage::kOffsetTmaA : Storage::kOffsetTmaB, kBytes = kOfB ? A::kBytes : B::kBytes;
    if constexpr (!Traits::kReadsGroups) wait_for_prerequisites();
    StagePipeline& pipeline = storage.pipeline();
    bool const issues = threadIdx.x < 32 && cute::elect_one_sync();
    uint32_t const peers = (1u << Config::kClusterM * Config::kClusterN) - 1;
    Load const load{kOfB ? params.a : params.b, kOfB ? params.a_tail : params.b_tail, scheduler.rank, uint16_t(peers),
                    kOfB ? params.m : params.n};
    Gather gather(storage.base + (kOfB ? Storage::kOffsetTmaB : Storage::kOffsetTmaA), params);
    GatherScales scales(storage.base + Storage::kOffsetScales, params);

    Position at;
    for (int index = scheduler.first(); index < scheduler.total; index += scheduler.stride()) {
      Unit const work = scheduler.work(index);
      gather.begin(work);
      scales.begin(work);
      int const extent = [&] {
        if constexpr (Traits::kGroupedK) return work.end - work.begin;
        if constexpr (Traits::kUnalignedA) return (work.k_tile + work.k_tiles) * Config::kTileK;
        return params.k;
      }();
      int const begin = Traits::kUnalignedA ? work.k_tile * Config::kTileK : 0;
      auto const tile = load.tile(kOfB ? work.m : work.n);
      uint32_t const bytes = load.bytes(kOfB ? work.m : work.n) + Groups::kBytes;
      int const batch = params.batched & (kOfB ? 1 : 2) ? work.batch : 0;
#pragma unroll 1
      for (int k = begin; k < extent; k += Config::kTileK, at.advance()) {
        pipeline.wait_empty(at);
        uint64_t& full = pipeline.full[at.stage];
        int const left = min(extent - k, Config::kTileK);
        if (issues) {
          StagePipeline::Full::arrive_and_expect_tx(&full, bytes);
          char* const stage = storage.base + kOffset + at.stage * kBytes;
          if constexpr (Traits::kGroupedK) {
            load(tile, full, stage, Config::kTileK - left, work.begin + k + left, 0);  // as in `load`
          } else {
            load(tile, full, stage, Traits::kMixed ? k * Traits::kBitsA / 8 : k, batch);
          }
          if constexpr (Groups::kGroups > 0)
            Groups::load(params, full, storage.base + Storage::kOffsetScales + at.stage * Groups::kBytes, work.m, k, batch);
        }
        gather(at.stage, left);
        scales(at.stage);
        gather.arrive(full);
      }
    }
    gather.finish();
    scales.finish(at.stage);
    if (issues) launch_dependents();
    if constexpr (StagePipeline::kPeers > 1) {
      for (int i = 0; issues && i < Config::kStages; ++i, at.advance()) pipeline.wait_empty(at);  // as in `load`
    }
  }

  /// Runs in one warp beside `load`, and fills the scales of each stage. A full barrier has received all arrivals of
  /// one lap before the readers of that lap release its scales. One-byte scales are converted to f32 kLag stages after
  /// their copies start, so that as many copies are in flight. The lag ends with each tile, so that no conversion waits
  /// for a stage of the next tile.
  __device__ static void load_scales(Params const& params, Storage storage, Scheduler& scheduler) {
    using Load = ScaleLoad<Config::kTileM, typename Config::Scale, Config::Epilogue::kGatesHalves>;
    constexpr int kLag = Load::kBytewise ? Config::kStages / 2 : 0;
    StagePipeline& pipeline = storage.pipeline();
    uint32_t const stages = cute::cast_smem_ptr_to_uint(storage.base + Storage::kOffsetScales);
    uint32_t const full = cute::cast_smem_ptr_to_uint(&pipeline.full[0]);
    wait_for_prerequisites();
    Position at, upconverted;
    bool again = false;
    for (int index = scheduler.first(); index < scheduler.total; index += scheduler.stride()) {
      Unit const work = scheduler.work(index);
      Load load(params, work.m, work.n, work.k_tile, work.batch);
#pragma unroll 1
      for (int i = 0; i < work.k_tiles + kLag; ++i) {
        if (kLag == 0 || i < work.k_tiles) {
          if (again) Scales::acquire(at.stage);
          load(stages + at.stage * Scales::kBytes, full + at.stage * int(sizeof(uint64_t)));
          at.advance();
          again |= at.stage == 0;
        }
        if constexpr (Load::kBytewise) {
          load.commit();
          if (i < kLag) continue;
          load.template upconvert<kLag>(stages + upconverted.stage * Scales::kBytes,
                                        full + upconverted.stage * int(sizeof(uint64_t)));
          upconverted.advance();
        }
      }
    }
    // Completes the barriers on which the consumers of the last stages have arrived.
    for (int stage = 0; stage < (again ? Config::kStages : at.stage); ++stage) Scales::acquire(stage);
  }

  /// Runs in the producer warpgroup's warps that do not load. Transposes each stage as it arrives.
  __device__ static void transpose(Storage storage, Scheduler& scheduler, int warp) {
    StagePipeline& pipeline = storage.pipeline();
    TransposeBarriers& transposed = storage.transposed();
    Position at;
    for (int index = scheduler.first(); index < scheduler.total; index += scheduler.stride()) {
      int const k_tiles = scheduler.k_tiles(index);
      for (int k_tile = 0; k_tile < k_tiles; ++k_tile, at.advance()) {
        pipeline.wait_full(at);
        if constexpr (StagesA::kTransposed)
          StageTranspose<TmaLayoutA, A, Traits::kTransposers>::run(storage.base + Storage::kOffsetTmaA + at.stage * TmaLayoutA::kBytes,
                                                     storage.base + Storage::kOffsetA + at.stage * A::kBytes, warp);
        if constexpr (StagesB::kTransposed)
          StageTranspose<TmaLayoutB, B, Traits::kTransposers>::run(storage.base + Storage::kOffsetTmaB + at.stage * TmaLayoutB::kBytes,
                                                     storage.base + Storage::kOffsetB + at.stage * B::kBytes, warp);
        transposed.arrive(at);
      }
    }
  }

  // Consumer.

  /// The interface through which TwoLevelAccumulators waits for stages and releases them.
  struct Stages {
    StagePipeline& pipeline;
    TransposeBarriers& transposed;
    Position& at;
    StageRelease<StagePipeline> release;

    /// Whether MMAs of a stage hide the wait for the next one: the proxy fence takes long.
    static constexpr bool kWaitsAhead = Traits::kGathers;

    __device__ int index() const { return at.stage; }
    __device__ void wait() { CollectiveMainloop::wait(pipeline, transposed, at); }
    __device__ void wait_ahead() {
      Position next = at;
      next.advance();
      CollectiveMainloop::wait(pipeline, transposed, next);
    }
    __device__ void advance() { at.advance(); }
  };

  /// Two-level accumulation releases stages itself.
  struct NoRelease {
    __device__ NoRelease(StagePipeline&, int, int) {}
  };
  using Release = cute::conditional_t<Config::kPromote && !Traits::kMixed, NoRelease, StageRelease<StagePipeline>>;

  /// Waits until a stage is ready for MMAs: loaded, and transposed if necessary.
  __device__ static void wait(StagePipeline& pipeline, TransposeBarriers& transposed, Position at) {
    pipeline.wait_full(at);
    if constexpr (Traits::kGathers) Gather::fence();
    if constexpr (Traits::kTransposes) transposed.wait(at);
  }

  /// The scales of a warpgroup's part of a tile. `m` is its first row within the tile, `n` its first column within D.
  __device__ static ThreadScales scales(char const* shared, int m, int n) {
    if constexpr (Traits::kBlockScales) {
      return {shared + Storage::kOffsetScales, m, n};
    } else {
      return {};
    }
  }

  /// The mainloop with both operands in shared memory. Only the first `filled` blocks of 64 rows are multiplied; the sums
  /// of the others have no meaning.
  template <int Filled = Traits::kBlocks>
  __device__ static void mma(Accumulator& accumulators, MatrixDescriptors<A> const& a,
                                     MatrixDescriptors<B> const& b, StagePipeline& pipeline, TransposeBarriers& transposed, Position& at,
                                     Release const& release, int k_tiles, int filled = Traits::kBlocks) {
    if constexpr (Filled > 0) {
      if (filled < Filled) return mma<Filled - 1>(accumulators, a, b, pipeline, transposed, at, release, k_tiles, filled);
    }
    for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
      wait(pipeline, transposed, at);
      if constexpr (Filled > 0) {
        accumulators.template multiply<Filled>(a, b, at.stage, k_tile == 0);
        // One batch of MMAs stays in flight. The previous one has finished reading its stage.
        wgmma_wait<1>();
      }
      if (k_tile > 0) release(at.previous());
      at.advance();
    }
  }

  /// Waits for the last MMAs of a tile and releases their stage.
  __device__ static void mma_tail(Accumulator& accumulators, Release const& release, Position const& at, int k_tiles) {
    wgmma_wait<0>();
    accumulators.fence();
    if (k_tiles > 0) release(at.previous());
  }

  /// Multiplies one stage with A in registers. It loads one fragment from shared memory while MMAs read the other
  /// (`before`).
  template <class OperandA, class Fragment>
  __device__ static void mma_step(Accumulator& accumulators, OperandA const& a, Fragment& fragment, Fragment& before,
                              MatrixDescriptors<B> const& b, StagePipeline& pipeline, TransposeBarriers& transposed, Position& at,
                              Release const& release, bool first) {
    wait(pipeline, transposed, at);
    a.load(fragment, at.stage);
    accumulators.multiply(fragment, b, at.stage, first);
    wgmma_wait<1>();
    before.pin();
    if (!first) release(at.previous());
    at.advance();
  }

  /// Runs `step` for every stage, with two fragments that alternate. There is no branch between MMAs in flight and the
  /// next MMAs, because ptxas would serialise them. The step is a parameter because kernels with an inlined step took 1
  /// to 3% longer on an H200.
  template <class Fragment, class Step>
  __device__ static void alternate(Fragment& even, Fragment& odd, int k_tiles, Step const& step) {
    int k_tile = 0;
    for (; k_tile + 1 < k_tiles; k_tile += 2) {
      step(even, odd, k_tile == 0);
      step(odd, even, false);
    }
    if (k_tile < k_tiles) step(even, odd, k_tile == 0);
  }

  /// The mainloop of warpgroups that upconvert each stage in steps. While MMAs read the fragments of one step, the next
  /// ones are upconverted.
  template <class OperandA>
  __device__ static void mma_in_steps(Accumulator& accumulators, OperandA const& a, MatrixDescriptors<B> const& b,
                                      StagePipeline& pipeline, TransposeBarriers& transposed, Position& at,
                                      Release const& release, int k_tiles) {
    static_assert(Traits::kSteps % 2 == 0, "the two fragments alternate");
    asm volatile("" : "+r"(k_tiles));  // else the compiler divides in each iteration
    typename OperandA::Fragment fragments[2];
    for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
      wait(pipeline, transposed, at);
      typename OperandA::Scales scales;
      MatrixDescriptors<B> const b_stage = b.advanced(at.stage * B::kBytes);
#pragma unroll
      for (int step = 0; step < Traits::kSteps; ++step) {
        a.load(fragments[step % 2], scales, at.stage, step);
        accumulators.multiply(fragments[step % 2], b_stage, 0, step == 0 && k_tile == 0, step * Traits::kStepK);
        wgmma_wait<1>();
        fragments[(step + 1) % 2].pin();
        if (step == 0 && k_tile > 0) release(at.previous());
      }
      at.advance();
    }
  }

  /// The mainloop with A in registers, for warpgroups that take all stages.
  template <class OperandA>
  __device__ static void mma_from_registers(Accumulator& accumulators, OperandA const& a, MatrixDescriptors<B> const& b,
                                            StagePipeline& pipeline, TransposeBarriers& transposed, Position& at,
                                            Release const& release, int k_tiles) {
    if constexpr (Traits::kSteps > 1) {
      mma_in_steps(accumulators, a, b, pipeline, transposed, at, release, k_tiles);
    } else {
      typename OperandA::Fragment even, odd;
      alternate(even, odd, k_tiles, [&](auto& fragment, auto& before, bool first) {
        mma_step(accumulators, a, fragment, before, b, pipeline, transposed, at, release, first);
      });
    }
  }

  /// The mainloop of warpgroups that take the stages of a tile in turn. While MMAs read the fragments of one step, the
  /// next ones are upconverted. No MMA is in flight at the end of a stage, so that it is released at once: other
  /// warpgroups use the time.
  template <class OperandA>
  __device__ static void mma_in_turn(None&, Accumulator& accumulators, OperandA const& a, MatrixDescriptors<B> const& b,
                                     StagePipeline& pipeline, TransposeBarriers& transposed, Position& of_tile,
                                     Release const& release, int warpgroup, int k_tiles) {
    Position at = of_tile;
    at.advance(warpgroup);
    of_tile.advance(k_tiles);
    if (warpgroup >= k_tiles) accumulators.clear();
    for (int k_tile = warpgroup; k_tile < k_tiles; k_tile += Traits::kSlices) {
      wait(pipeline, transposed, at);
      typename OperandA::Fragment fragments[2];
      typename OperandA::Scales scales;
      MatrixDescriptors<B> const b_stage = b.advanced(at.stage * B::kBytes);
#pragma unroll
      for (int step = 0; step < Traits::kSteps; ++step) {
        a.load(fragments[step % 2], scales, at.stage, step);
        bool const first = step == 0 && k_tile == warpgroup;
        accumulators.multiply(fragments[step % 2], b_stage, 0, first, step * Traits::kStepK);
        wgmma_wait<1>();
        if (step > 0) fragments[(step + 1) % 2].pin();
      }
      wgmma_wait<0>();
      fragments[(Traits::kSteps - 1) % 2].pin();
      release(at.stage);
      at.template skip<Traits::kSlices>();
    }
    accumulators.fence();
  }

  /// The same for a narrow A whose scales multiply the sums of each stage: `total` receives them. A stage is upconverted
  /// while MMAs multiply the one before; other warpgroups multiply while sums are added.
  template <class OperandA>
  __device__ static void mma_in_turn(Accumulator& total, Accumulator& sums, OperandA const& a,
                                     MatrixDescriptors<B> const& b, StagePipeline& pipeline,
                                     TransposeBarriers& transposed, Position& of_tile, Release const& release,
                                     int warpgroup, int k_tiles) {
    int const first_stage = Traits::kSlices > 1 ? warpgroup : 0;
    Position at = of_tile;
    at.advance(first_stage);
    of_tile.advance(k_tiles);
    int before = at.stage;
    typename OperandA::Fragment even, odd;
    typename OperandA::Factors factors{};
    sums.clear();
    total.clear();
    auto const add = [&](auto& fragment, bool multiplied) {
      wgmma_wait<0>();
      fragment.pin();
      sums.fence();
      if (multiplied) release(before);
      total.add(sums, factors.values);
    };
    int const count = (k_tiles - first_stage + Traits::kSlices - 1) / Traits::kSlices;
    alternate(even, odd, count, [&](auto& fragment, auto& previous, bool first) {
      wait(pipeline, transposed, at);
      typename OperandA::Factors const of_stage = a.load(fragment, at.stage);
      add(previous, !first);
      sums.multiply(fragment, b, at.stage, true);
      factors = of_stage;
      before = at.stage;
      at.template skip<Traits::kSlices>();
    });
    odd.pin();
    add(even, count > 0);
  }

  /// The operand A of a warpgroup that multiplies from registers; `first_row` is its first row within a stage.
  __device__ static auto operand(char* shared, int first_row, [[maybe_unused]] Params const& params,
                                 [[maybe_unused]] Unit const& work) {
    if constexpr (Traits::kUnalignedA) {
      return UnalignedOperand<typename Traits::UnalignedA, Traits::kBlocks>(shared + Storage::kOffsetA, first_row, params, work);
    } else if constexpr (Traits::kMixed) {
      return typename Traits::Narrow(shared + Storage::kOffsetA, shared + Storage::kOffsetScales, first_row);
    } else {
      return ColumnOperand<A, Traits::kBlocks, Config::kTileK>(shared + Storage::kOffsetA, first_row);
    }
  }
};

}  // namespace gemmill
