/// The SIMT GEMM: fused multiply-adds in float, double or int32_t, on operands of any type, strides and alignment.
///
/// A CTA of 16 x 16 threads computes a tile; each thread computes (M / 16) x (N / 16) elements. Shared memory holds two
/// stages of A and B as values of the accumulator's type, one row for each k. Meanwhile registers receive the next
/// stage.
#pragma once

#include <gemmill/copy/vectors.cuh>
#include <gemmill/kernel/direct.cuh>

namespace gemmill {

/// A stage of A or B in shared memory: TileK rows of TileMN values, padded by 16 bytes to avoid bank conflicts.
template <class Value, class Element, MajorIn Major, int Align, int TileMN, int TileK, int Threads>
struct SimtStage {
  static constexpr int kPitch = TileMN + 16 / int(sizeof(Value));
  static constexpr int kBytes = kPitch * TileK * int(sizeof(Value));
  /// Elements of one load: as many as the alignment allows, but at most a thread's share of the tile.
  static constexpr int kVector =
      Major == MajorIn::ANY ? 1 : min_of(max_of(1, Align / int(sizeof(Element))), TileMN * TileK / Threads);
  using Vectors = TileVectors<Element, Major, TileMN, TileK, kVector, kVector, Threads>;
  static_assert(Vectors::kRows % Vectors::kRowStep == 0, "every thread has the same number of vectors");

  Vectors vectors;
  Pack<Element, kVector> loaded[Vectors::kCount];

  /// Loads the next tile along K into registers.
  __device__ void load(int k_left) {
#pragma unroll
    for (int i = 0; i < Vectors::kCount; ++i) loaded[i] = vectors.load(i, k_left);
    vectors.advance();
  }

  /// Converts the loaded elements and writes them to shared memory.
  __device__ void store(Value* stage) const {
    // One address; the others differ from it by constants.
    Value* const first = stage + place(vectors.row, vectors.inner);
#pragma unroll
    for (int i = 0; i < Vectors::kCount; ++i)
#pragma unroll
      for (int j = 0; j < kVector; ++j) first[place(i * Vectors::kRowStep, j)] = load_as<Value>(loaded[i].elements[j]);
  }

 private:
  __device__ static constexpr int place(int row, int inner) {
    return Major == MajorIn::MN ? row * kPitch + inner : inner * kPitch + row;
  }
};

template <class Config>
struct SimtGemm {
  using Direct = DirectGemm<Config>;
  using Accumulator = typename Config::Accumulator;
  static constexpr int kTileM = Config::kTileM, kTileN = Config::kTileN, kTileK = Config::kTileK;
  static constexpr int kSide = 16;
  static constexpr int kThreads = kSide * kSide;
  /// Rows and columns of a thread's part of D. They lie in groups, each of which is one 16-byte load from shared
  /// memory.
  static constexpr int kRows = kTileM / kSide, kColumns = kTileN / kSide;
  static constexpr int kGroupM = min_of(kRows, 16 / int(sizeof(Accumulator)));
  static constexpr int kGroupN = min_of(kColumns, 16 / int(sizeof(Accumulator)));
  /// CTAs per SM at a time, for `__launch_bounds__`, which limits the registers of a thread. With two CTAs a thread has
  /// 128 registers. These suffice for 192 bytes of sums and loads of a stage, or 128 bytes with an expression. Sums of
  /// 8 x 8 in 32 bits just fit with 32-bit operands, the plain epilogue and no C. Sums of 8 x 16 need all registers
  /// that a thread can have.
  static constexpr int kSumBytes = kRows * kColumns * int(sizeof(Accumulator));
  static constexpr int kLoadBytes = (kTileM + kTileN) * kTileK / kThreads * int(sizeof(Accumulator));
  static constexpr bool kFits =
      kSumBytes + kLoadBytes <= (Config::Epilogue::kIsExpression ? 128 : 192) ||
      (max_of(kTileM, kTileN) <= 128 && sizeof(Accumulator) == 4 && kTileK == 8 && sizeof(typename Config::A) == 4 &&
       sizeof(typename Config::B) == 4 && sizeof(typename Config::D) > 1 && size_of<typename Config::C> == 0 &&
       !Config::Epilogue::kIsExpression);
  static constexpr int kBlocks = kFits ? 2 : 1;

  using StageA =
      SimtStage<Accumulator, typename Config::A, Config::kMajorA, Config::kAlignA, kTileM, kTileK, kThreads>;
  using StageB =
      SimtStage<Accumulator, typename Config::B, Config::kMajorB, Config::kAlignB, kTileN, kTileK, kThreads>;
  static constexpr int kSharedBytes = 2 * (StageA::kBytes + StageB::kBytes);

  __device__ static void run(DirectParams const& params) {
    extern __shared__ __align__(16) char shared[];
    wait_for_prerequisites();
    Direct::for_each_tile(params, [&](Work const& work) { compute(params, work, shared); });
  }

 private:
  /// Whether a thread loads the operands of its next products in advance, across stages. With two CTAs per SM, one
  /// hides the latency of the other instead.
  static constexpr bool kPrefetchesFragments = kBlocks == 1;

  __device__ static Accumulator* stage_a(char* shared, int stage) {
    return reinterpret_cast<Accumulator*>(shared + stage * StageA::kBytes);
  }
  __device__ static Accumulator* stage_b(char* shared, int stage) {
    return reinterpret_cast<Accumulator*>(shared + 2 * StageA::kBytes + stage * StageB::kBytes);
  }

