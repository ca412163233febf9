/// The mma.sync GEMM, for operands of any strides. On sm_80 and later a ring of stages is filled by cp.async; on sm_70
/// two stages are filled through registers.
///
/// Every warp loads and multiplies. Shared memory: | A stages | B stages |, swizzled (copy/layout.cuh).
#pragma once

#include <gemmill/kernel/direct.cuh>
#include <gemmill/mma/fragments.cuh>
#include <gemmill/mma/halves.cuh>
#include <gemmill/mma/quadpair.cuh>

namespace gemmill {

/// Mma: how a warp multiplies, WarpMma or QuadpairMma.
template <class Config, class Mma = WarpMma>
struct MmaSyncGemm {
  using Direct = DirectGemm<Config>;
  using Atom = typename Config::Atom;
  using Word = typename Atom::Word;
  using A = typename Config::A;
  using B = typename Config::B;
  using Accumulator = typename Config::Accumulator;
  static constexpr int kTileM = Config::kTileM, kTileN = Config::kTileN, kTileK = Config::kTileK;
  static constexpr int kStages = Config::kStages;
  static constexpr bool kShiftedA = kIsShifted<Config::kMajorA, Config::kAlignA, Mma::kHasAsync>;
  static constexpr bool kShiftedB = kIsShifted<Config::kMajorB, Config::kAlignB, Mma::kHasAsync>;
  /// A warp computes 32 x 32, or up to 64 x 64 if both operands are shifted. Words of shifted operands are put together
  /// from two, which takes longer than the MMAs, and a larger warp tile reads fewer words for each MMA. With an
  /// expression or with fp8 that is converted, 64 x 64 would need more than 255 registers.
  static constexpr int kWarpSpan =
      kShiftedA && kShiftedB && !kIsHalves<Atom> && !Config::Epilogue::kIsExpression ? 64 : 32;
  /// For f64, whose words are longer, a warp computes 64 x 32 if that leaves at least four warps.
  static constexpr int kMaxWarps = sizeof(Word) == 8 ? max_of(4, min_of(8, kTileM * kTileN / (64 * 32))) : 8;
  static constexpr int kWarpsN = max_of(1, min_of(kTileN / kWarpSpan, kTileM <= 128 ? 4 : 2));
  static constexpr int kWarpsM = max_of(1, min_of(kTileM / kWarpSpan, kMaxWarps / kWarpsN));
  /// If the tile has fewer than four warps, further warps compute the same part of D for other slices of each stage
  /// along K.
  static constexpr int kSlices =
      max_of(1, min_of(4 / (kWarpsM * kWarpsN), kTileK * int(sizeof(A)) / 32));
  static constexpr int kSliceK = kTileK / kSlices;
  static constexpr int kSliceThreads = 32 * kWarpsM * kWarpsN;
  static constexpr int kThreads = kSliceThreads * kSlices;
  static constexpr int kBlocks = 1;
  static constexpr int kWarpM = kTileM / kWarpsM, kWarpN = kTileN / kWarpsN;
  static constexpr int kAtomsM = kWarpM / 16, kAtomsN = kWarpN / 8;
  /// Words of 16 rows or columns that a lane holds.
  static constexpr int kWords = 16 / int(sizeof(Word));

  using CopyA = OperandCopy<A, Config::kMajorA, Config::kAlignA, kTileM, kTileK, kThreads, Mma::kHasAsync>;
  using CopyB = OperandCopy<B, Config::kMajorB, Config::kAlignB, kTileN, kTileK, kThreads, Mma::kHasAsync>;
  using LayoutA = typename CopyA::Layout;
  using LayoutB = typename CopyB::Layout;
  using FragmentsA = typename Mma::template FragmentsA<LayoutA, Word>;
  using FragmentsB = typename Mma::template FragmentsB<LayoutB, Word>;
  static constexpr int kSharedBytes = kStages * (LayoutA::kBytes + LayoutB::kBytes);
  static_assert(kSliceK % FragmentsA::kStepK == 0, "a slice of a stage is whole MMAs deep");
  static_assert((kSlices - 1) * kTileM * kTileN * int(sizeof(Accumulator)) <= kSharedBytes,
                "the stages hold the sums of all slices but one");

  __device__ static void run(DirectParams const& params) {
    extern __shared__ __align__(1024) char shared[];
    wait_for_prerequisites();
    Direct::for_each_tile(params, [&](Work const& work) { compute(params, work, shared); });
  }

