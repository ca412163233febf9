/// The SIMT GEMM: fused multiply-adds in float, double or int32_t, on operands of any type, strides and alignment.
///
/// The threads of a CTA share a tile; each computes some rows and columns of it. Shared memory holds two stages of A and
/// B as values of the accumulator's type, one row for each k. Meanwhile registers receive the next stage.
#pragma once

#include <gemmill/copy/shared.cuh>
#include <gemmill/copy/vectors.cuh>
#include <gemmill/kernel/direct.cuh>

namespace gemmill {

/// A stage of A or B in shared memory: TileK rows of TileMN values, padded by 16 bytes to avoid bank conflicts.
template <class Value, class Element, MajorIn Major, int Align, int TileMN, int TileK, int Threads>
struct SimtStage {
  static constexpr int kPitch = TileMN + 16 / int(sizeof(Value));
  static constexpr int kRowBytes = kPitch * int(sizeof(Value));
  static constexpr int kBytes = kRowBytes * TileK;
  /// Elements of one load: as many as the alignment allows, but at most a thread's share of the tile.
  static constexpr int kVector =
      Major == MajorIn::ANY ? 1 : min_of(max_of(1, Align / int(sizeof(Element))), TileMN * TileK / Threads);
  using Vectors = TileVectors<Element, Major, TileMN, TileK, kVector, kVector, Threads>;
  static_assert(Vectors::kRows % Vectors::kRowStep == 0, "every thread has the same number of vectors");

  Vectors vectors;
  Pack<Element, kVector> loaded[Vectors::kCount];

  /// The number of tiles from K = 0 that lie within the operand.
  __device__ int whole_tiles(int k_extent) const { return vectors.mn_left < TileMN ? 0 : k_extent / TileK; }

  /// Loads the next tile along K into registers. `Whole`: it lies within the operand.
  template <bool Whole>
  __device__ void load(int k_left) {
#pragma unroll
    for (int i = 0; i < Vectors::kCount; ++i) {
      if constexpr (Whole) {
        loaded[i] = *reinterpret_cast<Pack<Element, kVector> const*>(vectors.at(i));
      } else {
        loaded[i] = vectors.load(i, k_left);
      }
    }
    vectors.advance();
  }

  /// Converts the loaded elements and writes them to shared memory.
  __device__ void store(char* stage) const {
    // One address; the others differ from it by constants.
    Value* const first = reinterpret_cast<Value*>(stage) + place(vectors.row, vectors.inner);
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
  static constexpr int kThreadsM = Config::kThreadsM, kThreadsN = Config::kThreadsN;
  static constexpr int kThreads = kThreadsM * kThreadsN;
  /// Rows and columns of a thread's part of D. They lie in groups, each of which is one 16-byte load from shared
  /// memory.
  static constexpr int kRows = kTileM / kThreadsM, kColumns = kTileN / kThreadsN;
  static constexpr int kGroupM = min_of(kRows, 16 / int(sizeof(Accumulator)));
  static constexpr int kGroupN = min_of(kColumns, 16 / int(sizeof(Accumulator)));
  /// CTAs per SM at a time, for `__launch_bounds__`, which limits the registers of a thread. 256 threads of an SM have
  /// all the registers that a thread can have. With two CTAs of 256, a thread has 128 registers. These suffice for 192
  /// bytes of sums and loads of a stage, or 128 bytes with an expression.
  static constexpr int kSumBytes = kRows * kColumns * int(sizeof(Accumulator));
  static constexpr int kLoadBytes = (kTileM + kTileN) * kTileK / kThreads * int(sizeof(Accumulator));
  static constexpr bool kFitsTwice = kSumBytes + kLoadBytes <= (Config::Epilogue::kIsExpression ? 128 : 192);
  static constexpr int kBlocks = kThreads == 256 && kFitsTwice ? 2 : 256 / kThreads;

  using StageA =
      SimtStage<Accumulator, typename Config::A, Config::kMajorA, Config::kAlignA, kTileM, kTileK, kThreads>;
  using StageB =
      SimtStage<Accumulator, typename Config::B, Config::kMajorB, Config::kAlignB, kTileN, kTileK, kThreads>;
  static constexpr int kStageBytes = StageA::kBytes + StageB::kBytes;
  static constexpr int kSharedBytes = 2 * kStageBytes;

  __device__ static void run(DirectParams const& params) {
    extern __shared__ __align__(16) char shared[];
    wait_for_prerequisites();
    Direct::for_each_tile(params, [&](Work const& work) { compute(params, work, shared); });
  }

 private:
  /// Whether a thread loads the operands of its next products in advance, across stages. With 128 registers, the other
  /// warps hide the latency of loads instead.
  static constexpr bool kPrefetchesFragments = kThreads * kBlocks == 256;

  /// A thread's part in filling stages.
  struct Stages {
    StageA a;
    StageB b;
    int k_extent, whole_tiles;

    __device__ Stages(DirectParams const& params, Work const& work)
        : a{{params.a.at_batch<typename Config::A const>(work.batch), params.a.row_stride, params.a.column_stride,
             work.m, params.m}},
          b{{params.b.at_batch<typename Config::B const>(work.batch), params.b.column_stride, params.b.row_stride,
             work.n, params.n}},
          k_extent(params.k),
          whole_tiles(min(a.whole_tiles(k_extent), b.whole_tiles(k_extent))) {}

    /// Loads a tile into registers; call it for the tiles along K in order. Beyond K it loads zeros.
    __device__ void load(int k_tile) {
      if (k_tile < whole_tiles) {
        load<true>(k_tile);
      } else {
        load<false>(k_tile);
      }
    }
    __device__ void store(char* stage) const {
      a.store(stage);
      b.store(stage + StageA::kBytes);
    }

   private:
    template <bool Whole>
    __device__ void load(int k_tile) {
      a.template load<Whole>(k_extent - k_tile * kTileK);
      b.template load<Whole>(k_extent - k_tile * kTileK);
    }
  };

  __device__ static void compute(DirectParams const& params, Work work, char* shared) {
    // A warp has 4 x 8 threads. Adjacent ones are interleaved, so that the lanes of a load from shared memory access
    // few addresses.
    constexpr int kWarpsM = kThreadsM / 4;
    int const warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int const thread_m = warp % kWarpsM * 4 + lane / 16 * 2 + lane % 2;
    int const thread_n = warp / kWarpsM * 8 + lane / 2 % 8;

    Stages stages(params, work);
    Accumulator sums[kRows][kColumns] = {};
    uint32_t const first = shared_address(shared);
    uint32_t const first_a = opaque(first + thread_m * kGroupM * int(sizeof(Accumulator)));
    uint32_t const first_b = opaque(first + StageA::kBytes + thread_n * kGroupN * int(sizeof(Accumulator)));
    // Reads row `k` of the stage at byte offset `stage`.
    auto const read = [&](Values& values, int stage, int k) {
      values.read(first_a + stage + k * StageA::kRowBytes, first_b + stage + k * StageB::kRowBytes);
    };
    if constexpr (kPrefetchesFragments) {
      add_ahead(stages, shared, work.k_tiles, read, sums);
    } else {
      add(stages, shared, work.k_tiles, read, sums);
    }
    store(params, work, thread_m, thread_n, sums);
  }

  /// Adds the products of all tiles along K to `sums`.
  template <class Read>
  __device__ static void add(Stages& stages, char* shared, int k_tiles, Read const& read,
                             Accumulator (&sums)[kRows][kColumns]) {
    for (int k_tile = 0; k_tile <= k_tiles; ++k_tile) {
      int const filled = k_tile % 2 * kStageBytes, read_from = kStageBytes - filled;
      if (k_tile < k_tiles) stages.load(k_tile);
      if (k_tile > 0) {
#pragma unroll
        for (int k = 0; k < kTileK; ++k) {
          Values values;
          read(values, read_from, k);
          values.multiply(sums);
        }
      }
      if (k_tile < k_tiles) stages.store(shared + filled);
      __syncthreads();
    }
  }

  /// The same, but loads the operands of the next products in advance, across stages. The stage after the last tile
  /// holds zeros.
  template <class Read>
  __device__ static void add_ahead(Stages& stages, char* shared, int k_tiles, Read const& read,
                                   Accumulator (&sums)[kRows][kColumns]) {
    auto const turn = [&](int stage) {
      stages.store(shared + stage);
      __syncthreads();
    };
    stages.load(0);
    turn(0);
    Values values;
    read(values, 0, 0);
    int stage = 0;
    for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
      int const other = kStageBytes - stage;
      stages.load(k_tile + 1);
#pragma unroll
      for (int k = 0; k < kTileK; ++k) {
        bool const turns = k == kTileK - 1;
        if (turns) turn(other);
        Values next;
        read(next, turns ? other : stage, (k + 1) % kTileK);
        values.multiply(sums);
        values = next;
      }
      stage = other;
    }
    __syncthreads();
  }

