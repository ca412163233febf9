/// The collective epilogue of one consumer warpgroup: it stores accumulators to D through a ring of subtiles in shared
/// memory.
#pragma once

#include <cutlass/arch/barrier.h>

#include <gemmill/epilogue/expression.cuh>
#include <gemmill/epilogue/linear.cuh>
#include <gemmill/epilogue/subtile.cuh>
#include <gemmill/pipeline/named_barrier.cuh>
#include <gemmill/pipeline/pipeline.cuh>
#include <gemmill/scheduler/array.cuh>

namespace gemmill {

/// Accumulator `index` of a fragment, in the type in which the epilogue computes. f16 accumulators lie in pairs in
/// uint32_t.
template <class Compute, class Register>
__device__ inline Compute accumulator_value(Register const* registers, int index) {
  return to_compute(Compute{}, registers[index]);
}
template <>
__device__ inline float accumulator_value<float, uint32_t>(uint32_t const* registers, int index) {
  return to_float(f16{uint16_t(registers[index / 2] >> (index % 2 * 16))});
}

/// Stages D subtile by subtile, and C if the kernel has one, so that TMA stores overlap the conversion of the next
/// subtile. A buffer of D also holds a subtile of each further matrix that an expression writes by TMA. A buffer of C
/// also holds a subtile of each matrix that it reads by TMA.
///
/// One thread of the warpgroup issues all TMA copies. Usually one barrier for each subtile is enough. It ensures that
/// D's subtile is written, that C's subtile has been read, and that the next D buffer is free. There are two
/// exceptions:
/// * With a single D buffer, a second barrier waits until the buffer is free.
/// * If the buffers hold a whole tile, one barrier before the first subtile waits for the earlier copies, and one after
///   the last subtile covers all of this tile.
///
/// `TileN` counts columns of D. If `SubtileN` does not divide it, the last subtile begins earlier, and writes the
/// columns that it shares with the previous one a second time (WgmmaPlan.subtile_n in
/// library/families/wgmma/wgmma_plan.py).
///
/// With `Symmetric`, D equals its transpose, and each subtile is also stored on the other side of the diagonal: a buffer
/// of D then holds it in both majors. It is square, so that D's descriptor has the box of both.
template <class Operation, class SubtileC, class SubtileD, int Blocks, int TileN, int SubtileN, int BuffersC, int BuffersD,
          bool Symmetric = false>
struct CollectiveEpilogue {
  /// Rows of D in a subtile: those of one WGMMA, or half of them if the epilogue pairs rows.
  static constexpr int kRows = kSubtileM / (Operation::kGateRows > 0 ? 2 : 1);
  /// A thread's elements of D of one fragment.
  static constexpr int kValues = kRows / 16;
  using Inputs = Subtiles<typename Operation::Inputs, SubtileN, kRows>;
  using Outputs = Subtiles<typename Operation::Outputs, SubtileN, kRows>;
  /// The subtile for the other side of the diagonal.
  using Mirror = Subtile<cute::conditional_t<Symmetric, typename SubtileD::Element, None>, MajorOut::M, SubtileN, kRows>;
  static_assert(!Symmetric || (SubtileD::kMajor == MajorOut::N && SubtileD::kBoxContiguous == Mirror::kBoxContiguous &&
                               SubtileD::kBoxStrided == Mirror::kBoxStrided && SubtileD::kSpan == Mirror::kSpan),
                "one descriptor has the boxes of both sides");
  /// Bytes of one buffer of C and of D.
  static constexpr int kBytesC = SubtileC::kBytes + Inputs::kBytes;
  static constexpr int kOffsetMirror = SubtileD::kBytes + Outputs::kBytes, kBytesD = kOffsetMirror + Mirror::kBytes;
  static constexpr bool kHasC = SubtileC::kBytes > 0;
  static constexpr bool kLoads = kBytesC > 0;
  static constexpr bool kPartial = Operation::kIsPartial;
  /// Whether the two columns that a thread holds are adjacent in D.
  static constexpr bool kNeighbours = Operation::kGateColumns != 1;
  /// Whether D is divided by scales of blocks of its columns.
  static constexpr bool kQuantises = Operation::kScaledColumns > 0;
  static constexpr int kColumns = ceil_div(TileN, SubtileN);
  static constexpr int kSubtiles = Blocks * kColumns;
  static_assert(BuffersD >= 1);
  static_assert(TileN % SubtileN == 0 || (TileN > SubtileN && !kLoads && Outputs::kBytes == 0),
                "columns may be written twice, but C is read in place");
  /// Whether a tile of eight columns goes from registers straight to global memory. Staging and TMA take longer than
  /// writing half-filled sectors.
  enum : bool { kBypassesShared = TileN == 8 && !kLoads && Outputs::kBytes == 0 && !kPartial };
  /// Whether the D buffers hold a whole tile. Its copies then start together, after one round of fences and barriers
  /// instead of one for each subtile. Expressions are excluded: they take longer while another warpgroup runs MMAs,
  /// and were slower this way.
  enum : bool { kCopiesWholeTile = BuffersD == kSubtiles && BuffersD > 1 && !kLoads && !kBypassesShared && !Operation::kIsExpression };
  /// Whether more memory (`whole_tile` of `store`) would help, because the buffers hold less than a tile; and the bytes
  /// it takes.
  enum : bool { kWholeTileHelps = BuffersD < kSubtiles && !kBypassesShared };
  static constexpr int kWholeTileBytes = kSubtiles * kBytesD;
  using FullC = cutlass::arch::ClusterTransactionBarrier;
  /// Whether TMA can add to a D that is also C, which then takes no way through the SM.
  template <BatchMode Mode>
  static constexpr bool kMayAdd = Mode == BatchMode::GroupedK && cute::is_same_v<Operation, LinearEpilogue> &&
                                  cute::is_same_v<SubtileC, SubtileD> && SubtileD::kMajor == MajorOut::N &&
                                  cute::is_same_v<typename SubtileD::Element, float>;

