/// The epilogue without shared memory: it writes D from registers, element by element or in small vectors, with any
/// strides.
#pragma once

#include <gemmill/convert.cuh>

namespace gemmill {

/// C or D of one matrix of a batch. Strides are in elements; the stride of a contiguous extent is not read.
///
/// `Align`: address and strides are multiples of so many bytes.
template <class Element_, MajorOut Major, int Align>
struct OutputMatrix {
  using Element = Element_;
  /// Adjacent elements along N that one access can move.
  static constexpr int kVector = Major == MajorOut::N ? max_of(1, Align / max_of(1, size_of<Element>)) : 1;

  Element* pointer;
  int64_t row_stride, column_stride;
  /// Offset of the part's first element from `pointer`.
  int64_t offset = 0;

  __device__ Element* at(int m, int n) const { return pointer + (offset + offset_of(m, n)); }
  /// The part of the matrix from (m, n) on.
  __device__ OutputMatrix from(int m, int n) const {
    return {pointer, row_stride, column_stride, opaque(offset + offset_of(m, n))};
  }

 private:
  __device__ int64_t offset_of(int m, int n) const {
    if constexpr (Major == MajorOut::N) return m * row_stride + n;
    if constexpr (Major == MajorOut::M) return m + n * column_stride;
    return m * row_stride + n * column_stride;
  }
};

/// Computes and stores runs of elements along N. It neither reads nor writes elements outside D.
///
/// Operation: see epilogue/linear.cuh. If C is absent, MatrixC is an OutputMatrix of None.
template <class Operation, class MatrixC, class MatrixD>
struct DirectEpilogue {
  using Compute = typename Operation::Compute;
  static constexpr bool kHasC = size_of<typename MatrixC::Element> > 0;

  Operation operation;
  MatrixC c;
  MatrixD d;
  /// Extents of D from the part's origin on, and the index of its matrix in the batch.
  int m_extent, n_extent, batch;
  /// Origin of the part within its matrix.
  int first_m = 0, first_n = 0;

  /// The epilogue of the part of D from (m, n) on. Elements at constant places within a part share one computed
  /// address.
  __device__ DirectEpilogue from(int m, int n) const {
    return {operation, c.from(m, n), d.from(m, n), m_extent - m, n_extent - n, batch, first_m + m, first_n + n};
  }

  /// Computes and stores element (m, n + i) of D from `sums[i]`. n must be a multiple of the largest power of two that
  /// divides Count.
  template <int Count, class Accumulator>
  __device__ void store(Accumulator const (&sums)[Count], int m, int n) const {
    if (m >= m_extent) return;
    constexpr int kVector = min_of(Count & -Count, MatrixD::kVector);
#pragma unroll
    for (int first = 0; first < Count; first += kVector) {
      store_vector<kVector>(sums + first, m, n + first);
    }
  }

 private:
  template <int Count, class Accumulator>
  __device__ void store_vector(Accumulator const* sums, int m, int n) const {
    using Element = typename MatrixD::Element;
    int const valid = n_extent - n;
    bool const needs_c = kHasC && operation.needs_c();
    Pack<Element, Count> values;
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      Compute added = 0;
      if constexpr (kHasC) {
        if (i < valid && needs_c) added = load_as<Compute>(*c.at(m, n + i));
      }
      Compute const sum = static_cast<Compute>(sums[i]);
      if constexpr (!Operation::kIsExpression)
        values.elements[i] = store_as<Element>(needs_c ? operation(sum, added) : operation(sum));
      else if (i < valid)  // it accesses other operands at this element, which must therefore lie inside D
        values.elements[i] = store_as<Element>(operation(sum, added, first_m + m, first_n + n + i, batch));
    }
    if (Count <= valid) {
      *reinterpret_cast<Pack<Element, Count>*>(d.at(m, n)) = values;
    } else {
#pragma unroll
      for (int i = 0; i < Count; ++i) {
        if (i < valid) *d.at(m, n + i) = values.elements[i];
      }
    }
  }
};

}  // namespace gemmill
