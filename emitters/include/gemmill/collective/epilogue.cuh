/// The collective epilogue of one consumer warpgroup: accumulators to D through a ring of subtiles in shared memory.
#pragma once

#include <cutlass/arch/barrier.h>

#include <gemmill/epilogue/expression.cuh>
#include <gemmill/epilogue/linear.cuh>
#include <gemmill/epilogue/subtile.cuh>
#include <gemmill/pipeline/named_barrier.cuh>
#include <gemmill/pipeline/pipeline.cuh>
#include <gemmill/scheduler/array.cuh>

namespace gemmill {

/// Accumulator `index` of a fragment, as an epilogue computes with it: a register, or half of an f16x2 one.
template <class Compute, class Register>
__device__ inline Compute accumulator_value(Register const* registers, int index) {
  return to_compute(Compute{}, registers[index]);
}
template <>
__device__ inline float accumulator_value<float, uint32_t>(uint32_t const* registers, int index) {
  return to_float(f16{uint16_t(registers[index / 2] >> (index % 2 * 16))});
}

/// Stages D (and C, where there is one) subtile by subtile, so that stores overlap the conversion of what follows. A buffer
/// of D holds a subtile of each matrix that an expression writes by TMA as well, one of C of each that it reads.
///
/// One thread of the warpgroup issues every TMA copy. A single barrier a subtile orders three things: D's subtile is
/// written, C's has been read, and the D buffer that comes next has left shared memory. Where there is a single D buffer, a
/// second one waits until it has left; where the buffers hold a whole tile, one before its first subtile waits until all
/// have left, and one behind its last serves them all.
/// `TileN` are columns of D; where `SubtileN` does not divide them, the last subtile writes anew what it shares with the one
/// before (library/legality/resources.py, subtile_n).
template <class Operation, class SubtileC, class SubtileD, int Blocks, int TileN, int SubtileN, int BuffersC, int BuffersD>
struct CollectiveEpilogue {
  using Inputs = Subtiles<typename Operation::Inputs, SubtileN>;
  using Outputs = Subtiles<typename Operation::Outputs, SubtileN>;
  /// Bytes of a buffer of C and of D.
  static constexpr int kBytesC = SubtileC::kBytes + Inputs::kBytes, kBytesD = SubtileD::kBytes + Outputs::kBytes;
  static constexpr bool kHasC = SubtileC::kBytes > 0;
  static constexpr bool kLoads = kBytesC > 0;
  static constexpr bool kPartial = Operation::kIsPartial;
  /// Whether a thread's two columns lie next to each other.
  static constexpr bool kNeighbours = !Operation::kGated;
  static constexpr int kColumns = ceil_div(TileN, SubtileN);
  static constexpr int kSubtiles = Blocks * kColumns;
  static_assert(BuffersD >= 1);
  static_assert(TileN % SubtileN == 0 || (TileN > SubtileN && !kLoads && Outputs::kBytes == 0),
                "columns may be written twice, but C is read in place");
  /// Whether the few columns of a tile go from registers to global memory: past shared memory and TMA, which take longer
  /// than sectors that are half empty.
  enum : bool { kBypassesShared = TileN == 8 && !kLoads && Outputs::kBytes == 0 && !kPartial };
  /// Whether the buffers hold all of a tile, whose copies then start together: one round of fences and barriers, not one for
  /// each subtile. (Expressions, which take longer beside another warpgroup's MMAs, are the slower for it.)
  enum : bool { kCopiesWholeTile = BuffersD == kSubtiles && BuffersD > 1 && !kLoads && !kBypassesShared && !Operation::kIsExpression };
  /// Whether the buffers do not hold a tile, and what would.
  enum : bool { kWholeTileHelps = BuffersD < kSubtiles && !kBypassesShared };
  static constexpr int kWholeTileBytes = kSubtiles * kBytesD;
  using FullC = cutlass::arch::ClusterTransactionBarrier;

  GemmParams const& params;
  typename Operation::Params const& operation_params;
  char* buffers_c;
  char* buffers_d;
  /// One mbarrier for each C buffer.
  uint64_t* full_c;
  /// The named barrier of this warpgroup.
  int barrier;
  RingPosition<BuffersD> at_d{};
  RingPosition<max_of(BuffersC, 1)> at_c{};

