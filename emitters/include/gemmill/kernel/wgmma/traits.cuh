/// What a config of the WGMMA kernel makes of operands, tile and schedule: types, and flags named for what they bound.
#pragma once

#include <gemmill/collective/epilogue.cuh>
#include <gemmill/copy/tma.cuh>
#include <gemmill/epilogue/cluster_sums.cuh>
#include <gemmill/epilogue/linear.cuh>
#include <gemmill/epilogue/partials.cuh>
#include <gemmill/kernel/params.cuh>
#include <gemmill/mma/columns.cuh>
#include <gemmill/mma/narrow.cuh>
#include <gemmill/mma/two_level.cuh>
#include <gemmill/mma/transpose.cuh>
#include <gemmill/mma/wgmma.cuh>
#include <gemmill/pipeline/named_barrier.cuh>
#include <gemmill/pipeline/pipeline.cuh>
#include <gemmill/scheduler/cluster.cuh>
#include <gemmill/scheduler/groups.cuh>
#include <gemmill/scheduler/nested.cuh>
#include <gemmill/scheduler/persistent.cuh>
#include <gemmill/scheduler/splitk.cuh>
#include <gemmill/scheduler/stream.cuh>

namespace gemmill {

template <class Config_>
struct WgmmaTraits {
  using Config = Config_;
  /// A is upconverted to B's type on its way to the tensor cores; its stages are bytes.
  static constexpr bool kMixed = bits_of<typename Config::A> < bits_of<typename Config::B>;
  static constexpr int kBitsA = bits_of<typename Config::A>;
  /// An M-major A of 32 bits goes to the tensor cores from registers, as A does that is upconverted.
  static constexpr bool kColumns = kBitsA == 32 && Config::kMajorA == MajorIn::MN;
  static constexpr bool kRegistersA = kMixed || kColumns;
  using StagesA =
      cute::conditional_t<kMixed, OperandStages<uint8_t, MajorIn::K, Config::kTileM, Config::kTileK * kBitsA / 8, false>,
                          OperandStages<typename Config::A, Config::kMajorA, Config::kTileM, Config::kTileK, !kColumns>>;
  using StagesB = OperandStages<typename Config::B, Config::kMajorB, Config::kTileN, Config::kTileK, true>;
  static constexpr bool kTransposes = StagesA::kTransposed || StagesB::kTransposed;
  using TmaLayoutA = typename StagesA::TmaLayout;
  using TmaLayoutB = typename StagesB::TmaLayout;
  using A = typename StagesA::MmaLayout;
  using B = typename StagesB::MmaLayout;
  /// Whether blocks of A and B have scales, of type Config::Scale.
  static constexpr bool kBlockScales = !cute::is_same_v<typename Config::Scale, None>;
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
  static constexpr bool kCachesQuotient = kSlices == 1 && (kPingpong || kBlocks * Config::kTileN < 2 * 192);
  using Order = TileOrder<Config::kTileM, Config::kTileN, Config::kClusterM, Config::kClusterN, Config::kRaster,
                          Config::kSwizzle, Quotient<kCachesQuotient>>;
  using Scheduler = typename Config::template Scheduler<Order, Config::kTileK>;
  enum : int { kClusterSplits = Scheduler::kClusterSplits };
  static constexpr int kClusterSize = Config::kClusterM * Config::kClusterN * kClusterSplits;
  static constexpr int kTileWarpgroups = kPingpong ? 1 : kConsumers;
  /// The named barrier of the warpgroups that add up slices; the epilogues have the ones below.
  static constexpr int kSliceBarrier = named_barrier::kWarpgroups + kConsumers;
  static_assert(!kBlockScales || named_barrier::kScales + Config::kStages <= named_barrier::kEnd,
                "a stage of scales has a named barrier");
  static_assert(kWarpgroupM % 64 == 0, "a consumer warpgroup computes a multiple of 64 rows");

  /// Columns of D that a CTA stores of a tile.
  static constexpr int kTileColumnsD = Config::kTileN / (Config::Epilogue::kGated ? 2 : 1) / kClusterSplits;
  static_assert(kTileColumnsD % 8 == 0 || kClusterSplits == 1, "CTAs of a cluster store whole fragments");
  using SubtileC = Subtile<typename Config::C, Config::kMajorC, Config::kSubtileN>;
  using SubtileD = Subtile<typename Config::D, Config::kMajorD, Config::kSubtileN>;
  using Epilogue = CollectiveEpilogue<typename Config::Epilogue, SubtileC, SubtileD, kBlocks, kTileColumnsD,
                                  Config::kSubtileN, Config::kBuffersC, Config::kBuffersD>;

