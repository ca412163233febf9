/// The loop of a consumer warpgroup of the WGMMA kernel: pingpong order, mainloop, sums of slices of K, epilogue.
#pragma once

#include <gemmill/collective/mainloop.cuh>

namespace gemmill {

template <class Traits>
struct WgmmaConsumer {
  using Storage = WgmmaStorage<Traits>;
  using Mainloop = CollectiveMainloop<Traits>;
  using Config = typename Traits::Config;
  using A = typename Traits::A;
  using Accumulator = typename Traits::Accumulator;
  using B = typename Traits::B;
  using Epilogue = typename Traits::Epilogue;
  using Params = typename Traits::Params;
  using Partials = typename Traits::Partials;
  using Position = typename Traits::Position;
  using TransposeBarriers = typename Traits::TransposeBarriers;
  using Scheduler = typename Traits::Scheduler;
  using StagePipeline = typename Traits::StagePipeline;
  using Stages = typename Mainloop::Stages;
  using Sums = typename Traits::Sums;
  using Total = typename Traits::Total;
  using SumsBarriers = typename Traits::SumsBarriers;
  using Unit = typename Traits::Unit;

  __device__ static void consume(Params const& params, Storage storage, Scheduler& scheduler, int consumer_warp) {
    char* const shared = storage.base;
    StagePipeline& pipeline = storage.pipeline();
    TransposeBarriers& transposed = storage.transposed();
    int const warpgroup = consumer_warp / 4, lane = threadIdx.x % 32;
    wait_for_prerequisites();
    Epilogue epilogue = epilogue_of(params, storage, warpgroup);
    int const first_row = Traits::kPingpong || Traits::kSlices > 1 ? 0 : warpgroup * Traits::kWarpgroupM;
    MatrixDescriptors<A> const a(shared + Storage::kOffsetA, A::offset(first_row, 0));
    MatrixDescriptors<B> const b(shared + Storage::kOffsetB, 0);
    Sums sums(shared + Storage::kOffsetSlices, storage.sums_barriers(), warpgroup);

    Position at;
    uint32_t turn = warpgroup == 0;
    int index = scheduler.first(), stride = scheduler.stride();
    if constexpr (Traits::kPingpong) {
      at.advance(warpgroup * scheduler.k_tiles(index));
      index += warpgroup * stride;
      stride *= 2;
    }
    Accumulator accumulators;
    Total total;
    auto const stages = [&] { return Stages{pipeline, transposed, at, {pipeline, lane, scheduler.rank}}; };
    begin(accumulators, a, b, stages, scheduler, index);
    unsigned taken = Traits::kPingpong ? warpgroup : 0;
    for (; index < scheduler.total; index += stride, turn ^= 1) {
      Unit const work = unit(storage, scheduler, index, taken);
      int const m = work.m + first_row;
      int const m_d = row_of_d(m), n_d = column_of_d(work);
      prefetch(epilogue, work, m_d, n_d, warpgroup);
      [[maybe_unused]] typename Mainloop::Release const release(pipeline, lane, scheduler.rank);
      if constexpr (Traits::kPingpong) storage.pingpong_order().wait(warpgroup, turn);
      int const k_tiles = add_slices(total, accumulators, a, b, pipeline, transposed, at, release, scheduler, work);
      if constexpr (Traits::kScalesSums || Traits::kSlices > 1) {
        auto const operand = Mainloop::operand(shared, first_row, params, work);
        Mainloop::mma_in_turn(total, accumulators, operand, b, pipeline, transposed, at, release, warpgroup, k_tiles);
      } else if constexpr (Config::kPromote) {
        accumulators.template multiply<Traits::kOverlapsEpilogue>(
            a, b, stages(), work.k_tiles, Mainloop::scales(shared, m - work.m, work.n), filled_blocks(work, m));
        begin(accumulators, a, b, stages, scheduler, index + stride);
      } else {
        if (work.k_tiles == 0) accumulators.clear();
        if constexpr (Traits::kRegistersA) {
          auto const operand = Mainloop::operand(shared, first_row, params, work);
          Mainloop::mma_from_registers(accumulators, operand, b, pipeline, transposed, at, release, k_tiles);
        } else {
          Mainloop::mma(accumulators, a, b, pipeline, transposed, at, release, k_tiles, filled_blocks(work, m));
        }
      }
      if constexpr (Traits::kPingpong) storage.pingpong_order().pass(warpgroup, lane);
      if constexpr (!Config::kPromote && Traits::kSlices == 1) Mainloop::mma_tail(accumulators, release, at, k_tiles);
      if constexpr (Traits::kPingpong) at.advance(scheduler.k_tiles(index + stride / 2));
      if constexpr (Traits::kScaledRows)
        if (work.k_tiles > 0) unscale(accumulators.values, params, m, work.n, work.batch);
      finish(params, shared, scheduler, epilogue, sums, sums_of_tile(total, accumulators), work, m_d, n_d, warpgroup,
             index, stride);
    }
    if constexpr (Traits::kOverlapsEpilogue) accumulators.wait();
    epilogue.finish();
  }