  // Cheaper to compute anew than to keep in registers beside the accumulators.
  __device__ static bool is_leader() { return threadIdx.x % 128 == 0; }
  __device__ static int warp() { return threadIdx.x / 32 % 4; }
  __device__ static int lane() { return threadIdx.x % 32; }
  /// Where a thread's first or second column lies in a group of eight.
  __device__ static int column_of(int j) {
    if constexpr (Operation::kGated) return FragmentEpilogue<Operation, SubtileN>::column_of(j);
    return lane() % 4 * 2 + j;
  }

  /// Starts loading the first C subtiles of a tile, and what an expression reads; call it before the mainloop, which
  /// hides the latency.
  template <BatchMode Mode>
  __device__ void prefetch(int m, int n, int batch, int place_c) {
    if constexpr (Operation::kIsExpression)
      Operation(operation_params).touch(m, Blocks * kSubtileM, params.m, n, TileN, n_end(), batch, threadIdx.x % 128);
    if constexpr (kLoads) {
      RingPosition<BuffersC> at = at_c;
#pragma unroll
      for (int i = 0; i < min_of(BuffersC, kSubtiles); ++i, at.advance())
        load<Mode>(i, at.stage, m, n, batch, place_c);
    }
  }

  /// Writes the tile at (m, n) of D's matrix `batch`: m is the first row of this warpgroup's part. Matrices that are cut
  /// end at row `end`. An expression's operands have the index `group`, which is D's but where groups share D. A nested
  /// C's matrix is at `place_c`. `whole_tile`: kWholeTileBytes that this warpgroup alone uses, or null. No subtile then waits for
  /// another's copy.
  template <BatchMode Mode, class Accumulators>
  __device__ void store(Accumulators const& accumulators, int m, int n, int batch, int end, int group, int place_c,
                        char* whole_tile) {
    int const m_end = Mode == BatchMode::GroupedM ? end : params.m;
    auto operation = begin_tile(group, m_end);
    if constexpr (kCopiesWholeTile) wait_for_copies();
#pragma unroll
    for (int i = 0; i < kSubtiles; ++i) {
      if constexpr (Operation::kIsExpression) {
        if (i % kColumns == 0) operation.begin_rows(m + i / kColumns * kSubtileM);
        if (i == 0) operation.begin_columns(n);
      }
      if constexpr (BuffersD == 1 && !kBypassesShared)
        if (!whole_tile) wait_for_copies();
      char* const subtile_d = whole_tile ? whole_tile + i * kBytesD : buffers_d + (kCopiesWholeTile ? i : at_d.stage) * kBytesD;
      char const* subtile_c = nullptr;
      bool needs_c = false;
      if constexpr (kLoads) {
        subtile_c = buffers_c + at_c.stage * kBytesC;
        needs_c = kHasC && Operation(operation_params).needs_c();
        if (bytes_to_load() > 0) FullC::wait(&full_c[at_c.stage], at_c.phase);
      }
      auto const* const registers = accumulators.values[i / kColumns];
      int const first = first_column(i);
      Target target{subtile_d};
      if constexpr (kBypassesShared) target = {nullptr, matrix_d<Mode>(batch), m + i / kColumns * kSubtileM, m_end};
#pragma unroll
      for (int column = 0; column + 16 <= SubtileN; column += 16)
        convert<2>(operation, registers, first, column, n, subtile_c, needs_c, target);
      if constexpr (SubtileN % 16 != 0)
        convert<1>(operation, registers, first, SubtileN - 8, n, subtile_c, needs_c, target);
      if constexpr (Operation::kIsExpression) {
        if (i % kColumns == kColumns - 1) operation.end_rows();
        // Loads that the barrier hides.
        if (i + 1 < kSubtiles) operation.begin_columns(n + first_column(i + 1));
      }

      if constexpr (!kBypassesShared && !kCopiesWholeTile) {
        cute::tma_store_fence();
        if constexpr (BuffersD > 1) {
          if (!whole_tile && is_leader()) cute::tma_store_wait<BuffersD - 2>();
        }
        named_barrier::sync(barrier, 128);
        // A group of its own: the wait above counts one a subtile.
        copy<Mode>(i, subtile_d, m, n, batch, end, true);
      }
      if constexpr (!kCopiesWholeTile) at_d.advance();
      if constexpr (kLoads) {
        if (i + BuffersC < kSubtiles) load<Mode>(i + BuffersC, at_c.stage, m, n, batch, place_c);
        at_c.advance();
      }
    }
    if constexpr (kCopiesWholeTile) {
      cute::tma_store_fence();
      named_barrier::sync(barrier, 128);
#pragma unroll
      for (int i = 0; i < kSubtiles; ++i)
        copy<Mode>(i, buffers_d + i * kBytesD, m, n, batch, end, i == kSubtiles - 1);
    }
    if constexpr (Operation::kIsExpression) operation.end_tile();
  }

