/// Epilogues that are emitted from expressions (emitters/epilogue/text.py): how kernels call them, and how a warpgroup
/// applies them to its fragments.
///
/// An emitted epilogue loads operands that depend on nothing (`uniform`), on the row (`row`), on the column (`column`,
/// `columns`) or on the element (`element`, `elements`). From these it computes D's element and the other outputs
/// (`compute`), and stores the latter (`store`). With kScaledColumns, `compute` returns the value that is scaled instead;
/// `store_scale` stores the scale of a row of so many columns, and `quantised` divides by it. Matrices with a major pass
/// through shared memory; `input` and `output` give access to their elements. `kTotals`, `kRowTotals` and
/// `kColumnTotals` count its reductions; `reductions` has them in this order.
#pragma once

#include <gemmill/epilogue/linear.cuh>
#include <gemmill/epilogue/operands.cuh>

namespace gemmill {

/// Computes one element of D from its place, and stores the other outputs.
template <class Epilogue, class Compute>
__device__ Compute evaluate(Epilogue const& epilogue, Compute accumulator, Compute c, int m, int n, int batch) {
  typename Epilogue::Extras extras;
  Compute const d = epilogue.compute(accumulator, accumulator, c, epilogue.uniform(batch), epilogue.row(m, batch),
                                     epilogue.column(n, batch), epilogue.element(m, n, batch), extras);
  epilogue.store(extras, m, n, batch);
  if constexpr (Epilogue::kReductions > 0) {
#pragma unroll
    for (int i = 0; i < Epilogue::kReductions; ++i) {
      int const index = i < Epilogue::kTotals ? 0 : i < Epilogue::kTotals + Epilogue::kRowTotals ? m : n;
      reduce_into(Epilogue::reduce(i), epilogue.params.reductions[i].at(index, batch), float(extras.reduced[i]));
    }
  }
  return d;
}

/// The parameters of a kernel without TMA whose epilogue is an expression, and the epilogue that reads them.
template <class Epilogue>
struct ExpressionParams : DirectParams {
  typename Epilogue::Params epilogue;
};
template <class Epilogue>
struct DirectExpression : Epilogue {
  __device__ explicit DirectExpression(DirectParams const& params)
      : Epilogue(static_cast<ExpressionParams<Epilogue> const&>(params).epilogue) {}
};

/// The epilogue of one warpgroup on one tile: 64-row blocks of WGMMA fragments, subtile by subtile.
///
/// Of each 16 x 8 fragment, a thread holds two adjacent columns of rows r and r + 8. If these are `gate` and `up`
/// (kGateColumns is 1), a thread has one column of D from each of two fragments, and they are four columns apart. The
/// four threads of a row then exchange their results, so that each has two adjacent columns and D is written as usual.
/// If `gate8` and `up8` are whole fragments (kGateColumns is 8), a thread has two adjacent columns of D at once. If they
/// are rows (kGateRows is 8), rows r and r + 8 give one row of D, and a block has 32 rows of D.
template <class Operation, int SubtileN>
struct FragmentEpilogue {
  using Compute = typename Operation::Compute;
  using Column = typename Operation::Column;
  /// Columns of D whose operands the lanes of a warp hold in one element of `columns`: those of eight fragments.
  static constexpr int kHeld = 64;
  /// Rows of D in a block, and of these in a thread, eight apart; and a thread's elements of D of one fragment.
  static constexpr int kBlockRows = Operation::kGateRows > 0 ? 32 : 64, kHalves = kBlockRows / 32, kValues = 2 * kHalves;
  static constexpr int kReductions = Operation::kReductions;
  static constexpr int kFirstRow = Operation::kTotals;
  static constexpr int kFirstColumn = kFirstRow + Operation::kRowTotals;

  Operation const operation;
  typename Operation::Uniform const uniform;
  typename Operation::Row rows[kHalves];
  /// The operands of the subtile's columns, loaded once and distributed over the warp. Lane 4 p + q holds the columns
  /// that thread q of any row needs of fragments p, p + 8, ...
  Column columns[ceil_div(SubtileN, kHeld)][2];
  /// D's extents. `m` is this thread's first row.
  int const m_end, n_end;
  int batch;
  int m = 0;
  float totals[Operation::kTotals + 1];
  /// For each of this thread's rows: its share of all reductions except those over columns.
  float row_totals[kFirstColumn + 1][kHalves];

  __device__ FragmentEpilogue(typename Operation::Params const& params, int m_end_, int n_end_, int batch_)
      : operation(params), uniform(operation.uniform(batch_)), m_end(m_end_), n_end(n_end_), batch(batch_) {
    // All loads below depend on this value, so the compiler cannot move them above the wait for the previous kernel.
    asm volatile("" : "+r"(batch));
#pragma unroll
    for (int i = 0; i < Operation::kTotals; ++i) totals[i] = identity_of(Operation::reduce(i));
  }