 private:
  /// The unit of an index: what the producer has handed over, or what the scheduler finds.
  __device__ static Unit unit(Storage const& storage, Scheduler& scheduler, int index, unsigned& count) {
    if constexpr (Traits::kHandsTiles) {
      Unit const work = storage.handed().template take<Scheduler::kMasked>(count, scheduler.k_tiles(index));
      count += Traits::kPingpong ? 2 : 1;
      return work;
    } else {
      return scheduler.work(index);
    }
  }

  /// Whether this CTA stores the tile. Of a symmetric D, a tile wholly above the diagonal is the mirror of another.
  __device__ static bool is_stored(Work const& work) {
    return !Traits::kSymmetric || work.n < work.m + Config::kTileM;
  }
  __device__ static bool is_stored(SharedWork const& work) { return work.split == 0; }

  /// The blocks of 64 rows from row m on that this warpgroup multiplies: all, or those that hold rows of the tile's group.
  __device__ static int filled_blocks([[maybe_unused]] Unit const& work, [[maybe_unused]] int m) {
    if constexpr (Scheduler::kSkipsBlocks)
      return Scheduler::kPairs && Config::kTileM < 256 && work.beside ? Traits::kBlocks : (work.end - m + 63) / 64;
    else
      return Traits::kBlocks;
  }

  /// The place of C's matrix, for batches in which that is not its index.
  __device__ static int place_c(Work const&) { return 0; }
  __device__ static int place_c(NestedWork const& work) { return work.place_c; }

  /// Two-level accumulation: issues the first MMAs of tile `index`, so that they overlap the epilogue before it.
  template <class MakeStages>
  __device__ static void begin(Accumulator& accumulators, MatrixDescriptors<A> const& a, MatrixDescriptors<B> const& b,
                               MakeStages const& stages, Scheduler& scheduler, int index) {
    if constexpr (Traits::kOverlapsEpilogue)
      if (index < scheduler.total && scheduler.k_tiles(index) > 0) accumulators.begin(a, b, stages());
  }

  /// The sums of a tile over all slices of K that this warpgroup multiplied.
  __device__ static Accumulator& sums_of_tile(Total& total, Accumulator& accumulators) {
    if constexpr (Traits::kSerial)
      return total.add(accumulators);
    else if constexpr (Traits::kScalesSums)
      return total;
    else
      return accumulators;
  }

  /// Serial split-K: multiplies all slices of K but the last that has K tiles, and adds their sums to 0, in order.
  /// Returns the K tiles that are left; for other kernels all. While one warpgroup adds, the tensor cores work for the
  /// other.
  __device__ static int add_slices(Total& total, Accumulator& accumulators, MatrixDescriptors<A> const& a,
                                   MatrixDescriptors<B> const& b, StagePipeline& pipeline, TransposeBarriers& transposed,
                                   Position& at, typename Mainloop::Release const& release,
                                   Scheduler const& scheduler, Unit const& work) {
    if constexpr (Traits::kSerial) {
      int const last = max(scheduler.slices.filled - 1, 0);
      total.clear();
      for (int slice = 0; slice < last; ++slice) {
        int const k_tiles = scheduler.slices.k_tiles(slice);
        Mainloop::mma(accumulators, a, b, pipeline, transposed, at, release, k_tiles);
        Mainloop::mma_tail(accumulators, release, at, k_tiles);
        total.add(accumulators);
      }
      return scheduler.slices.k_tiles(last);
    } else {
      return work.k_tiles;
    }
  }

