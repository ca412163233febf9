#include "scales.h"

#include "error.h"

namespace gemmill {
namespace {

/// Elements of e2m1 along K that share a scale.
constexpr int64_t kGroup = 32;

[[noreturn]] void refuse(const std::string& message) { throw Error(GEMMILL_OPERAND, message); }

/// The stride of a tensor, of which the last two extents are left out, along a batch; 0 where the batch shares it.
int64_t batch_stride_of(const Tensor& tensor, int64_t batch) {
  const size_t rank = tensor.shape.size();
  if (rank < 3 || tensor.shape[0] == 1) return 0;
  if (tensor.shape[0] != batch) {
    refuse(tensor.name + " has shape " + text_of(tensor.shape) + ", whose first extent must be 1 or that of the batch");
  }
  return tensor.strides[0];
}

}  // namespace

BlockScale block_scale(const Tensor& tensor, int64_t rows, int64_t columns, int64_t batch, size_t k_axis) {
  const size_t rank = tensor.shape.size();
  if (tensor.dtype != dtype_named("f32")) {
    refuse(tensor.name + " is " + tensor.dtype->name + "; block scales must be f32: convert it");
  }
  if (rank < 2 || tensor.shape[rank - 2] != rows || tensor.shape[rank - 1] != columns) {
    refuse(tensor.name + " has shape " + text_of(tensor.shape) + "; its last extents must be " +
           text_of({rows, columns}) +
           ", one scale for each block: for scales of rows, columns or whole operands use alpha or an epilogue");
  }
  return {tensor.place, tensor.address, tensor.given_strides[rank - 1 - k_axis],
          tensor.given_strides[rank - 2 + k_axis], batch_stride_of(tensor, batch)};
}

bool stack_scales(BlockScale& a, const BlockScale& b, int64_t m) {
  const int64_t step = m == 1 ? a.batch_stride : a.stride;
  if (b.batch_stride != 0 || a.batch_stride == 0 || a.batch_stride != static_cast<Wide>(m) * step) return false;
  a.stride = step;
  a.batch_stride = 0;
  return true;
}

Operand group_scale(const Tensor* tensor, const Matrices& narrow, int64_t rows, int64_t k, int64_t batch) {
  const bool is_a = narrow.tensor->place == kA;
  const std::string& name = narrow.tensor->name;
  if (tensor == nullptr) {
    refuse(name + " is e2m1, and " + name + "_scale is NULL: pass a ue8m0 scale for each 32 elements along K");
  }
  if (k % kGroup != 0) {
    refuse(name + " has K = " + std::to_string(k) + "; for e2m1 it must be a multiple of 32: pad K with zeros");
  }
  const size_t rank = tensor->shape.size();
  const std::vector<int64_t> last =
      is_a ? std::vector<int64_t>{rows, k / kGroup} : std::vector<int64_t>{k / kGroup, rows};
  const bool fits = rank >= 2 && tensor->shape[rank - 2] == last[0] && tensor->shape[rank - 1] == last[1];
  if (!fits || tensor->dtype != dtype_named("ue8m0")) {
    refuse(tensor->name + " is " + tensor->dtype->name + " " + text_of(tensor->shape) +
           "; it must be ue8m0, and its last extents must be " + text_of(last));
  }
  const int64_t along_rows = tensor->strides[is_a ? rank - 2 : rank - 1];
  const int64_t along_k = tensor->given_strides[is_a ? rank - 1 : rank - 2];
  const int64_t batch_stride = batch_stride_of(*tensor, batch);
  if (batch != 1 && (batch_stride != 0) != (narrow.batch_stride != 0)) {
    refuse(tensor->name + " has shape " + text_of(tensor->shape) + " and " + name + " has shape " +
           text_of(narrow.tensor->shape) + "; both must be shared by the batch, or neither");
  }
  if (rows > 1 && along_rows != 1) {
    refuse(tensor->name + " has strides " + text_of(tensor->strides) + "; it must be contiguous along " +
           (is_a ? "M" : "N") + ": store " + (is_a ? "the transpose of (K / 32, M)" : "(K / 32, N) in rows"));
  }
  return {tensor->place, tensor->address, tensor->dtype, tensor->dtype, "m", along_k, batch_stride, 16, 0, 0};
}

}  // namespace gemmill