  /// Starts the block of rows from `block` on.
  __device__ void begin_rows(int block) {
    m = block + threadIdx.x / 32 % 4 * (kBlockRows / 4) + threadIdx.x % 32 / 4;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      rows[half] = operation.row(min(m + half * 8, m_end - 1), batch);
#pragma unroll
      for (int i = 0; i < kFirstColumn; ++i) row_totals[i][half] = identity_of(Operation::reduce(i));
    }
  }

  /// Starts loading the operands of the columns of the subtile at column n.
  __device__ void begin_columns(int n) {
    // Loads them again for each block of rows: kept, they would take too many registers.
    asm("" : "+r"(n) : "r"(m));
#pragma unroll
    for (int i = 0; i < ceil_div(SubtileN, kHeld); ++i) {
      int const at = n + i * kHeld + threadIdx.x % 32 / 4 * 8;
      operation.columns(at + column_of(0), at + column_of(1), n_end, batch, columns[i][0], columns[i][1]);
    }
  }

  /// Computes the elements of D of one fragment: two columns of rows m and, with two halves, m + 8. The fragment's eight
  /// columns begin at column `offset` of the subtile and at column n of D; `column_of` selects the two. `sum(i)` is the
  /// fragment's i-th sum; where columns are paired, the sums of two fragments. `elements` hold the inputs from shared memory. `staged(i,
  /// j)` refers to element j of output i, which goes there.
  template <class Sums, class Staged>
  __device__ void apply(Sums const& sum, int offset, int n, Compute const (&c)[kValues],
                        typename Operation::Element (&elements)[kValues], Compute* values, Staged const& staged) {
    constexpr int kGateColumns = Operation::kGateColumns;
    int const left = n_end - n;
    // Recomputes addresses for each fragment: kept, they would take too many registers.
    if constexpr (Operation::kAddresses || Operation::kColumnTotals > 0) asm volatile("" : "+r"(n));
    int const n0 = n + column_of(0), n1 = n + column_of(1);
    Column const held_columns[2] = {held(offset, 0), held(offset, 1)};
    float column_totals[Operation::kColumnTotals + 1][2];
#pragma unroll
    for (int i = 0; i < Operation::kColumnTotals; ++i)
      column_totals[i][0] = column_totals[i][1] = identity_of(Operation::reduce(kFirstColumn + i));
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      int const row = m + half * 8;
      typename Operation::Extras extras[2];
      operation.elements(min(row, m_end - 1), n0, n1, n_end, batch, elements[half * 2], elements[half * 2 + 1]);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        int const first = kGateColumns == 1 ? j * 4 + half * 2 : half * 2 + j;
        int const second = first + (kGateColumns == 8 ? 4 : Operation::kGateRows == 8 ? 2 : kGateColumns);
        values[half * 2 + j] = operation.compute(Compute(sum(first)), Compute(sum(second)), c[half * 2 + j], uniform,
                                                 rows[half], held_columns[j], elements[half * 2 + j], extras[j]);
        if constexpr (kReductions > 0) {
          // Elements outside D are left out: columns here; rows here in reductions over columns, in all others in
          // `end_rows`.
#pragma unroll
          for (int i = 0; i < kReductions; ++i) {
            bool const of_column = i >= kFirstColumn;
            float& into = of_column ? column_totals[i - kFirstColumn][j] : row_totals[i][half];
            if (of_column ? row < m_end : column_of(j) < left)
              into = combine(Operation::reduce(i), into, float(extras[j].reduced[i]));
          }
        }
      }
      if (row < m_end) operation.store_two(extras[0], extras[1], row, n0, n1, n_end, batch);
      if constexpr (Operation::Outputs::kCount > 0) {
#pragma unroll
        for (int i = 0; i < Operation::Outputs::kCount; ++i) {
#pragma unroll
          for (int j = 0; j < 2; ++j) staged(i, half * 2 + j) = Operation::output(extras[j], i);
          if constexpr (kGateColumns == 1) exchange(staged(i, half * 2), staged(i, half * 2 + 1));
        }
      }
      if constexpr (kGateColumns == 1) exchange(values[half * 2], values[half * 2 + 1]);
    }
#pragma unroll
    for (int i = 0; i < Operation::kColumnTotals; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        Reduce const reduce = Operation::reduce(kFirstColumn + i);
        float const total = combine_lanes<4, 32>(reduce, column_totals[i][j]);
        int const column = j == 0 ? n0 : n1;
        if (threadIdx.x % 32 < 4 && column < n_end)
          output(kFirstColumn + i, column, total);
      }
    }
  }

  /// Computes and stores the scales of this thread's two rows in the block of columns from n on, and replaces its values
  /// in the block by elements of D. `values` has two fragments at a time.
  template <int Count>
  __device__ void quantise(Compute (&values)[Count][8], int n) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = 0;