  /// Waits until the stores have read shared memory; a block must not exit before.
  __device__ void finish() {
    if (is_leader()) cute::tma_store_wait<0>();
  }

 private:
  /// Waits until what this warpgroup's copies to D read may be overwritten.
  __device__ void wait_for_copies() const {
    if (is_leader()) cute::tma_store_wait<0>();
    named_barrier::sync(barrier, 128);
  }

  /// Columns of D.
  __device__ int n_end() const { return Operation::kGated ? params.n / 2 : params.n; }

  /// Where subtile i begins: the last one where it still lies within the tile.
  __device__ static constexpr int first_column(int i) { return min_of(i % kColumns * SubtileN, TileN - SubtileN); }

  /// What applies the operation to the fragments of a tile.
  __device__ auto begin_tile(int group, int m_end) const {
    if constexpr (Operation::kIsExpression) {
      static_assert(TileN % SubtileN == 0 || Operation::kReductions == 0, "reductions count columns once");
      return FragmentEpilogue<Operation, SubtileN>(operation_params, m_end, n_end(), group);
    } else {
      return Operation(operation_params);
    }
  }

  /// First element of a matrix of D.
  template <BatchMode Mode>
  __device__ typename SubtileD::Element* matrix_d(int batch) const {
    using Element = typename SubtileD::Element;
    if constexpr (Mode == BatchMode::Array) {
      return reinterpret_cast<Element*>(ArrayMatrix(params, Operand::D, batch).address);
    } else {
      return reinterpret_cast<Element*>(params.d_pointer) + batch * params.d_batch_stride;
    }
  }

  /// Bytes that a buffer of C waits for.
  __device__ int bytes_to_load() const {
    bool const needs_c = kHasC && Operation(operation_params).needs_c();
    return (needs_c ? SubtileC::kDataBytes : 0) + Inputs::kDataBytes;
  }

  template <BatchMode Mode>
  __device__ void load(int i, int stage, int m, int n, int batch, int place_c) {
    if (is_leader() && bytes_to_load() > 0) {
      FullC::arrive_and_expect_tx(&full_c[stage], bytes_to_load());
      char* const subtile_c = buffers_c + stage * kBytesC;
      int const row = m + i / kColumns * kSubtileM;
      int const column = n + i % kColumns * SubtileN;
      constexpr int kAny = 0x7fffffff;
      if constexpr (kHasC && Mode == BatchMode::Array) {
        ArrayMatrix const c(params, Operand::C, batch);
        using Element = typename SubtileC::Element;
        int const last_m = SubtileC::kMajor == MajorOut::N ? params.m - 1 : last_chunk<Element>(params.m);
        int const last_n = SubtileC::kMajor == MajorOut::N ? last_chunk<Element>(params.n) : params.n - 1;
        SubtileC::load(params.c, full_c[stage], subtile_c, row, column, last_m, last_n, c.low(), c.high());
      } else if constexpr (kHasC) {
        if (Inputs::kBytes == 0 || Operation(operation_params).needs_c())
          SubtileC::load(params.c, full_c[stage], subtile_c, row, column, kAny, kAny,
                         Mode == BatchMode::Nested ? place_c : params.batched & 4 ? batch : 0);
      }
      if constexpr (Operation::Inputs::kCount > 0) {
        Inputs::each([&](auto subtile, int index, int offset) {
          using Input = decltype(subtile);
          Input::load(operation_params.matrices[index], full_c[stage], subtile_c + SubtileC::kBytes + offset, row,
                      column, kAny, kAny, params.batched & 8 << index ? batch : 0);
        });
      }
    }
  }

  /// Where a subtile goes: to a buffer, or straight to the rows of a matrix D from `m` on.
  struct Target {
    char* subtile;
    typename SubtileD::Element* d = nullptr;
    int m = 0, m_end = 0;
  };