 private:
  /// Estimates of the registers that a thread needs in addition to sums and words. kSimple: for a few addresses.
  /// kOrdered: for more addresses, but each of several adjacent elements.
  static constexpr bool kSimple = Config::kMajorA == MajorIn::K && Config::kMajorB == MajorIn::K &&
                                  min_of(Config::kAlignA, Config::kAlignB) >= 8 &&
                                  size_of<typename Config::C> == 0 && !Config::Epilogue::kIsExpression;
  static constexpr bool kOrdered =
      Config::kMajorA != MajorIn::ANY && Config::kMajorB != MajorIn::ANY && sizeof(Word) == 4;
  static constexpr int kPrefetchBytes =
      kAtomsM * kAtomsN * 4 * int(sizeof(Accumulator)) + 2 * (kAtomsM + kAtomsN / 2) * kWords * int(sizeof(Word));
  static constexpr int kStepK = FragmentsA::kStepK, kSteps = kSliceK / kStepK;
  /// Whether words are put together from two, and registers hold more than sums and words.
  static constexpr bool kFull = (kShiftedA || kShiftedB) && (kIsHalves<Atom> || Config::Epilogue::kIsExpression);
  /// The most bytes of sums and words with which a thread loads the next step's words, and starts copies, during the
  /// MMAs of a step. Above these bounds ptxas spills.
  static constexpr int kMaxPrefetchBytes = kFull                             ? (kSteps <= 4 ? 256 : 0)
                                        : (kSimple || sizeof(Word) == 8) && __CUDA_ARCH__ >= 900 ? 768
                                        : kSimple || kOrdered             ? 640
                                                                          : 0;
  static constexpr bool kPrefetchesFragments = CopyA::kAsync && CopyB::kAsync && kPrefetchBytes <= kMaxPrefetchBytes;
  using Sums = Accumulator[kAtomsM][kAtomsN][4];

  __device__ static char* stage_a(char* shared, int stage) { return shared + stage * LayoutA::kBytes; }
  __device__ static char* stage_b(char* shared, int stage) {
    return shared + kStages * LayoutA::kBytes + stage * LayoutB::kBytes;
  }

  /// A thread's part in filling stages.
  struct Copies {
    CopyA a;
    CopyB b;

    /// The number of tiles from K = 0 that lie within K, together with the elements that are read behind each.
    __device__ int whole_tiles(int k) const {
      return a.is_whole() && b.is_whole() ? (k - max_of(CopyA::kBehind, CopyB::kBehind)) / kTileK : 0;
    }
    template <bool Whole, int Parts>
    __device__ void begin(char* shared, int stage, int k_left, int part) {
      a.template begin<Whole, Parts>(stage_a(shared, stage), k_left, part);
      b.template begin<Whole, Parts>(stage_b(shared, stage), k_left, part);
    }
    __device__ void finish(char* shared, int stage) const {
      a.finish(stage_a(shared, stage));
      b.finish(stage_b(shared, stage));
    }
  };

  /// The words of one step along K that a warp multiplies.
  struct Words {
    Word rows[kAtomsM][kWords], columns[kAtomsN / 2][kWords];

    __device__ void load(FragmentsA const& a, FragmentsB const& b, char* shared, int stage, int k) {
      a.load(shared_address(stage_a(shared, stage)), k, rows);
      b.load(shared_address(stage_b(shared, stage)), k, columns);
    }
    /// Multiplies rows 16 * i to 16 * i + 15.
    __device__ void multiply(int i, Sums& sums) const {
#pragma unroll
      for (int j = 0; j < kAtomsN; j += 2) {
        Mma::template multiply<Atom>(rows[i], columns[j / 2], sums[i][j], sums[i][j + 1]);
      }
    }
  };

  /// Waits until the next tile has arrived, and until all threads have finished with the previous one.
  __device__ static void wait_for_tile() {
    if constexpr (Mma::kHasAsync) wait_for_copies<kStages - 2>();
    __syncthreads();
  }

