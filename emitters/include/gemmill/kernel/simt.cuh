/// The SIMT GEMM: fused multiply-adds in float, double or int32_t on operands of any type, strides and alignment.
///
/// A CTA of 16 x 16 threads computes a tile, each thread a part of (M / 16) x (N / 16). Two stages of A and B lie in
/// shared memory as values of the accumulator's type, K by K; the next stage waits in registers meanwhile.
#pragma once

#include <gemmill/copy/vectors.cuh>
#include <gemmill/kernel/direct.cuh>

namespace gemmill {

/// A stage of A or B in shared memory: TileK rows of TileMN values, and 16 bytes between rows against bank conflicts.
template <class Value, class Element, MajorIn Major, int Align, int TileMN, int TileK, int Threads>
struct SimtStage {
  static constexpr int kPitch = TileMN + 16 / int(sizeof(Value));
  static constexpr int kBytes = kPitch * TileK * int(sizeof(Value));
  /// Elements a load moves: what the alignment allows, and at most what each thread has of a tile.
  static constexpr int kVector =
      Major == MajorIn::ANY ? 1 : min_of(max_of(1, Align / int(sizeof(Element))), TileMN * TileK / Threads);
  using Vectors = TileVectors<Element, Major, TileMN, TileK, kVector, kVector, Threads>;
  static_assert(Vectors::kRows % Vectors::kRowStep == 0, "every thread has the same number of vectors");

  Vectors vectors;
  Pack<Element, kVector> loaded[Vectors::kCount];

  /// Reads the next tile along K into registers.
  __device__ void load(int k_left) {
#pragma unroll
    for (int i = 0; i < Vectors::kCount; ++i) loaded[i] = vectors.load(i, k_left);
    vectors.advance();
  }

  /// Writes what was read to shared memory.
  __device__ void store(Value* stage) const {
#pragma unroll
    for (int i = 0; i < Vectors::kCount; ++i) {
      int const row = vectors.row_of(i), inner = vectors.inner;
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        int const at = Major == MajorIn::MN ? row * kPitch + inner + j : (inner + j) * kPitch + row;
        stage[at] = load_as<Value>(loaded[i].elements[j]);
      }
    }
  }
};

template <class Config>
struct SimtGemm {
  using Direct = DirectGemm<Config>;
  using Accumulator = typename Config::Accumulator;
  static constexpr int kTileM = Config::kTileM, kTileN = Config::kTileN, kTileK = Config::kTileK;
  static constexpr int kSide = 16;
  static constexpr int kThreads = kSide * kSide;
  /// Elements of D of a thread, in groups that a load of 16 bytes from shared memory brings.
  static constexpr int kRows = kTileM / kSide, kColumns = kTileN / kSide;
  static constexpr int kGroupM = min_of(kRows, 16 / int(sizeof(Accumulator)));
  static constexpr int kGroupN = min_of(kColumns, 16 / int(sizeof(Accumulator)));
  /// CTAs on an SM at a time, which bounds the registers of a thread: 128 hold 192 bytes of sums and of what is loaded
  /// for a stage, 128 beside an expression; 8 x 8 sums of 32 bits just fit with operands of 32 bits, the plain epilogue
  /// and no C.
  static constexpr int kSumBytes = kRows * kColumns * int(sizeof(Accumulator));
  static constexpr int kLoadBytes = (kTileM + kTileN) * kTileK / kThreads * int(sizeof(Accumulator));
  static constexpr bool kFits =
      kSumBytes + kLoadBytes <= (Config::Epilogue::kIsExpression ? 128 : 192) ||
      (sizeof(Accumulator) == 4 && kTileK == 8 && sizeof(typename Config::A) == 4 && sizeof(typename Config::B) == 4 &&
       sizeof(typename Config::D) > 1 && size_of<typename Config::C> == 0 && !Config::Epilogue::kIsExpression);
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
  __device__ static Accumulator* stage_a(char* shared, int stage) {
    return reinterpret_cast<Accumulator*>(shared + stage * StageA::kBytes);
  }
  __device__ static Accumulator* stage_b(char* shared, int stage) {
    return reinterpret_cast<Accumulator*>(shared + 2 * StageA::kBytes + stage * StageB::kBytes);
  }

  __device__ static void compute(DirectParams const& params, Work work, char* shared) {
    // A warp is 4 x 8 threads, neighbours interleaved so that the lanes of a load from shared memory meet few addresses.
    int const warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int const thread_m = warp % 4 * 4 + lane / 16 * 2 + lane % 2;
    int const thread_n = warp / 4 * 8 + lane / 2 % 8;

    StageA a{{params.a.at_batch<typename Config::A const>(work.batch), params.a.row_stride, params.a.column_stride,
              work.m, params.m}};
    StageB b{{params.b.at_batch<typename Config::B const>(work.batch), params.b.column_stride, params.b.row_stride,
              work.n, params.n}};
    Accumulator sums[kRows][kColumns] = {};
    for (int k_tile = 0; k_tile <= work.k_tiles; ++k_tile) {
      if (k_tile < work.k_tiles) {
        a.load(params.k - k_tile * kTileK);
        b.load(params.k - k_tile * kTileK);
      }
      if (k_tile > 0) multiply(stage_a(shared, k_tile % 2), stage_b(shared, k_tile % 2), thread_m, thread_n, sums);
      if (k_tile < work.k_tiles) {
        a.store(stage_a(shared, (k_tile + 1) % 2));
        b.store(stage_b(shared, (k_tile + 1) % 2));
      }
      __syncthreads();
    }

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

  /// Where element `index` of a thread lies in the tile.
  template <int Group>
  __device__ static int position(int thread, int index) {
    return (index / Group * kSide + thread) * Group + index % Group;
  }

  __device__ static void multiply(Accumulator const* a, Accumulator const* b, int thread_m, int thread_n,
                                  Accumulator (&sums)[kRows][kColumns]) {
#pragma unroll
    for (int k = 0; k < kTileK; ++k) {
      Accumulator column[kRows], row[kColumns];
      read<kGroupM>(a + k * StageA::kPitch, thread_m, column);
      read<kGroupN>(b + k * StageB::kPitch, thread_n, row);
#pragma unroll
      for (int i = 0; i < kRows; ++i)
#pragma unroll
        for (int j = 0; j < kColumns; ++j) sums[i][j] += column[i] * row[j];
    }
  }

  template <int Group, int Count>
  __device__ static void read(Accumulator const* values, int thread, Accumulator (&into)[Count]) {
#pragma unroll
    for (int first = 0; first < Count; first += Group) {
      auto const group = *reinterpret_cast<Pack<Accumulator, Group> const*>(values + position<Group>(thread, first));
#pragma unroll
      for (int i = 0; i < Group; ++i) into[first + i] = group.elements[i];
    }
  }
};

}  // namespace gemmill
