/// Types and constants that the WGMMA kernel derives from its config: operands, tile and schedule.
#pragma once

#include <gemmill/collective/epilogue.cuh>
#include <gemmill/copy/gather.cuh>
#include <gemmill/copy/terms.cuh>
#include <gemmill/copy/tma.cuh>
#include <gemmill/copy/unaligned.cuh>
#include <gemmill/epilogue/cluster_sums.cuh>
#include <gemmill/epilogue/linear.cuh>
#include <gemmill/epilogue/partials.cuh>
#include <gemmill/kernel/params.cuh>
#include <gemmill/mma/columns.cuh>
#include <gemmill/mma/narrow.cuh>
#include <gemmill/mma/two_level.cuh>
#include <gemmill/mma/transpose.cuh>
#include <gemmill/mma/unscale.cuh>
#include <gemmill/mma/wgmma.cuh>
#include <gemmill/pipeline/named_barrier.cuh>
#include <gemmill/pipeline/pipeline.cuh>
#include <gemmill/scheduler/cluster.cuh>
#include <gemmill/scheduler/groups.cuh>
#include <gemmill/scheduler/handed.cuh>
#include <gemmill/scheduler/nested.cuh>
#include <gemmill/scheduler/persistent.cuh>
#include <gemmill/scheduler/serial.cuh>
#include <gemmill/scheduler/splitk.cuh>
#include <gemmill/scheduler/stream.cuh>
#include <gemmill/scheduler/triangle.cuh>

