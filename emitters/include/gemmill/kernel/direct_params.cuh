/// Launch parameters of kernels that read and write through plain addresses, without TMA.
#pragma once

#include <cuda/std/cstddef>
#include <cuda/std/cstdint>

#include <gemmill/fact.cuh>

namespace gemmill {

/// A batch of matrices. Strides are in elements; they may be 0 or negative. A is M x K, B is K x N, C and D are M x N.
struct StridedMatrix {
  char* pointer;
  int64_t row_stride, column_stride, batch_stride;

  template <class Element>
  __device__ Element* at_batch(int batch) const {
    return reinterpret_cast<Element*>(pointer) + batch * batch_stride;
  }
};

/// The kernel's only parameter, unless its epilogue is an expression (ExpressionParams).
struct DirectParams {
  StridedMatrix a, b, c, d;
  double alpha, beta;
  int m, n, k, batch;
};

/// Values that the host computes too. The compiler rejects a kernel if the two differ (emitters/direct_kernels.py).
struct DirectSpec {
  Fact facts[18];
};

template <class Kernel, class Params = DirectParams>
constexpr DirectSpec direct_spec() {
  return {fact("threads", Kernel::kThreads),
          fact("shared_bytes", Kernel::kSharedBytes),
          fact("tile_m", Kernel::kTileM),
          fact("tile_n", Kernel::kTileN),
          fact("params_bytes", sizeof(Params)),
          fact("offset_a", offsetof(DirectParams, a)),
          fact("offset_b", offsetof(DirectParams, b)),
          fact("offset_c", offsetof(DirectParams, c)),
          fact("offset_d", offsetof(DirectParams, d)),
          fact("offset_row_stride", offsetof(StridedMatrix, row_stride)),
          fact("offset_column_stride", offsetof(StridedMatrix, column_stride)),
          fact("offset_batch_stride", offsetof(StridedMatrix, batch_stride)),
          fact("offset_alpha64", offsetof(DirectParams, alpha)),
          fact("offset_beta64", offsetof(DirectParams, beta)),
          fact("offset_m", offsetof(DirectParams, m)),
          fact("offset_n", offsetof(DirectParams, n)),
          fact("offset_k", offsetof(DirectParams, k)),
          fact("offset_batch", offsetof(DirectParams, batch))};
}

}  // namespace gemmill