  /// Applies the epilogue to a thread's sums, and stores them.
  __device__ static void store(DirectParams const& params, Work const& work, int thread_m, int thread_n,
                               Accumulator const (&sums)[kRows][kColumns]) {
    auto const epilogue = Direct::epilogue(params, work);
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      int const m = work.m + position<kGroupM, kThreadsM>(thread_m, row);
#pragma unroll
      for (int column = 0; column < kColumns; column += kGroupN) {
        Accumulator group[kGroupN];
#pragma unroll
        for (int i = 0; i < kGroupN; ++i) group[i] = sums[row][column + i];
        epilogue.store(group, m, work.n + position<kGroupN, kThreadsN>(thread_n, column));
      }
    }
  }

  /// The row or column, within the tile, of element `index` of one of `Threads` threads.
  template <int Group, int Threads>
  __device__ static constexpr int position(int thread, int index) {
    return (index / Group * Threads + thread) * Group + index % Group;
  }

  /// The values of A and B that a thread multiplies for one k.
  struct Values {
    Accumulator column[kRows], row[kColumns];

    /// Reads them; `a` and `b` are the addresses of this thread's first value in a row of a stage.
    __device__ void read(uint32_t a, uint32_t b) {
      read<kGroupM, kThreadsM>(a, column);
      read<kGroupN, kThreadsN>(b, row);
    }
    /// Every second row from right to left: a multiply-add can read two registers of its warp at once and takes the
    /// third from the one before.
    __device__ void multiply(Accumulator (&sums)[kRows][kColumns]) const {
#pragma unroll
      for (int i = 0; i < kRows; ++i)
#pragma unroll
        for (int step = 0; step < kColumns; ++step) {
          int const j = i % 2 == 0 ? step : kColumns - 1 - step;
          sums[i][j] += column[i] * row[j];
        }
    }

   private:
    template <int Group, int Threads, int Count>
    __device__ static void read(uint32_t first, Accumulator (&into)[Count]) {
#pragma unroll
      for (int index = 0; index < Count; index += Group) {
        uint32_t const address = first + position<Group, Threads>(0, index) * int(sizeof(Accumulator));
        auto const group = load_shared<Pack<Accumulator, Group>>(address);
#pragma unroll
        for (int i = 0; i < Group; ++i) into[index + i] = group.elements[i];
      }
    }
  };
};

}  // namespace gemmill