#pragma unroll
      for (int i = 0; i < Count * 4; ++i)
        largest = math::max(largest, fabsf(values[i / 4][i % 4 / 2 * 4 + half * 2 + i % 2]));
      auto const scale = scale_of(typename Operation::Scale{}, combine_lanes<1, 4>(Reduce::Max, largest));
      int const row = m + half * 8;
      if (threadIdx.x % 4 == 0 && row < m_end && n < n_end) operation.store_scale(scale, row, n, batch);
#pragma unroll
      for (int i = 0; i < Count * 4; ++i) {
        Compute& value = values[i / 4][i % 4 / 2 * 4 + half * 2 + i % 2];
        value = operation.quantised(value, to_float(scale), uniform);
      }
    }
  }

  /// Ends the rows that `begin_rows` started, and combines their reductions.
  __device__ void end_rows() {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      int const row = m + half * 8;
#pragma unroll
      for (int i = 0; i < kFirstColumn; ++i) {
        Reduce const reduce = Operation::reduce(i);
        if (i < kFirstRow) {
          if (row < m_end) totals[i] = combine(reduce, totals[i], row_totals[i][half]);
        } else {
          float const total = combine_lanes<1, 4>(reduce, row_totals[i][half]);
          if (threadIdx.x % 4 == 0 && row < m_end) output(i, row, total);
        }
      }
    }
  }

  __device__ void end_tile() {
#pragma unroll
    for (int i = 0; i < Operation::kTotals; ++i) {
      float const total = combine_lanes<1, 32>(Operation::reduce(i), totals[i]);
      if (threadIdx.x % 32 == 0) output(i, 0, total);
    }
  }

  /// Offset of a thread's first or second column of D within a group of eight.
  __device__ static int column_of(int j) {
    int const quad = threadIdx.x % 4;
    return Operation::kGateColumns == 1 ? quad + j * 4 : quad * 2 + j;
  }

 private:
  __device__ void output(int i, int index, float total) const {
    if constexpr (kReductions > 0)
      reduce_into(Operation::reduce(i), operation.params.reductions[i].at(index, batch), total);
  }

  /// The operands of this thread's first or second column (`j`) of the fragment at column `offset` of the subtile.
  __device__ Column held(int offset, int j) const {
    static_assert(sizeof(Compute) == 4, "words are exchanged");
    Column const& mine = columns[offset / kHeld][j];
    Column result;
    auto const* const from = reinterpret_cast<uint32_t const*>(&mine);
    auto* const to = reinterpret_cast<uint32_t*>(&result);
#pragma unroll
    for (int i = 0; i < int(sizeof(Column) / 4); ++i)
      // Exchanges among lanes that are equal modulo 4 (PTX ISA, "shfl.sync": bits 8 to 12 are the segment mask).
      asm volatile("shfl.sync.idx.b32 %0, %1, %2, 0x31f, 0xffffffff;"
                   : "=r"(to[i]) : "r"(from[i]), "r"(offset % kHeld / 8 * 4));
    return result;
  }

  /// Redistributes columns among the four threads of a row: from q and q + 4 in thread q to 2 q and 2 q + 1. In each of
  /// two rounds, every thread sends one value and receives one.
  __device__ static void exchange(Compute& low, Compute& high) {
    int const quad = threadIdx.x % 4;
    bool const odd = quad % 2;
    // First round: even threads send the low column, odd threads the high one. Columns 0, 2 go to threads 0, 1; columns
    // 5, 7 to 2, 3.
    int const base = threadIdx.x % 32 - quad;
    Compute const first = __shfl_sync(~0u, odd ? high : low, base + (quad < 2 ? quad * 2 : quad * 2 - 3));
    // Second round: columns 1, 3 go to threads 0, 1; columns 4, 6 to 2, 3.
    Compute const second = __shfl_sync(~0u, odd ? low : high, base + (quad < 2 ? quad * 2 + 1 : quad * 2 - 4));
    low = quad < 2 ? first : second;
    high = quad < 2 ? second : first;
  }

  /// Combines the values of lanes whose numbers differ only in the bits from `From` to below `To`.
  template <int From, int To>
  __device__ static float combine_lanes(Reduce reduce, float value) {
#pragma unroll
    for (int mask = From; mask < To; mask *= 2) value = combine(reduce, value, __shfl_xor_sync(~0u, value, mask));
    return value;
  }
};

}  // namespace gemmill
