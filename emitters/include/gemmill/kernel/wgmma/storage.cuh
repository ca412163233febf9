/// The layout of the WGMMA kernel's shared memory.
#pragma once

#include <gemmill/kernel/wgmma/traits.cuh>

namespace gemmill {

/// The regions of a CTA's shared memory, in order:
/// | D subtiles | C subtiles | A stages | B stages | scales of stages | sums of slices or of a cluster's CTAs |
/// mbarriers | handed tiles |
///
/// The host computes the same sizes (library/families/wgmma/wgmma_plan.py). If an operand is transposed and not in
/// place, its transposed stages come first, and the stages that TMA writes follow.
template <class Traits>
struct WgmmaStorage {
  using Config = typename Traits::Config;
  using A = typename Traits::A;
  using B = typename Traits::B;
  using Epilogue = typename Traits::Epilogue;
  using Groups = typename Traits::Groups;
  using TmaLayoutA = typename Traits::TmaLayoutA;
  using TmaLayoutB = typename Traits::TmaLayoutB;
  using TransposeBarriers = typename Traits::TransposeBarriers;
  using Scales = typename Traits::Scales;
  using StagePipeline = typename Traits::StagePipeline;
  using StagesA = typename Traits::StagesA;
  using StagesB = typename Traits::StagesB;
  using Sums = typename Traits::Sums;
  using SumsBarriers = typename Traits::SumsBarriers;

  static constexpr int kOffsetC = Traits::kStorers * Config::kBuffersD * Epilogue::kBytesD;
  static constexpr int kOffsetA = kOffsetC + Traits::kStorers * Config::kBuffersC * Epilogue::kBytesC;
  static constexpr int kOffsetTmaA = kOffsetA + Config::kStages * StagesA::kExtraBytes;
  static constexpr int kOffsetB = kOffsetA + Config::kStages * (Traits::kStageBytesA + StagesA::kExtraBytes);
  static constexpr int kOffsetTmaB = kOffsetB + Config::kStages * StagesB::kExtraBytes;
  static constexpr int kOffsetScales = kOffsetB + Config::kStages * (Traits::kStageBytesB + StagesB::kExtraBytes);
  /// TMA and WGMMA swizzle by address; eight rows are a period.
  static_assert(kOffsetA % (8 * A::kSpan) == 0 && kOffsetTmaA % (8 * TmaLayoutA::kSpan) == 0 &&
                    kOffsetB % (8 * B::kSpan) == 0 && kOffsetTmaB % (8 * TmaLayoutB::kSpan) == 0,
                "stages begin where their swizzle does");
  /// Whether the last tile that a CTA stores is staged in the memory of A and B. Then no subtile waits for the copy of
  /// another. Cooperative warpgroups, which store at the same time, are slower this way.
  enum : bool {
    kAliasesStages = Traits::kPingpong && Epilogue::kWholeTileHelps && !Traits::kSharesTiles && Traits::kClusterSplits == 1 &&
              Epilogue::kWholeTileBytes <= kOffsetScales - kOffsetA
  };
  static constexpr int kOffsetSlices =
      kOffsetScales + Config::kStages * (Traits::kBlockScales ? Scales::kBytes : Groups::kBytes);
  static_assert(Traits::kSlices == 1 || Traits::kClusterSplits == 1, "either warpgroups or CTAs share K of a tile");
  static constexpr int kOffsetBarriers =
      kOffsetSlices + (Traits::kSlices - 1) * Config::kTileM * Config::kTileN * int(sizeof(float)) +
      Traits::kConsumers * Sums::kBytes;
  static constexpr int kOffsetPingpongOrder =
      kOffsetBarriers + int(sizeof(StagePipeline)) + Traits::kStorers * Config::kBuffersC * int(sizeof(uint64_t));
  static constexpr int kOffsetTransposed = kOffsetPingpongOrder + (Traits::kPingpong ? int(sizeof(PingpongOrder)) : 0);
  enum : int { kOffsetSums = kOffsetTransposed + (Traits::kTransposes ? int(sizeof(TransposeBarriers)) : 0) };
  enum : int {
    kOffsetHanded = kOffsetSums + (Traits::kClusterSplits > 1 ? Traits::kConsumers * int(sizeof(SumsBarriers)) : 0)
  };
  static constexpr int kSharedBytes = kOffsetHanded + (Traits::kHandsTiles ? int(sizeof(HandedTiles)) : 0);
  static_assert(kOffsetBarriers % sizeof(uint64_t) == 0,
                "mbarriers are 8 bytes, aligned: no region before them may end between");

  char* base;

  __device__ StagePipeline& pipeline() const { return *reinterpret_cast<StagePipeline*>(base + kOffsetBarriers); }
  /// The barriers of C's buffers, warpgroup by warpgroup.
  __device__ uint64_t* full_c() const { return reinterpret_cast<uint64_t*>(&pipeline() + 1); }
  __device__ PingpongOrder& pingpong_order() const { return *reinterpret_cast<PingpongOrder*>(base + kOffsetPingpongOrder); }
  __device__ TransposeBarriers& transposed() const { return *reinterpret_cast<TransposeBarriers*>(base + kOffsetTransposed); }
  __device__ SumsBarriers* sums_barriers() const { return reinterpret_cast<SumsBarriers*>(base + kOffsetSums); }
  __device__ HandedTiles& handed() const { return *reinterpret_cast<HandedTiles*>(base + kOffsetHanded); }
};

}  // namespace gemmill