  __device__ static void compute(DirectParams const& params, Work work, char* shared) {
    int const slice = kSlices == 1 ? 0 : threadIdx.x / kSliceThreads;
    int const warp = threadIdx.x / 32 % (kWarpsM * kWarpsN), lane = threadIdx.x % 32;
    int const warp_m = warp % kWarpsM * kWarpM, warp_n = warp / kWarpsM * kWarpN;
    Copies copies{{params.a.at_batch<A const>(work.batch), params.a.row_stride, params.a.column_stride, work.m, params.m},
                  {params.b.at_batch<B const>(work.batch), params.b.column_stride, params.b.row_stride, work.n, params.n}};
    auto const a = copies.a.template fragments<FragmentsA>(warp_m, slice * kSliceK);
    auto const b = copies.b.template fragments<FragmentsB>(warp_n, slice * kSliceK);
    int const whole_tiles = copies.whole_tiles(params.k);
    fill_stages(params, work, copies, shared, whole_tiles);
    Sums sums = {};
    Words words;
    int stage = 0;
    wait_for_tile();
    if constexpr (kPrefetchesFragments) words.load(a, b, shared, stage, 0);
    // Multiplies one tile. Meanwhile it copies the tile that is kStages - 1 ahead into the stage of the previous tile;
    // if that tile lies wholly within K, the copies are issued between MMAs.
    auto const step = [&](int tile, auto whole) {
      constexpr bool kWhole = decltype(whole)::value;
      constexpr int kParts = kWhole && kPrefetchesFragments && kSteps > 1 ? (kSteps - 1) * kAtomsM : 1;
      int const ahead = tile + kStages - 1, refilled = stage == 0 ? kStages - 1 : stage - 1;
      bool const refills = kWhole || ahead < work.k_tiles;
      auto const refill = [&](int part) {
        if (refills) copies.template begin<kWhole, kParts>(shared, refilled, params.k - ahead * kTileK, part);
        if constexpr (Mma::kHasAsync)
          if (part == kParts - 1) commit_copies();
      };
      auto const turn = [&] {
        if (refills) copies.finish(shared, refilled);
        wait_for_tile();
        stage = stage == kStages - 1 ? 0 : stage + 1;
      };
      if (kParts == 1) refill(0);
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        Words next;
        if constexpr (kPrefetchesFragments) {
          if (k == kSteps - 1) turn();
          next.load(a, b, shared, stage, (k + 1) % kSteps * kStepK);
        } else {
          words.load(a, b, shared, stage, k * kStepK);
        }
#pragma unroll
        for (int i = 0; i < kAtomsM; ++i) {
          words.multiply(i, sums);
          if (kParts > 1 && k < kSteps - 1) refill(k * kAtomsM + i);
        }
        if constexpr (kPrefetchesFragments)
          words = next;
        else if (k == kSteps - 1)
          turn();
      }
    };
    int tile = 0;
    for (; tile + kStages - 1 < whole_tiles; ++tile) step(tile, cuda::std::true_type{});
    for (; tile < work.k_tiles; ++tile) step(tile, cuda::std::false_type{});
    __syncthreads();
    if (kSlices > 1 && !add_slices(reinterpret_cast<Accumulator*>(shared), slice, sums)) return;
    store(params, work, warp_m, warp_n, lane, sums);
  }

  /// Starts the copies of the first tiles, into all stages but one.
  __device__ static void fill_stages(DirectParams const& params, Work const& work, Copies& copies, char* shared,
                                     int whole_tiles) {
#pragma unroll 1
    for (int tile = 0; tile < kStages - 1; ++tile) {
      int const k_left = params.k - tile * kTileK;
      if (tile < whole_tiles) {
        copies.template begin<true, 1>(shared, tile, k_left, 0);
      } else if (tile < work.k_tiles) {
        copies.template begin<false, 1>(shared, tile, k_left, 0);
      }
      if (tile < work.k_tiles) copies.finish(shared, tile);
      if constexpr (Mma::kHasAsync) commit_copies();
    }
  }

  /// Applies the epilogue to a warp's sums, and stores them.
  __device__ static void store(DirectParams const& params, Work const& work, int warp_m, int warp_n, int lane,
                               Sums const& sums) {
    auto const epilogue =
        Direct::epilogue(params, work)
            .from(work.m + warp_m + FragmentsA::position(0, Mma::sum_row(lane)),
                  work.n + warp_n + FragmentsB::position(0, Mma::sum_column(lane)));
    // Elements of a run, which are adjacent in D: two columns of an atom, or one column of each of four atoms.
    constexpr int kRun = FragmentsB::kPermuted ? 4 : 2;
#pragma unroll
    for (int i = 0; i < 2 * kAtomsM; ++i) {
      auto const row = epilogue.from(FragmentsA::position(i, 0), 0);
#pragma unroll
      for (int j = 0; j < 2 * kAtomsN; j += kRun) {
        Accumulator run[kRun];
#pragma unroll
        for (int r = 0; r < kRun; ++r) {
          int const atom = FragmentsB::kPermuted ? j / 8 * 4 + r : j / 2;
          int const column = FragmentsB::kPermuted ? j / 4 % 2 : r;
          run[r] = sums[i / 2][atom][i % 2 * 2 + column];
        }
        int const group = FragmentsB::kPermuted ? j / 8 * 4 : j / 2;
        row.store(run, 0, FragmentsB::position(group, FragmentsB::kPermuted ? j / 4 % 2 : 0));
      }
    }
  }

  /// Adds the sums of the other slices to those of the first, through the memory of the stages. No stage is in use
  /// before or after. Returns whether this thread belongs to the first slice, which then has the tile's sums.
  __device__ static bool add_slices(Accumulator* shared, int slice, Sums& sums) {
    constexpr int kCount = sizeof(Sums) / sizeof(Accumulator);
    Accumulator* const values = &sums[0][0][0];
    Accumulator* const first = shared + threadIdx.x % kSliceThreads;
    if (slice > 0) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) first[((slice - 1) * kCount + i) * kSliceThreads] = values[i];
    }
    __syncthreads();
    if (slice == 0) {
#pragma unroll
      for (int other = 0; other < kSlices - 1; ++other)
#pragma unroll
        for (int i = 0; i < kCount; ++i) values[i] += first[(other * kCount + i) * kSliceThreads];
    }
    __syncthreads();
    return slice == 0;
  }
};

template <class Config>
using QuadpairGemm = MmaSyncGemm<Config, QuadpairMma>;

}  // namespace gemmill