  __device__ static void compute(DirectParams const& params, Work work, char* shared) {
    // A warp has 4 x 8 threads. Adjacent ones are interleaved, so that the lanes of a load from shared memory access
    // few addresses.
    int const warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int const thread_m = warp % 4 * 4 + lane / 16 * 2 + lane % 2;
    int const thread_n = warp / 4 * 8 + lane / 2 % 8;

    StageA a{{params.a.at_batch<typename Config::A const>(work.batch), params.a.row_stride, params.a.column_stride,
              work.m, params.m}};
    StageB b{{params.b.at_batch<typename Config::B const>(work.batch), params.b.column_stride, params.b.row_stride,
              work.n, params.n}};
    Accumulator sums[kRows][kColumns] = {};
    uint32_t const first_m = thread_m * kGroupM, first_n = thread_n * kGroupN;
    // Reads row `k` of a stage.
    auto const read = [&](Values& values, int stage, int k) {
      values.read(stage_a(shared, stage) + first_m + k * StageA::kPitch,
                  stage_b(shared, stage) + first_n + k * StageB::kPitch);
    };
    if constexpr (kPrefetchesFragments) {
      add_ahead(a, b, shared, params.k, work.k_tiles, read, sums);
    } else {
      add(a, b, shared, params.k, work.k_tiles, read, sums);
    }
    store(params, work, thread_m, thread_n, sums);
  }

  /// Adds the products of all tiles along K to `sums`.
  template <class Read>
  __device__ static void add(StageA& a, StageB& b, char* shared, int k_extent, int k_tiles, Read const& read,
                             Accumulator (&sums)[kRows][kColumns]) {
    for (int k_tile = 0; k_tile <= k_tiles; ++k_tile) {
      if (k_tile < k_tiles) {
        a.load(k_extent - k_tile * kTileK);
        b.load(k_extent - k_tile * kTileK);
      }
      if (k_tile > 0) {
#pragma unroll
        for (int k = 0; k < kTileK; ++k) {
          Values values;
          read(values, k_tile % 2, k);
          values.multiply(sums);
        }
      }
      if (k_tile < k_tiles) {
        a.store(stage_a(shared, (k_tile + 1) % 2));
        b.store(stage_b(shared, (k_tile + 1) % 2));
      }
      __syncthreads();
    }
  }

  /// The same, but loads the operands of the next products in advance, across stages. The stage after the last tile
  /// holds zeros.
  template <class Read>
  __device__ static void add_ahead(StageA& a, StageB& b, char* shared, int k_extent, int k_tiles, Read const& read,
                                   Accumulator (&sums)[kRows][kColumns]) {
    auto const load = [&](int k_tile) {
      a.load(k_extent - k_tile * kTileK);
      b.load(k_extent - k_tile * kTileK);
    };
    auto const turn = [&](int stage) {
      a.store(stage_a(shared, stage));
      b.store(stage_b(shared, stage));
      __syncthreads();
    };
    load(0);
    turn(0);
    Values values;
    read(values, 0, 0);
    for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
      int const stage = k_tile % 2;
      load(k_tile + 1);
#pragma unroll
      for (int k = 0; k < kTileK; ++k) {
        bool const turns = k == kTileK - 1;
        if (turns) turn(stage ^ 1);
        Values next;
        read(next, turns ? stage ^ 1 : stage, (k + 1) % kTileK);
        values.multiply(sums);
        values = next;
      }
    }
    __syncthreads();
  }

  /// Applies the epilogue to a thread's sums, and stores them.
  __device__ static void store(DirectParams const& params, Work const& work, int thread_m, int thread_n,
                               Accumulator const (&sums)[kRows][kColumns]) {
    auto const epilogue = Direct::epilogue(params, work);
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      int const m = work.m + position<kGroupM>(thread_m, row);
#pragma unroll
      for (int column = 0; column < kColumns; column += kGroupN) {
        Accumulator group[kGroupN];
#pragma unroll
        for (int i = 0; i < kGroupN; ++i) group[i] = sums[row][column + i];
        epilogue.store(group, m, work.n + position<kGroupN>(thread_n, column));
      }
    }
  }

  /// The row or column, within the tile, of element `index` of a thread.
  template <int Group>
  __device__ static int position(int thread, int index) {
    return (index / Group * kSide + thread) * Group + index % Group;
  }

  /// The values of A and B that a thread multiplies for one k.
  struct Values {
    Accumulator column[kRows], row[kColumns];

    /// Reads them; `a` and `b` point to this thread's first value in a row of a stage.
    __device__ void read(Accumulator const* a, Accumulator const* b) {
      read<kGroupM>(a, column);
      read<kGroupN>(b, row);
    }
    __device__ void multiply(Accumulator (&sums)[kRows][kColumns]) const {
#pragma unroll
      for (int i = 0; i < kRows; ++i)
#pragma unroll
        for (int j = 0; j < kColumns; ++j) sums[i][j] += column[i] * row[j];
    }

   private:
    template <int Group, int Count>
    __device__ static void read(Accumulator const* values, Accumulator (&into)[Count]) {
#pragma unroll
      for (int first = 0; first < Count; first += Group) {
        auto const group = *reinterpret_cast<Pack<Accumulator, Group> const*>(values + position<Group>(0, first));
#pragma unroll
        for (int i = 0; i < Group; ++i) into[first + i] = group.elements[i];
      }
    }
  };
};

}  // namespace gemmill
