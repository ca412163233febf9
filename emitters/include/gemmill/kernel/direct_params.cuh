/// What the host hands to a kernel that reads and writes through plain addresses, without TMA.
#pragma once

#include <cuda/std/cstddef>
#include <cuda/std/cstdint>

namespace gemmill {

/// A batch of matrices; strides in elements, 0 or negative where the caller's are. A is M x K, B K x N, C and D M x N.
struct StridedMatrix {
  char* pointer;
  int64_t row_stride, column_stride, batch_stride;

  template <class Element>
  __device__ Element* at_batch(int batch) const {
    return reinterpret_cast<Element*>(pointer) + batch * batch_stride;
  }
};

/// The kernel's only parameter.
struct DirectParams {
  StridedMatrix a, b, c, d;
  double alpha, beta;
  int m, n, k, batch;
};

/// Facts that the host computes as well; the compiler refuses a kernel where the two disagree (emitters/families/direct.py).
struct DirectSpec {
  uint32_t threads, shared_bytes, tile_m, tile_n, params_bytes;
  uint32_t offset_a, offset_b, offset_c, offset_d, offset_row_stride, offset_column_stride, offset_batch_stride;
  uint32_t offset_alpha, offset_beta, offset_m, offset_n, offset_k, offset_batch;
};

template <class Kernel, class Params = DirectParams>
constexpr DirectSpec direct_spec() {
  return {Kernel::kThreads,
          Kernel::kSharedBytes,
          Kernel::kTileM,
          Kernel::kTileN,
          sizeof(Params),
          offsetof(DirectParams, a),
          offsetof(DirectParams, b),
          offsetof(DirectParams, c),
          offsetof(DirectParams, d),
          offsetof(StridedMatrix, row_stride),
          offsetof(StridedMatrix, column_stride),
          offsetof(StridedMatrix, batch_stride),
          offsetof(DirectParams, alpha),
          offsetof(DirectParams, beta),
          offsetof(DirectParams, m),
          offsetof(DirectParams, n),
          offsetof(DirectParams, k),
          offsetof(DirectParams, batch)};
}

}  // namespace gemmill
