#include "matrices.h"

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "error.h"
#include "tensor_map.h"

namespace gemmill {
namespace {

constexpr int64_t kTmaMaxStride = int64_t{1} << 40;

[[noreturn]] void refuse(const std::string& message) { throw Error(GEMMILL_OPERAND, message); }

/// One way to see an operand: with a contiguous extent, or none.
Operand described(const Matrices& x, const std::string& major, int64_t stride, int64_t other_stride) {
  const int64_t bits = x.tensor->dtype->bits;
  // Powers of two divide a negative number as they divide its two's complement.
  const uint64_t steps = static_cast<uint64_t>(stride * bits / 8) | static_cast<uint64_t>(other_stride * bits / 8) |
                         static_cast<uint64_t>(x.batch_stride * bits / 8);
  const uint64_t aligned = x.tensor->address | uint64_t{kTmaAlign} | steps;
  return {x.tensor->place,
          x.tensor->address,
          x.tensor->dtype,
          x.tensor->dtype,
          major,
          major == "any" ? 0 : stride,
          x.batch_stride,
          static_cast<int64_t>(aligned & (~aligned + 1)),
          x.rows > 1 ? x.row_stride : 0,
          x.columns > 1 ? x.column_stride : 0};
}

}  // namespace

Operand Operand::transposed() const {
  Operand result = *this;
  if (major == "n" || major == "m") result.major = major == "n" ? "m" : "n";
  std::swap(result.row_stride, result.column_stride);
  return result;
}

Matrices matrices(const Tensor& tensor, int64_t rows, int64_t columns) {
  const auto& strides = tensor.strides;
  const size_t rank = strides.size();
  return {&tensor, rows, columns, strides[rank - 2], strides[rank - 1], rank > 2 ? strides[0] : 0};
}

bool stacks(const Matrices& x) {
  if (x.rows > 1) return x.batch_stride != 0 && x.batch_stride == static_cast<Wide>(x.rows) * x.row_stride;
  return x.batch_stride == 1 || (x.batch_stride != 0 && (x.columns == 1 || x.column_stride == 1));
}

Matrices stacked(Matrices x, int64_t rows) {
  x.row_stride = x.rows == 1 ? x.batch_stride : x.row_stride;
  x.rows = rows;
  x.batch_stride = 0;
  return x;
}

Operand operand(const Matrices& x, int64_t batch, const char* of_columns, const char* of_rows,
                const std::string& first) {
  const int64_t bits = x.tensor->dtype->bits;
  if (x.rows == 0 || x.columns == 0 || batch == 0) {  // a kernel reads nothing here
    return {
        x.tensor->place, x.tensor->address, x.tensor->dtype, x.tensor->dtype, first, 128 / bits, 0, kTmaAlign, 0, 0};
  }
  const auto fits_tma = [&](int64_t stride) { return stride * bits < 8 * kTmaMaxStride; };
  const bool movable = x.batch_stride >= 0 && fits_tma(x.batch_stride);
  std::optional<Operand> best;
  const auto consider = [&](const char* major, int64_t inner, int64_t inner_stride, int64_t outer, int64_t stride) {
    const bool is_regular = outer == 1 || (stride > 0 && fits_tma(stride));
    if (!(inner == 1 || inner_stride == 1) || !is_regular || !movable) return;
    const Operand layout = described(x, major, outer > 1 ? stride : 0, 0);
    const bool is_better = !best || std::make_pair(layout.align, layout.major == first) >
                                        std::make_pair(best->align, best->major == first);
    if (is_better) best = layout;
  };
  consider(of_columns, x.columns, x.column_stride, x.rows, x.row_stride);
  consider(of_rows, x.rows, x.row_stride, x.columns, x.column_stride);
  if (best) return *best;
  return described(x, "any", x.rows > 1 ? x.row_stride : 0, x.columns > 1 ? x.column_stride : 0);
}

void refuse_overlap(const Matrices& x, int64_t batch) {
  if (x.rows == 0 || x.columns == 0 || batch == 0) return;
  std::vector<std::pair<int64_t, int64_t>> axes{{std::llabs(x.row_stride), x.rows},
                                                {std::llabs(x.column_stride), x.columns},
                                                {std::llabs(x.batch_stride), batch}};
  std::sort(axes.begin(), axes.end());
  Wide reach = 0;
  for (const auto& [stride, extent] : axes) {
    if (extent <= 1) continue;
    if (stride <= reach) {
      refuse(x.tensor->name + " has strides " + text_of(x.tensor->strides) + " for shape " + text_of(x.tensor->shape) +
             ", so its elements overlap: pass memory with a place for each element");
    }
    reach += static_cast<Wide>(extent - 1) * stride;
  }
}

}  // namespace gemmill
