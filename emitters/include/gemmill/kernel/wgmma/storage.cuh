/// Where each region of the WGMMA kernel's shared memory begins.
#pragma once

#include <gemmill/kernel/wgmma/traits.cuh>

namespace gemmill {

/// Regions of the kernel's shared memory, in order:
/// | D subtiles | C subtiles | A stages | B stages | scales of stages | sums of slices or of a cluster's CTAs | mbarriers |
/// as library/legality/resources.py lays them out for the host; stages of an operand that is transposed are followed by
/// what they are made of.
template <class Traits>
struct WgmmaStorage {
  using Config = typename Traits::Config;
  using A = typename Traits::A;
  using B = typename Traits::B;
  using Epilogue = typename Traits::Epilogue;
  using Groups = typename Traits::Groups;
  using RawA = typename Traits::RawA;
  using RawB = typename Traits::RawB;
  using Ready = typename Traits::Ready;
  using Scales = typename Traits::Scales;
  using StagePipeline = typename Traits::StagePipeline;
  using StagesA = typename Traits::StagesA;
  using StagesB = typename Traits::StagesB;
  using Sums = typename Traits::Sums;
  using SumsBarriers = typename Traits::SumsBarriers;

  static constexpr int kOffsetC = Traits::kStorers * Config::kBuffersD * Epilogue::kBytesD;
  static constexpr int kOffsetA = kOffsetC + Traits::kStorers * Config::kBuffersC * Epilogue::kBytesC;
  static constexpr int kOffsetRawA = kOffsetA + Config::kStages * StagesA::kExtraBytes;
  static constexpr int kOffsetB = kOffsetA + Config::kStages * (A::kBytes + StagesA::kExtraBytes);
  static constexpr int kOffsetRawB = kOffsetB + Config::kStages * StagesB::kExtraBytes;
  static constexpr int kOffsetScales = kOffsetB + Config::kStages * (B::kBytes + StagesB::kExtraBytes);
  /// TMA and WGMMA swizzle by address: eight rows are a period.
  static_assert(kOffsetA % (8 * A::kSpan) == 0 && kOffsetRawA % (8 * RawA::kSpan) == 0 &&
                    kOffsetB % (8 * B::kSpan) == 0 && kOffsetRawB % (8 * RawB::kSpan) == 0,
                "stages begin where their swizzle does");
  /// Whether the last tile of D that a CTA stores is staged where A and B were: no subtile then waits for another's
  /// copy. Cooperative warpgroups, which store at the same time, are slower so.
  enum : bool {
    kSpares = Traits::kPingpong && Epilogue::kSpares && !Traits::kShared && Traits::kClusterSplits == 1 &&
              Epilogue::kSpareBytes <= kOffsetScales - kOffsetA
  };
  static constexpr int kOffsetSlices =
      kOffsetScales + Config::kStages * (Traits::kBlockScales ? Scales::kBytes : Groups::kBytes);
  static_assert(Traits::kSlices == 1 || Traits::kClusterSplits == 1, "either warpgroups or CTAs share K of a tile");
  static constexpr int kOffsetBarriers =
      kOffsetSlices + (Traits::kSlices - 1) * Config::kTileM * Config::kTileN * int(sizeof(float)) +
      Traits::kConsumers * Sums::kBytes;
  static constexpr int kOffsetTurns =
      kOffsetBarriers + int(sizeof(StagePipeline)) + Traits::kStorers * Config::kBuffersC * int(sizeof(uint64_t));
  static constexpr int kOffsetReady = kOffsetTurns + (Traits::kPingpong ? int(sizeof(Turns)) : 0);
  enum : int { kOffsetSums = kOffsetReady + (Traits::kTransposes ? int(sizeof(Ready)) : 0) };
  static constexpr int kSharedBytes =
      kOffsetSums + (Traits::kClusterSplits > 1 ? Traits::kConsumers * int(sizeof(SumsBarriers)) : 0);
  static_assert(kOffsetBarriers % sizeof(uint64_t) == 0,
                "mbarriers are 8 bytes, aligned: no region before them may end between");

  char* base;

  __device__ StagePipeline& pipeline() const { return *reinterpret_cast<StagePipeline*>(base + kOffsetBarriers); }
  /// Of C's buffers, warpgroup by warpgroup.
  __device__ uint64_t* full_c() const { return reinterpret_cast<uint64_t*>(&pipeline() + 1); }
  __device__ Turns& turns() const { return *reinterpret_cast<Turns*>(base + kOffsetTurns); }
  __device__ Ready& ready() const { return *reinterpret_cast<Ready*>(base + kOffsetReady); }
  __device__ SumsBarriers* sums_barriers() const { return reinterpret_cast<SumsBarriers*>(base + kOffsetSums); }
};

}  // namespace gemmill