  GemmParams const& params;
  typename Operation::Params const& operation_params;
  char* buffers_c;
  char* buffers_d;
  /// One mbarrier for each buffer of C.
  uint64_t* full_c;
  /// The named barrier of this warpgroup.
  int barrier;
  /// Whether TMA adds to D.
  bool adds = false;
  /// Whether the tile is stored on the other side of the diagonal too: it is not one on the diagonal.
  bool mirrors = false;
  RingPosition<BuffersD> at_d{};
  RingPosition<max_of(BuffersC, 1)> at_c{};

  // Recomputed at each use, because the accumulators leave few registers.
  __device__ static bool is_leader() { return threadIdx.x % 128 == 0; }
  __device__ static int warp() { return threadIdx.x / 32 % 4; }
  __device__ static int lane() { return threadIdx.x % 32; }
  /// Offset of a thread's first or second column within a group of eight.
  __device__ static int column_of(int j) {
    if constexpr (Operation::kGated) return FragmentEpilogue<Operation, SubtileN>::column_of(j);
    return lane() % 4 * 2 + j;
  }

  /// Finds out whether TMA adds to D: whether D is also C, so that their descriptors are equal, and beta is 1. TMA can
  /// then store all of D. (Its additions make subnormal sums 0.)
  template <BatchMode Mode>
  __device__ void begin() {
    if constexpr (kMayAdd<Mode>) {
      adds = operation_params.beta == 1 && !(params.batched & kUnalignedD) && params.n % 4 == 0;
      auto const* const c = reinterpret_cast<uint64_t const*>(&params.c);
      auto const* const d = reinterpret_cast<uint64_t const*>(&params.d);
#pragma unroll
      for (int i = 0; i < int(sizeof(cute::TmaDescriptor) / sizeof(uint64_t)); ++i) adds &= c[i] == d[i];
    }
  }

  /// Starts loading the first subtiles of C and what an expression reads. Call it before the mainloop, which hides the
  /// latency.
  template <BatchMode Mode>
  __device__ void prefetch(int m, int n, int batch, int place_c) {
    if constexpr (Operation::kIsExpression)
      Operation(operation_params).touch(m, Blocks * kRows, rows_d(), n, TileN, columns_d(), batch, threadIdx.x % 128);
    if constexpr (kLoads) {
      RingPosition<BuffersC> at = at_c;
#pragma unroll
      for (int i = 0; i < min_of(BuffersC, kSubtiles); ++i, at.advance())
        load<Mode>(i, at.stage, m, n, batch, place_c);
    }
  }