namespace gemmill {

template <class Config_>
struct WgmmaTraits {
  using Config = Config_;
  /// Whether A is upconverted to B's type before the MMAs. The stages of A then hold bytes.
  static constexpr bool kMixed = bits_of<typename Config::A> < bits_of<typename Config::B>;
  static constexpr int kBitsA = bits_of<typename Config::A>;
  /// Whether A is M-major with 32-bit elements. WGMMA then reads A from registers, as it does an upconverted A.
  static constexpr bool kColumns = kBitsA == 32 && Config::kMajorA == MajorIn::MN;
  /// Whether A is upconverted to e4m3, and the sums of each stage are scaled and added in f32. `Total` then holds them.
  static constexpr bool kScalesSums = kMixed && Config::kPromote;
  /// Whether rows of A and columns of B were scaled before f32 was split: f16 has less range.
  static constexpr bool kScaledRows = Config::Terms::kComponents > 1 && cute::is_same_v<typename Config::A, f16>;
  /// Whether A and B have block scales, of type Config::Scale.
  static constexpr bool kBlockScales = !cute::is_same_v<typename Config::Scale, None>;
  static constexpr bool kPingpong = Config::kSchedule == Schedule::Pingpong;
  static constexpr int kConsumers = Config::kConsumers;
  static constexpr int kThreads = 128 * (1 + kConsumers);
  static_assert(Config::kProducerRegisters + kConsumers * Config::kConsumerRegisters <= (1 + kConsumers) * (65536 / kThreads / 8 * 8),
                "setmaxnreg waits forever for registers that the CTA does not have");
  /// The number of consumer warpgroups that take the stages of a tile in turn: all of them for mixed input in tiles of 64
  /// rows, else 1. A warp so waits for one stage of several, and upconverts more in between.
  static constexpr int kSlices = kMixed && !kPingpong && Config::kTileM == 64 ? kConsumers : 1;
  /// The parity of an mbarrier distinguishes only two laps, and loads may arrive in any order. In a tile a warpgroup
  /// therefore takes the same stages in all laps; all have met after the tile before.
  static_assert(Config::kStages % kSlices == 0, "a warpgroup sees all laps of its stages");
  static constexpr int kStorers = kSlices > 1 ? 1 : kConsumers;
  /// The steps along K in which a warpgroup upconverts a stage, and the K of a step. It holds the fragments of two.
  static constexpr int kSteps = kScalesSums ? 1 : kSlices > 1 ? kSlices : kMixed && kConsumers == 4 ? 2 : 1;
  static constexpr int kStepK = Config::kTileK / kSteps;
  static constexpr int kWarpgroupM = kPingpong || kSlices > 1 ? Config::kTileM : Config::kTileM / kConsumers;
  static constexpr int kBlocks = kWarpgroupM / 64;
  /// Whether schedulers cache quotients. Cooperative kernels with 192 accumulators have no register left for one, nor
  /// do kernels whose warpgroups take stages in turn. Pingpong kernels have.
  static constexpr bool kCachesQuotient = kSlices == 1 && (kPingpong || kBlocks * Config::kTileN < 2 * 192);
  using Order = TileOrder<Config::kTileM, Config::kTileN, Config::kClusterM, Config::kClusterN, Config::kRaster,
                          Config::kSwizzle, Quotient<kCachesQuotient>>;
  using Scheduler = typename Config::template Scheduler<Order, Config::kTileK>;
  /// Whether A may have any alignment. The producer warps then copy it without TMA, and MMAs read it from registers.
  static constexpr bool kUnalignedA = kIsUnaligned<typename Scheduler::Params>;
  using UnalignedA = UnalignedStage<typename Config::A, Config::kMajorA, Config::kTileM, Config::kTileK>;
  static constexpr bool kRegistersA = kMixed || kColumns || kUnalignedA;
  using StagesA =
      cute::conditional_t<kMixed, OperandStages<uint8_t, MajorIn::K, Config::kTileM, Config::kTileK * kBitsA / 8, false>,
                          OperandStages<typename Config::A, Config::kMajorA, Config::kTileM, Config::kTileK, !kRegistersA>>;
  using StagesB = OperandStages<typename Config::B, Config::kMajorB, Config::kTileN, Config::kTileK, true>;
  static constexpr bool kTransposes = StagesA::kTransposed || StagesB::kTransposed;
  using TmaLayoutA = typename StagesA::TmaLayout;
  using TmaLayoutB = typename StagesB::TmaLayout;
  using A = typename StagesA::MmaLayout;
  using B = typename StagesB::MmaLayout;
  /// Bytes of a stage of B as MMAs read it.
  static constexpr int kStageBytesB = Config::Terms::kComponents * B::kBytes;
  /// Bytes of a stage of A as MMAs read it.
  static constexpr int kStageBytesA = kUnalignedA ? UnalignedA::kBytes : Config::Terms::kComponents * A::kBytes;
  enum : int { kClusterSplits = Scheduler::kClusterSplits };
  enum : bool { kSymmetric = Scheduler::kIsSymmetric };
  static constexpr int kClusterSize = Config::kClusterM * Config::kClusterN * kClusterSplits;
  static constexpr int kTileWarpgroups = kPingpong ? 1 : kConsumers;
  /// The named barrier of the warpgroups that add slices. The barriers below it belong to the epilogues.
  static constexpr int kSliceBarrier = named_barrier::kWarpgroups + kConsumers;
  static_assert(!kBlockScales || named_barrier::kScales + Config::kStages <= named_barrier::kEnd,
                "a stage of scales has a named barrier");
  static_assert(kWarpgroupM % 64 == 0, "a consumer warpgroup computes a multiple of 64 rows");

  /// Columns of D that a CTA stores of each tile.
  static constexpr int kTileColumnsD = Config::kTileN / (Config::Epilogue::kGated ? 2 : 1) / kClusterSplits;
  static_assert(kTileColumnsD % 8 == 0 || kClusterSplits == 1, "CTAs of a cluster store whole fragments");
  /// Rows of D in a subtile.
  static constexpr int kSubtileRows = kSubtileM / (Config::Epilogue::kGateRows > 0 ? 2 : 1);
  using SubtileC = Subtile<typename Config::C, Config::kMajorC, Config::kSubtileN, kSubtileRows>;
  using SubtileD = Subtile<typename Config::D, Config::kMajorD, Config::kSubtileN, kSubtileRows>;
  using Epilogue = CollectiveEpilogue<typename Config::Epilogue, SubtileC, SubtileD, kBlocks, kTileColumnsD,
                                  Config::kSubtileN, Config::kBuffersC, Config::kBuffersD, kSymmetric>;

