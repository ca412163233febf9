/// The consumer warpgroups of the WGMMA kernel: turns, mainloop, sums of slices of K, epilogue.
#pragma once

#include <gemmill/kernel/wgmma/mainloop.cuh>
#include <gemmill/pipeline/dependent_launch.cuh>

namespace gemmill {

template <class Traits>
struct WgmmaConsumer {
  using Storage = WgmmaStorage<Traits>;
  using Mainloop = WgmmaMainloop<Traits>;
  using Config = typename Traits::Config;
  using A = typename Traits::A;
  using Accumulator = typename Traits::Accumulator;
  using B = typename Traits::B;
  using Epilogue = typename Traits::Epilogue;
  using Params = typename Traits::Params;
  using Partials = typename Traits::Partials;
  using Position = typename Traits::Position;
  using Ready = typename Traits::Ready;
  using Scheduler = typename Traits::Scheduler;
  using StagePipeline = typename Traits::StagePipeline;
  using Sums = typename Traits::Sums;
  using SumsBarriers = typename Traits::SumsBarriers;
  using Unit = typename Traits::Unit;

  __device__ static void consume(Params const& params, Storage storage, Scheduler& scheduler, int consumer_warp) {
    char* const shared = storage.base;
    StagePipeline& pipeline = storage.pipeline();
    uint64_t* const full_c = storage.full_c();
    Turns& turns = storage.turns();
    Ready& ready = storage.ready();
    SumsBarriers* const sums_barriers = storage.sums_barriers();
    int const warpgroup = consumer_warp / 4;
    int const lane = threadIdx.x % 32;
    wait_for_prerequisites();
    Epilogue epilogue{params,
                      params.epilogue,
                      shared + Storage::kOffsetC + warpgroup * Config::kBuffersC * Epilogue::kBytesC,
                      shared + warpgroup * Config::kBuffersD * Epilogue::kBytesD,
                      full_c + warpgroup * Config::kBuffersC,
                      named_barrier::kWarpgroups + warpgroup};
    // What this warpgroup computes of a tile, and of the K of a stage.
    int const first_row = Traits::kPingpong || Traits::kSlices > 1 ? 0 : warpgroup * Traits::kWarpgroupM;
    int const first_k = Traits::kSlices > 1 ? warpgroup * Traits::kSliceK : 0;
    bool const stores = Traits::kSlices == 1 || warpgroup == 0;
    MatrixDescriptors<A> const a(shared + Storage::kOffsetA, A::offset(first_row, 0));
    MatrixDescriptors<B> const b(shared + Storage::kOffsetB, B::offset(0, first_k));

    Sums sums(shared + Storage::kOffsetSlices, sums_barriers, warpgroup);

    Position at;
    uint32_t turn = warpgroup == 0;
    int index = scheduler.first();
    int stride = scheduler.stride();
    if constexpr (Traits::kPingpong) {
      at.advance(warpgroup * scheduler.k_tiles(index));
      index += warpgroup * stride;
      stride *= 2;
    }
    Accumulator accumulators;
    auto const stages = [&] {
      return typename Mainloop::Stages{pipeline, ready, at, {pipeline, lane, scheduler.rank}};
    };
    auto const begin_ahead = [&](int next) {
      if constexpr (Traits::kAhead) {
        if (next < scheduler.total && scheduler.k_tiles(next) > 0) accumulators.begin(a, b, stages());
      }
    };
    begin_ahead(index);
    for (; index < scheduler.total; index += stride) {
      Unit const work = scheduler.work(index);
      int const m = work.m + first_row;
      int n_d = work.n / (Config::Epilogue::kGated ? 2 : 1);
      if constexpr (Traits::kClusterParts > 1) n_d += work.part * Traits::kTileColumnsD;
      if (stores && is_stored(work)) epilogue.template prefetch<Traits::kMatrices>(m, n_d, work.batch);

      [[maybe_unused]] typename Mainloop::Release const release(pipeline, lane, scheduler.rank);
      if constexpr (Traits::kPingpong) turns.wait(warpgroup, turn);
      if constexpr (Config::kPromote) {
        accumulators.template multiply<Traits::kAhead>(a, b, stages(), work.k_tiles,
                                                        Mainloop::scales(shared, m - work.m, work.n));
        begin_ahead(index + stride);
      } else if constexpr (Traits::kRegistersA) {
        if (work.k_tiles == 0) accumulators.clear();
        auto const operand = [&] {
          if constexpr (Traits::kMixed) {
            return typename Traits::Narrow(shared + Storage::kOffsetA, shared + Storage::kOffsetScales, first_row, first_k);
          } else {
            return ColumnOperand<A, Traits::kBlocks, Config::kTileK>(shared + Storage::kOffsetA, first_row);
          }
        }();
        typename decltype(operand)::Fragment even, odd;
        // One set of fragments is read from shared memory while MMAs read the other.
        auto const step = [&](auto& fragment, auto& before, bool first) {
          Mainloop::wait(pipeline, ready, at);
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
        Mainloop::from_shared(accumulators, a, b, pipeline, ready, at, release, work.k_tiles);
      }
      if constexpr (Traits::kPingpong) {
        turns.pass(warpgroup, lane);
        turn ^= 1;
      }
      if constexpr (!Config::kPromote) {
        wgmma_wait<0>();
        accumulators.fence();
        if (work.k_tiles > 0) release(at.previous());
      }
      if constexpr (Traits::kPingpong) at.advance(scheduler.k_tiles(index + stride / 2));

      finish(params, shared, scheduler, epilogue, sums, accumulators, work, m, n_d, warpgroup, index, stride);
    }
    if constexpr (Traits::kAhead) accumulators.wait();
    epilogue.finish();
  }

 private:
  __device__ static bool is_stored(Work const&) { return true; }
  __device__ static bool is_stored(SharedWork const& work) { return work.part == 0; }

  /// Adds up what others summed of a tile, and stores it where this warpgroup is to.
  __device__ static void finish(Params const& params, char* shared, Scheduler& scheduler, Epilogue& epilogue,
                                Sums& sums, Accumulator& accumulators, Unit const& work, int m, int n_d, int warpgroup,
                                int index, int stride) {
    if constexpr (Traits::kShared) {
      int const of_cluster = scheduler.rank * Traits::kTileWarpgroups + (Traits::kPingpong ? 0 : warpgroup);
      Partials const partials{params, of_cluster, named_barrier::kWarpgroups + warpgroup};
      if (!partials.add_up(accumulators, work, scheduler.slot_stride())) return;
    }
    if constexpr (Traits::kSlices > 1)
      reduce_slices<Traits::kSlices>(accumulators, shared + Storage::kOffsetSlices, warpgroup, Traits::kSliceBarrier);
    int row_end = 0;
    if constexpr (Traits::kRowGroups) row_end = work.end;
    char* spare = nullptr;
    if constexpr (Storage::kSpares) {
      // The other warpgroup has no tile behind this one, and had read its last where this one has filled all stages.
      if (index + stride / 2 >= scheduler.total && work.k_tiles >= Config::kStages) {
        named_barrier::sync(named_barrier::kWarpgroups + warpgroup, 128);
        spare = shared + Storage::kOffsetA;
      }
    }
    if constexpr (Traits::kClusterParts > 1) {
      auto const share = sums.add_up(accumulators, index + stride < scheduler.total);
      epilogue.template store<Traits::kMatrices>(share, m, n_d, work.batch_d, row_end, work.batch, spare);
    } else {
      if (Traits::kSlices == 1 || warpgroup == 0)
        epilogue.template store<Traits::kMatrices>(accumulators, m, n_d, work.batch_d, row_end, work.batch, spare);
    }
  }
};

}  // namespace gemmill