  /// Writes one tile to matrix `batch` of D. (m, n) is the origin of this warpgroup's part. In grouped modes along M or
  /// N, rows or columns from `end` on are not written. `group` is the batch index of an expression's operands; it differs from
  /// `batch` where groups share one D, and in nested batches. `place_c` is the place of C's matrix in a nested batch.
  /// `whole_tile` is null, or points to kWholeTileBytes that no other warpgroup uses; then no subtile waits for the
  /// copy of another.
  template <BatchMode Mode, class Accumulators>
  __device__ void store(Accumulators const& accumulators, int m, int n, int batch, int end, int group, int place_c,
                        char* whole_tile) {
    int const m_end = Mode == BatchMode::GroupedM ? end : rows_d();
    int const n_end = Mode == BatchMode::GroupedN ? end : columns_d();
    auto operation = begin_tile(group, m_end, n_end);
    if constexpr (kCopiesWholeTile) wait_for_copies();
#pragma unroll
    for (int i = 0; i < kSubtiles; ++i) {
      if constexpr (Operation::kIsExpression) {
        if (i % kColumns == 0) operation.begin_rows(m + i / kColumns * kRows);
        if (i == 0) operation.begin_columns(n);
      }
      if constexpr (BuffersD == 1 && !kBypassesShared)
        if (!whole_tile) wait_for_copies();
      char* const subtile_d = whole_tile ? whole_tile + i * kBytesD : buffers_d + (kCopiesWholeTile ? i : at_d.stage) * kBytesD;
      char const* subtile_c = nullptr;
      bool needs_c = false;
      if constexpr (kLoads) {
        subtile_c = buffers_c + at_c.stage * kBytesC;
        needs_c = reads_c();
        if (bytes_to_load() > 0) FullC::wait(&full_c[at_c.stage], at_c.phase);
      }
      auto const* const registers = accumulators.values[i / kColumns];
      int const first = first_column(i);
      Target target{subtile_d};
      if constexpr (kBypassesShared) target = {nullptr, matrix_d<Mode>(batch), m + i / kColumns * kRows, m_end, n_end};
      fill(operation, registers, first, n, subtile_c, needs_c, target);
      if constexpr (Operation::kIsExpression) {
        if (i % kColumns == kColumns - 1) operation.end_rows();
        // The barrier hides the latency of these loads.
        if (i + 1 < kSubtiles) operation.begin_columns(n + first_column(i + 1));
      }

      if constexpr (!kBypassesShared && !kCopiesWholeTile) {
        cute::tma_store_fence();
        if constexpr (BuffersD > 1) {
          if (!whole_tile && is_leader()) cute::tma_store_wait<BuffersD - 2>();
        }
        named_barrier::sync(barrier, 128);
        // One bulk group for each subtile, because the wait above counts groups.
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

  /// Waits until all stores have read shared memory. A CTA must not exit before.
  __device__ void finish() {
    if (is_leader()) cute::tma_store_wait<0>();
  }

 private:
  /// Waits until this warpgroup's copies to D have read their buffers, which may then be overwritten.
  __device__ void wait_for_copies() const {
    if (is_leader()) cute::tma_store_wait<0>();
    named_barrier::sync(barrier, 128);
  }

  /// Whether C is loaded and read.
  __device__ bool reads_c() const { return kHasC && !adds && Operation(operation_params).needs_c(); }

  /// The extents of D.
  __device__ int rows_d() const { return Operation::kGateRows > 0 ? params.m / 2 : params.m; }
  __device__ int columns_d() const { return Operation::kGated ? params.n / 2 : params.n; }

  /// The first column of subtile i. The last subtile begins early enough to end with the tile.
  __device__ static constexpr int first_column(int i) { return min_of(i % kColumns * SubtileN, TileN - SubtileN); }

  /// The object that applies the operation to the fragments of a tile.
  __device__ auto begin_tile(int group, int m_end, int n_end) const {
    if constexpr (Operation::kIsExpression) {
      static_assert(TileN % SubtileN == 0 || Operation::kReductions == 0, "reductions count columns once");
      return FragmentEpilogue<Operation, SubtileN>(operation_params, m_end, n_end, group);
    } else {
      return Operation(operation_params);
    }
  }

  /// The first element of a matrix of D.
  template <BatchMode Mode>
  __device__ typename SubtileD::Element* matrix_d(int batch) const {
    using Element = typename SubtileD::Element;
    if constexpr (Mode == BatchMode::Array) {
      return reinterpret_cast<Element*>(ArrayMatrix(params, Operand::D, batch).address);
    } else {
      return reinterpret_cast<Element*>(params.d_pointer) + batch * params.d_batch_stride;
    }
  }

  /// The number of bytes that one buffer of C waits for.
  __device__ int bytes_to_load() const {
    return (reads_c() ? SubtileC::kDataBytes : 0) + Inputs::kDataBytes;
  }

  template <BatchMode Mode>
  __device__ void load(int i, int stage, int m, int n, int batch, int place_c) {
    if (is_leader() && bytes_to_load() > 0) {
      FullC::arrive_and_expect_tx(&full_c[stage], bytes_to_load());
      char* const subtile_c = buffers_c + stage * kBytesC;
      int const row = m + i / kColumns * kRows;
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

  /// Where a subtile goes: to a buffer, or, if `subtile` is null, straight to the rows of a matrix of D from `m` on.
  struct Target {
    char* subtile;
    typename SubtileD::Element* d = nullptr;
    int m = 0, m_end = 0, n_end = 0;
  };

  /// Starts to copy subtile i from its buffer to global memory. `last` closes the bulk group, which may be empty.
  template <BatchMode Mode>
  __device__ void copy(int i, char const* subtile_d, int m, int n, int batch, int end, bool last) {
    int const first = first_column(i);
    int const row = m + i / kColumns * kRows;
    bool const by_element =
        !kPartial && (bool(params.batched & kUnalignedD) | SubtileD::is_ragged(rows_d(), columns_d(), row, n + first));
    if (by_element) {
      int const m_end = Mode == BatchMode::GroupedM ? end : rows_d();
      int const n_end = Mode == BatchMode::GroupedN ? end : columns_d();
      SubtileD::store_elements(params, subtile_d, row, n + first, matrix_d<Mode>(batch), m_end, n_end);
    }
    if constexpr (Symmetric) {
      if (mirrors) copy_mirror<Mode>(subtile_d + kOffsetMirror, row, n + first, batch);
    }
    if (is_leader()) {
      if (!by_element) {
        if constexpr (Mode == BatchMode::GroupedM) {
          SubtileD::store_rows(params.d, subtile_d, row, n + first, batch, end);
        } else if constexpr (Mode == BatchMode::GroupedN) {
          SubtileD::store_columns(params.d, subtile_d, row, n + first, batch, end);
        } else if constexpr (Mode == BatchMode::Array) {
          ArrayMatrix const d(params, Operand::D, batch);
          SubtileD::store(params.d, subtile_d, row, n + first, d.low(), d.high());
        } else if (kMayAdd<Mode> && adds) {
          if constexpr (kMayAdd<Mode>) SubtileD::add(params.d, subtile_d, row, n + first, batch);
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

  /// Starts to copy the mirror of a subtile, whose first sum is that of row m and column n.
  template <BatchMode Mode>
  __device__ void copy_mirror(char const* mirror, int m, int n, int batch) {
    if (bool(params.batched & kUnalignedD) | Mirror::is_ragged(params.m, params.n, m, n)) {
      Mirror::store_elements(params, mirror, m, n, matrix_d<Mode>(batch), params.m, params.n);
    } else if (is_leader()) {
      Mirror::store(params.d, mirror, m, n, batch);
    }
  }

  /// Fills a subtile of D, and of the other matrices that TMA stores.
  template <class Tile, class Register>
  __device__ void fill(Tile& operation, Register const* registers, int first, int n, char const* subtile_c,
                       bool needs_c, Target const& target) {
    if constexpr (kQuantises) {
      quantise(operation, registers, first, n, target.subtile);
    } else {
#pragma unroll
      for (int column = 0; column + 16 <= SubtileN; column += 16)
        convert<2>(operation, registers, first, column, n, subtile_c, needs_c, target);
      if constexpr (SubtileN % 16 != 0)
        convert<1>(operation, registers, first, SubtileN - 8, n, subtile_c, needs_c, target);
    }
  }

  /// Fills a subtile of a D that is divided by scales of blocks of its columns. The values before the division stay in
  /// registers, because the scales depend on all of them.
  template <class Tile, class Register>
  __device__ void quantise(Tile& operation, Register const* registers, int first, int n, char* subtile) {
    static_assert(SubtileN == Operation::kScaledColumns && !kLoads && Outputs::kBytes == 0 && !kBypassesShared);
    using Compute = typename Operation::Compute;
    Compute values[SubtileN / 16][8];
#pragma unroll
    for (int unit = 0; unit < SubtileN / 8; ++unit) {
      int const at = first + unit * 8;
      auto const sum = [&](int i) { return sum_of<Compute>(registers, at, i); };
      Compute const c[4] = {};
      typename Operation::Element elements[4];
      auto const staged = [&](int, int) -> Compute& { return values[0][0]; };  // there are none
      operation.apply(sum, unit * 8, n + at, c, elements, values[unit / 2] + unit % 2 * 4, staged);
    }
    operation.quantise(values, n + first);
#pragma unroll
    for (int i = 0; i < SubtileN / 16; ++i) SubtileD::template write<2>(subtile, warp(), lane(), i * 16, values[i]);
  }

  /// Sum `i` that an expression reads of the fragment at column `at` of D; with a gate, of two fragments.
  template <class Compute, class Register>
  __device__ static Compute sum_of(Register const* registers, int at, int i) {
    return accumulator_value<Compute>(registers, (Operation::kGated ? at : at / 2) + i);
  }

  template <int Units, class Tile, class Register>
  __device__ void convert(Tile& operation, Register const* registers, int first, int column, int n,
                          char const* subtile_c, bool needs_c, Target const& target) {
    using Compute = typename Operation::Compute;
    constexpr int kOutputs = Operation::Outputs::kCount;
    Compute values[kValues * Units];
    Compute outputs[kOutputs + 1][kValues * Units];
#pragma unroll
    for (int unit = 0; unit < Units; ++unit) {
      Compute c[kValues] = {};
      if constexpr (kHasC) {
        int const at = column + unit * 8;
        if (needs_c)
          SubtileC::template read<kNeighbours>(subtile_c, warp(), lane(), at + column_of(0), at + column_of(1), c);
      }
      int const at = first + column + unit * 8;
      if constexpr (Operation::kIsExpression) {
        auto const sum = [&](int i) { return sum_of<Compute>(registers, at, i); };
        typename Operation::Element elements[kValues];
        if constexpr (Operation::Inputs::kCount > 0) {
          Inputs::each([&](auto subtile, int index, int offset) {
            using Input = decltype(subtile);
            int const inside = column + unit * 8;
            Compute read[kValues];
            Input::template read<kNeighbours>(subtile_c + SubtileC::kBytes + offset, warp(), lane(),
                                              inside + column_of(0), inside + column_of(1), read);
#pragma unroll
            for (int j = 0; j < kValues; ++j) Operation::input(elements[j], index) = read[j];
          });
        }
        auto const staged = [&](int index, int j) -> Compute& { return outputs[index][unit * kValues + j]; };
        operation.apply(sum, column + unit * 8, n + at, c, elements, values + unit * kValues, staged);
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
                                              target.m_end, target.n_end, values);
    } else {
      SubtileD::template write<Units>(target.subtile, warp(), lane(), column, values);
    }
    if constexpr (Symmetric) {
      if (mirrors) Mirror::template write<Units>(target.subtile + kOffsetMirror, warp(), lane(), column, values);
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
