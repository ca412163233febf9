#include "tensor_map.h"

#include <algorithm>

#include "error.h"
#include "tensors.h"

namespace gemmill {
namespace {

constexpr int64_t kMaxStride = int64_t{1} << 40;
constexpr int kTwoLines = 256;

int swizzle_of(int span) { return span == 128 ? 3 : span == 64 ? 2 : span == 32 ? 1 : 0; }

void check_address(uint64_t address, const std::string& name) {
  if (address % kTmaAlign == 0 && address != 0) return;
  throw Error(GEMMILL_OPERAND, name + ": its first element is at " + hex_address(address) +
                                   ", but TMA needs a multiple of 16 bytes: start the view at an aligned element");
}

}  // namespace

TensorMap described(const Box& box, uint64_t address, const Described& operand, const std::string& name) {
  const int64_t bits = box.dtype->bits;
  const int64_t bytes = std::max<int64_t>(bits / 8, 1);  // to TMA, packed elements are bytes
  const int64_t contiguous = std::max<int64_t>((operand.contiguous * bits + 8 * bytes - 1) / (8 * bytes), 1);
  const int64_t strided = std::max<int64_t>(operand.strided, 1);
  const int64_t batch = std::max<int64_t>(operand.batch, 1);
  const int64_t row = (contiguous * bytes + kTmaAlign - 1) / kTmaAlign * kTmaAlign;
  const int64_t row_stride = operand.strided > 1 ? operand.stride * bits / 8 : row;
  const int64_t matrix_stride = operand.batch > 1 ? operand.batch_stride * bits / 8 : row;
  check_address(address, name);
  for (const int64_t stride : {row_stride, matrix_stride}) {
    if (stride <= 0 || stride % kTmaAlign != 0 || stride >= kMaxStride) {
      throw Error(GEMMILL_OPERAND, name + ": neighbours are " + std::to_string(stride) +
                                       " bytes apart; TMA needs a positive multiple of 16 below 2^40: pad the "
                                       "contiguous extent to a multiple of " +
                                       std::to_string(8 * kTmaAlign / bits) + " elements");
    }
  }
  const auto extent = static_cast<uint64_t>(contiguous);
  const auto count = static_cast<uint64_t>(strided);
  const auto matrices = static_cast<uint64_t>(batch);
  const auto step = static_cast<uint64_t>(row_stride);
  const auto matrix_step = static_cast<uint64_t>(matrix_stride);
  if (box.window == 0) {
    return {&box, box.rows_of(strided), address, 3, {extent, count, matrices}, {step, matrix_step}};
  }
  const auto window = static_cast<uint64_t>(box.window);
  if (window * step >= address) {
    throw Error(GEMMILL_OPERAND, name + ": " + std::to_string(window) + " rows of " + std::to_string(step) +
                                     " bytes start below address 0, counted back from " + hex_address(address));
  }
  return {&box,
          box.rows_of(strided),
          address - window * step,
          4,
          {extent, window, count + 1, matrices},
          {step, step, matrix_step}};
}

void TensorMap::encode(void* destination, const Device& device, int fetched) const {
  const uint32_t boxes[] = {box->columns, static_cast<uint32_t>(rows), 1, 1};
  const uint32_t ones[] = {1, 1, 1, 1};
  const Status status = in_context(device, [&] {
    return driver().tensor_map_encode(destination, box->dtype->tma, rank, reinterpret_cast<void*>(address), extents,
                                      strides, boxes, ones, 0, swizzle_of(box->swizzle), fetched == kTwoLines ? 3 : 2,
                                      0);
  });
  check(status, "encoding the TMA descriptor of " + box->operand);
}

void replace_address(void* descriptor, uint64_t address, const Device& device) {
  const Status status =
      in_context(device, [&] { return driver().tensor_map_replace(descriptor, reinterpret_cast<void*>(address)); });
  if (status != 0) check(status, "replacing the address of a TMA descriptor by " + hex_address(address));
}

}  // namespace gemmill