  using Scales = ScaleStage<Config::kTileM, 128 * kTileWarpgroups>;
  using ThreadScales = cute::conditional_t<kBlockScales,
                                           BlockScales<Scales, kBlocks, Config::kTileM, Config::kTileN>, NoScales>;
  using Accumulator = cute::conditional_t<
      Config::kPromote,
      TwoLevelAccumulators<typename Config::Atom, A, B, ThreadScales, kBlocks, Config::kTileN, Config::kTileK>,
      Accumulators<typename Config::Atom, A, B, kBlocks, kSliceK>>;
  using Groups = GroupLayout<typename Config::B, Config::kGroup, Config::kZeros, Config::kTileM, Config::kTileK>;
  using Narrow = NarrowOperand<typename Config::A, typename Config::B, A, Groups, kBlocks, kSliceK>;
  /// The kernel's only parameter: GemmParams, or what a scheduler adds to it, group scales to that, and the epilogue's.
  using Params = KernelParams<
      cute::conditional_t<(Groups::kGroups > 0), GroupParams<typename Scheduler::Params>, typename Scheduler::Params>,
      typename Config::Epilogue>;
  using Unit = decltype(cute::declval<Scheduler&>().work(0));
  static constexpr bool kSharesTiles = Scheduler::kSharesTiles;
  using Partials = PartialTiles<Accumulator, kClusterSize * kTileWarpgroups>;
  using Sums = ClusterSums<Accumulator, kClusterSplits>;
  using SumsBarriers = ClusterSumsBarriers<kClusterSplits>;
  using StagePipeline = Pipeline<Config::kStages, Config::kClusterM, Config::kClusterN, 4 * kTileWarpgroups,
                                 kBlockScales ? Scales::kArrivals : 0>;
  /// Groups along M: a warp shares the scheduler, and tiles end at the last row of their group.
  static constexpr bool kGroupedM = Scheduler::kIsGroupedM;
  /// Groups along K: A and B are read through windows, which end where the group does.
  static constexpr bool kGroupedK = Scheduler::kIsGroupedK;
  static constexpr int kWindowK = kGroupedK ? Config::kTileK : 0;
  static constexpr bool kArray = Scheduler::kIsArray;
  static constexpr bool kNested = Scheduler::kIsNested;
  /// Whether work is found in memory that the kernel before may have written.
  enum : bool { kReadsGroups = kGroupedM || kGroupedK || kArray };
  /// Descriptors of A and B begin outside them. Every box then holds some of their K.
  static constexpr bool kShiftsBoxes = kGroupedK || kArray;
  using LoadA = StageLoad<TmaLayoutA, Config::kClusterN, kShiftsBoxes ? BoxBounds::Shift : kGroupedM ? BoxBounds::Overrun : BoxBounds::Clip>;
  using LoadB = StageLoad<TmaLayoutB, Config::kClusterM, kShiftsBoxes ? BoxBounds::Shift : BoxBounds::Clip>;
  static_assert(!kShiftsBoxes || kClusterSize == 1, "a slice of a stage may lie wholly beyond K");
  static_assert(!kShiftsBoxes || ((TmaLayoutA::kMajor == MajorIn::MN || TmaLayoutA::kPanels == 1) &&
                             (TmaLayoutB::kMajor == MajorIn::MN || TmaLayoutB::kPanels == 1)),
                "a panel may lie wholly beyond K");
  static constexpr BatchMode kMode = BatchMode(int(Scheduler::kMode));
  static_assert(!kMixed || kMode == BatchMode::Strided, "narrow A has no groups");
  /// Whether the first MMAs of a tile run beside the epilogue of the one before, which sums that are added up elsewhere
  /// allow. (Pingpong's other warpgroup multiplies meanwhile.)
  enum : bool { kOverlapsEpilogue = kBlockScales && !kPingpong };
  using Position = RingPosition<Config::kStages>;
  /// Warps of the producer warpgroup transpose; the first one loads, the second fills block scales where there are some.
  static constexpr int kFirstTransposer = kBlockScales ? 2 : 1;
  static constexpr int kTransposers = 4 - kFirstTransposer;
  using TransposeBarriers = gemmill::TransposeBarriers<Config::kStages, kTransposers>;

  static_assert(StagePipeline::kPeers <= 32, "one warp of a consumer tells all CTAs that multicast to it: 32 at most");
  static_assert(Config::kStages >= 2,
                "the ring holds a stage that is loaded beside one that is multiplied: stages is at least 2");
  static_assert(!kPingpong || kConsumers == 2, "pingpong has two consumer warpgroups, which take turns");
  static_assert(kSliceBarrier < named_barrier::kEnd,
                "each consumer warpgroup, and the slices of K, have a named barrier of 16");
};

}  // namespace gemmill