  /// Whether the rows of A, or the columns of B for groups along N, are found by an index, or A has any alignment. All
  /// four producer warps then copy the operand, without TMA.
  static constexpr bool kGathers = kUnalignedA || cute::is_same_v<typename Scheduler::Params, GatherParams>;
  static constexpr bool kGathersB = kGathers && Scheduler::kIsGroupedN, kGathersA = kGathers && !kGathersB;
  using Gather = cute::conditional_t<
      kUnalignedA, UnalignedLoad<UnalignedA, typename Scheduler::Params>,
      cute::conditional_t<Scheduler::kIsGroupedK, GatherLoadAlongK<TmaLayoutA>,
                          GatherLoad<cute::conditional_t<kGathersB, TmaLayoutB, TmaLayoutA>, kGathersB>>>;
  static_assert(!kGathers || ((kGathersB ? Config::kClusterM : Config::kClusterN) == 1 && !kTransposes),
                "rows are copied as the MMAs read them, by the CTA that reads them");
  static_assert(!kGathersA || kUnalignedA || !kRegistersA, "a narrow A is loaded by TMA");

  using Scales = ScaleStage<Config::kTileM, 128 * kTileWarpgroups, kGathers ? kGatherThreads : 32>;
  using GatherScales = cute::conditional_t<
      kBlockScales, gemmill::GatherScales<Scales, Config::kTileM, Config::kStages, Config::Epilogue::kGatesHalves>,
      GatherNoScales>;
  static_assert(!(kBlockScales && kGathers) || cute::is_same_v<typename Config::Scale, float>,
                "scales of gathered rows are copied as they are");
  using ThreadScales = cute::conditional_t<kBlockScales,
                                           BlockScales<Scales, kBlocks, Config::kTileM, Config::kTileN,
                                                       Config::Epilogue::kGatesHalves>, NoScales>;
  using Accumulator = cute::conditional_t<
      Config::kPromote && !kMixed,
      TwoLevelAccumulators<typename Config::Atom, A, B, typename Config::Terms, ThreadScales, kBlocks, Config::kTileN,
                           Config::kTileK>,
      Accumulators<typename Config::Atom, A, B, kBlocks, kStepK>>;
  /// e2m1 has scales of type ue8m0, other types scales of B's type, or of f32 where they multiply sums.
  using GroupScale = cute::conditional_t<cute::is_same_v<typename Config::A, e2m1>, ue8m0,
                                         cute::conditional_t<kScalesSums, float, typename Config::B>>;
  using Groups =
      GroupLayout<GroupScale, Config::kGroup, Config::kZeros, Config::kTileM, Config::kTileK>;
  using Narrow = NarrowOperand<typename Config::A, typename Config::B, A, Groups, kBlocks, kStepK>;
  /// The kernel's only parameter: GemmParams or the scheduler's struct derived from it, the descriptors of group scales
  /// if there are any, and the epilogue's parameters.
  using Params = KernelParams<
      cute::conditional_t<(Groups::kGroups > 0), GroupParams<typename Scheduler::Params>, typename Scheduler::Params>,
      typename Config::Epilogue>;
  using Unit = decltype(cute::declval<Scheduler&>().work(0));
  static constexpr bool kSharesTiles = Scheduler::kSharesTiles;
  /// Serial split-K: `Total` holds the sums of the slices that a warpgroup has multiplied.
  enum : bool { kSerial = Scheduler::kSerial };
  static_assert(!kSerial || !(Config::kPromote || kRegistersA), "slices of K have sums of one level, and no fragments");
  using Total = cute::conditional_t<kSerial || kScalesSums, Accumulator, None>;
  using Partials = PartialTiles<Accumulator, kClusterSize * kTileWarpgroups>;
  using Sums = ClusterSums<Accumulator, kClusterSplits>;
  using SumsBarriers = ClusterSumsBarriers<kClusterSplits>;
  using StagePipeline = Pipeline<Config::kStages, Config::kClusterM, Config::kClusterN, 4 * (kSlices > 1 ? 1 : kTileWarpgroups),
                                 kGathers ? kGatherThreads : kBlockScales ? Scales::kArrivals : 0>;
  /// Groups along M or N: the whole producer warp runs the scheduler, and tiles end with their group.
  static constexpr bool kGroupedM = Scheduler::kIsGroupedM;
  static constexpr bool kGroupedN = Scheduler::kIsGroupedN;
  static constexpr bool kTilesEndInGroups = kGroupedM || kGroupedN;
  /// Whether the producer hands the tiles of groups to the consumers, and the consumer warps that take each. (A producer
  /// that gathers rows, and the consumers of some expressions, have no register left for it.)
  static constexpr bool kHandsTiles = kTilesEndInGroups && !kGathers && !Config::Epilogue::kIsExpression;
  static constexpr int kTakers = 4 * (kPingpong ? 1 : kConsumers);
  /// Groups along K: A and B are loaded through windows that end with the group.
  static constexpr bool kGroupedK = Scheduler::kIsGroupedK;
  static constexpr int kWindowK = kGroupedK ? Config::kTileK : 0;
  static constexpr bool kArray = Scheduler::kIsArray;
  static constexpr bool kNested = Scheduler::kIsNested;
  /// Whether the scheduler reads memory that the previous kernel may have written.
  enum : bool { kReadsGroups = kTilesEndInGroups || kGroupedK || kArray };
  /// Whether the descriptors of A and B begin outside the operands, so that boxes must be shifted into them. Each box
  /// must then hold some of the operand's K.
  static constexpr bool kShiftsBoxes = kGroupedK || kArray;
  using LoadA = StageLoad<TmaLayoutA, Config::kClusterN, kShiftsBoxes ? BoxBounds::Shift : kGroupedM ? BoxBounds::Overrun : BoxBounds::Clip>;
  using LoadB = StageLoad<TmaLayoutB, Config::kClusterM, kShiftsBoxes ? BoxBounds::Shift : kGroupedN ? BoxBounds::Overrun : BoxBounds::Clip,
                          Config::Epilogue::kGatesHalves>;
  static_assert(!kArray || kClusterSize == 1, "a slice of a stage may lie wholly beyond K");
  static_assert(!kShiftsBoxes || ((TmaLayoutA::kMajor == MajorIn::MN || TmaLayoutA::kPanels == 1) &&
                             (TmaLayoutB::kMajor == MajorIn::MN || TmaLayoutB::kPanels == 1)),
                "a panel may lie wholly beyond K");
  static constexpr BatchMode kMode = BatchMode(int(Scheduler::kMode));
  static_assert(!kMixed || kMode == BatchMode::Strided || kGroupedN, "a narrow A has whole matrices");
  /// Whether the first MMAs of a tile overlap the epilogue of the previous one. This requires that the sums are in
  /// other registers than the MMAs' results. (In pingpong kernels, the other warpgroup multiplies meanwhile.)
  enum : bool { kOverlapsEpilogue = kBlockScales && !kPingpong };
  static_assert(Config::Terms::kComponents == 1 ||
                    (Config::kPromote && !kGathers && !kTransposes &&
                     (kMode == BatchMode::Strided || kMode == BatchMode::GroupedM)),
                "components take the place of a batch, and their sums have two levels");
  using Position = RingPosition<Config::kStages>;
  /// The first warp of the producer warpgroup that transposes. Warp 0 loads, and warp 1 fills block scales if there are
  /// any.
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