  /// Starts to load what the epilogue of a warpgroup reads.
  __device__ static void prefetch(Epilogue& epilogue, Unit const& work, int m, int n, int warpgroup) {
    if (stores(warpgroup) && is_stored(work))
      epilogue.template prefetch<Traits::kMode>(m, n, work.batch, place_c(work));
  }

  /// Whether a warpgroup stores D. If several warpgroups sum slices of K, only the first does.
  __device__ static bool stores(int warpgroup) { return Traits::kSlices == 1 || warpgroup == 0; }

  /// The row in D of the sums of row m.
  __device__ static int row_of_d(int m) { return Config::Epilogue::kGateRows > 0 ? m / 2 : m; }

  /// The first column in D of a tile, or of this CTA's share of the tile.
  __device__ static int column_of_d(Unit const& work) {
    int n = work.n / (Config::Epilogue::kGated ? 2 : 1);
    if constexpr (Traits::kClusterSplits > 1) n += work.split * Traits::kTileColumnsD;
    return n;
  }

  /// The epilogue of a warpgroup, with its share of the buffers of C and D.
  __device__ static Epilogue epilogue_of(Params const& params, Storage storage, int warpgroup) {
    Epilogue epilogue{params,
                      params.epilogue,
                      storage.base + Storage::kOffsetC + warpgroup * Config::kBuffersC * Epilogue::kBytesC,
                      storage.base + warpgroup * Config::kBuffersD * Epilogue::kBytesD,
                      storage.full_c() + warpgroup * Config::kBuffersC,
                      named_barrier::kWarpgroups + warpgroup};
    epilogue.template begin<Traits::kMode>();
    return epilogue;
  }

  /// Adds the sums that others have for the tile. Then stores the tile, if this warpgroup is the one that stores it.
  __device__ static void finish(Params const& params, char* shared, Scheduler& scheduler, Epilogue& epilogue,
                                Sums& sums, Accumulator& accumulators, Unit const& work, int m_d, int n_d, int warpgroup,
                                int index, int stride) {
    if constexpr (Traits::kSharesTiles) {
      int const of_cluster = scheduler.rank * Traits::kTileWarpgroups + (Traits::kPingpong ? 0 : warpgroup);
      Partials const partials{params, of_cluster, named_barrier::kWarpgroups + warpgroup};
      if (!partials.add_up(accumulators, work, scheduler.partial_stride())) return;
    }
    if constexpr (Traits::kSymmetric) {
      if (!is_stored(work)) return;
      epilogue.mirrors = Config::kTileM != Config::kTileN || work.m != work.n;
    }
    if constexpr (Traits::kSlices > 1)
      reduce_slices<Traits::kSlices>(accumulators, shared + Storage::kOffsetSlices, warpgroup, Traits::kSliceBarrier);
    int group_end = 0;
    if constexpr (Traits::kTilesEndInGroups) group_end = work.end;
    char* whole_tile = nullptr;
    if constexpr (Storage::kAliasesStages) {
      // The other warpgroup has no tile after this one. It had read its last stages before this tile filled all stages
      // again.
      if (index + stride / 2 >= scheduler.total && work.k_tiles >= Config::kStages) {
        named_barrier::sync(named_barrier::kWarpgroups + warpgroup, 128);
        whole_tile = shared + Storage::kOffsetA;
      }
    }
    if constexpr (Traits::kClusterSplits > 1) {
      auto const share = sums.add_up(accumulators, index + stride < scheduler.total);
      epilogue.template store<Traits::kMode>(share, m_d, n_d, work.batch_d, group_end, work.batch, 0, whole_tile);
    } else {
      if (stores(warpgroup))
        epilogue.template store<Traits::kMode>(accumulators, m_d, n_d, work.batch_d, group_end, work.batch,
                                                   place_c(work), whole_tile);
    }
  }
};

}  // namespace gemmill