  /// Starts to copy subtile i of a tile from its buffer to global memory; `last`: of a group of copies, which may have none.
  template <BatchMode Mode>
  __device__ void copy(int i, char const* subtile_d, int m, int n, int batch, int end, bool last) {
    int const first = first_column(i);
    int const row = m + i / kColumns * kSubtileM;
    bool const by_element =
        !kPartial && (bool(params.batched & kUnalignedD) | SubtileD::is_ragged(params.m, n_end(), row, n + first));
    if (by_element) {
      int const m_end = Mode == BatchMode::GroupedM ? end : params.m;
      SubtileD::store_elements(params, subtile_d, row, n + first, matrix_d<Mode>(batch), m_end, n_end());
    }
    if (is_leader()) {
      if (!by_element) {
        if constexpr (Mode == BatchMode::GroupedM) {
          SubtileD::store_rows(params.d, subtile_d, row, n + first, batch, end);
        } else if constexpr (Mode == BatchMode::Array) {
          ArrayMatrix const d(params, Operand::D, batch);
          SubtileD::store(params.d, subtile_d, row, n + first, d.low(), d.high());
        } else {
          SubtileD::store(params.d, subtile_d, row, n + first, batch);
        }
      }
      if constexpr (Operation::Outputs::kCount > 0) {
        Outputs::each([&](auto subtile, int index, int offset) {
          using Output = decltype(subtile);
          Output::store(operation_params.matrices[Operation::Inputs::kCount + index],
                        subtile_d + SubtileD::kBytes + offset, row, n + first, batch);
        });
      }
      if (last) cute::tma_store_arrive();
    }
  }

  template <int Units, class Tile, class Register>
  __device__ void convert(Tile& operation, Register const* registers, int first, int column, int n,
                          char const* subtile_c, bool needs_c, Target const& target) {
    using Compute = typename Operation::Compute;
    constexpr int kOutputs = Operation::Outputs::kCount;
    Compute values[4 * Units];
    Compute outputs[kOutputs + 1][4 * Units];
#pragma unroll
    for (int unit = 0; unit < Units; ++unit) {
      Compute c[4] = {};
      if constexpr (kHasC) {
        int const at = column + unit * 8;
        if (needs_c)
          SubtileC::template read<kNeighbours>(subtile_c, warp(), lane(), at + column_of(0), at + column_of(1), c);
      }
      int const at = first + column + unit * 8;
      if constexpr (Operation::kIsExpression) {
        auto const sum = [&](int i) {
          return accumulator_value<Compute>(registers, (Operation::kGated ? at : at / 2) + i);
        };
        typename Operation::Element elements[4];
        if constexpr (Operation::Inputs::kCount > 0) {
          Inputs::each([&](auto subtile, int index, int offset) {
            using Input = decltype(subtile);
            int const inside = column + unit * 8;
            Compute read[4];
            Input::template read<kNeighbours>(subtile_c + SubtileC::kBytes + offset, warp(), lane(),
                                              inside + column_of(0), inside + column_of(1), read);
#pragma unroll
            for (int j = 0; j < 4; ++j) Operation::input(elements[j], index) = read[j];
          });
        }
        auto const staged = [&](int index, int j) -> Compute& { return outputs[index][unit * 4 + j]; };
        operation.apply(sum, column + unit * 8, n + at, c, elements, values + unit * 4, staged);
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          Compute const accumulator = accumulator_value<Compute>(registers, at / 2 + j);
          values[unit * 4 + j] = needs_c ? operation(accumulator, c[j]) : operation(accumulator);
        }
      }
    }
    if constexpr (kBypassesShared) {
      SubtileD::template write_through<Units>(target.d, params.d_stride, warp(), lane(), target.m, n + first + column,
                                              target.m_end, n_end(), values);
    } else {
      SubtileD::template write<Units>(target.subtile, warp(), lane(), column, values);
    }
    if constexpr (kOutputs > 0) {
      Outputs::each([&](auto subtile, int index, int offset) {
        using Output = decltype(subtile);
        Output::template write<Units>(target.subtile + SubtileD::kBytes + offset, warp(), lane(), column, outputs[index]);
      });
    }
  }
};

}  // namespace gemmill
