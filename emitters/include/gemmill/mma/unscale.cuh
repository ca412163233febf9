/// Sums of split f32 whose components have less range: takes back the powers of two by which rows of A and columns of B
/// were scaled (emitters/splitting.py).
#pragma once

#include <gemmill/kernel/params.cuh>

namespace gemmill {

/// The powers of the rows of A, or columns of B, of one matrix, which follow from the bits of their largest magnitudes.
struct RowPowers {
  uint32_t const* magnitudes;
  int extent;

  __device__ RowPowers(ScaleParams const& scale, int batch, int extent_)
      : magnitudes(static_cast<uint32_t const*>(scale.pointer) + batch * scale.batch_stride), extent(extent_) {}

  /// The square root of the power that takes back that of a row; 1 outside the matrix. Powers are even, and a sum is
  /// multiplied twice by the product of two roots, so that only sums that are out of range overflow or underflow. It is
  /// also 1 for a row with an infinity or NaN, in which other sums mean nothing but must not overflow.
  __device__ float root(int row) const {
    int const exponent = row < extent ? max(int(magnitudes[row] >> 23), 1) : 255;
    return __int_as_float((exponent == 255 ? 127 : 254 - (395 - exponent) / 2) << 23);
  }
};

/// Unscales the sums of a warpgroup: `Blocks` stacked 64 x N fragments from row m and column n on.
template <int Blocks, int Registers>
__device__ void unscale(float (&values)[Blocks][Registers], GemmParams const& params, int m, int n, int batch) {
  RowPowers const rows(params.a_scale, batch, params.m), columns(params.b_scale, batch, params.n);
  int const row = m + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
  int const column = n + threadIdx.x % 4 * 2;
  float of_rows[2 * Blocks];
#pragma unroll
  for (int i = 0; i < 2 * Blocks; ++i) of_rows[i] = rows.root(row + i / 2 * 64 + i % 2 * 8);
#pragma unroll
  for (int j = 0; j < Registers / 2; ++j) {
    float const of_column = columns.root(column + j / 2 * 8 + j % 2);
#pragma unroll
    for (int i = 0; i < 2 * Blocks; ++i) {
      float const root = of_rows[i] * of_column;
      float& value = values[i / 2][j / 2 * 4 + i % 2 * 2 + j % 2];
      value = value * root * root;
    }
  }
}

}  // namespace gemmill
