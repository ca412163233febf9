#include "tensors.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <sstream>
#include <tuple>

#include "error.h"

namespace gemmill {
namespace {

constexpr int kCudaManaged = 13;
/// More bytes than any tensor spans.
constexpr uint64_t kFarthest = uint64_t{1} << 62;
/// Larger strides reach beyond every address.
constexpr int64_t kMaxStride = int64_t{1} << 48;

[[noreturn]] void refuse(const std::string& message) { throw Error(GEMMILL_OPERAND, message); }

void check_kind(const DLTensor& tensor, const std::string& name) {
  const int kind = tensor.device.device_type;
  if (kind != kDLCUDA && kind != kCudaManaged) {
    const std::string where = kind == kDLCPU ? "in host memory" : "on DLPack device " + std::to_string(kind);
    refuse(name + " is " + where + "; it must be in GPU memory");
  }
  if (tensor.ndim > 0 && tensor.shape == nullptr) refuse(name + " has no shape, which is NULL: set its extents");
  if (tensor.ndim < 0 || tensor.ndim > kMaxRank) {
    refuse(name + " has " + std::to_string(tensor.ndim) +
           " extents; libgemmill supports matrices (2) and batches of "
           "matrices with one stride (3): merge the extents of the batch");
  }
}

/// The contiguous bytes of a tensor, and the steps between such runs.
struct Runs {
  Wide begin;  // address of a run
  Wide bytes;
  uint64_t step;  // the greatest common divisor of the steps; 0 where there is one run
};

Runs runs_of(const Tensor& tensor, uint64_t address) {
  const uint64_t element = tensor.element_bytes();
  std::vector<std::tuple<uint64_t, uint64_t, bool>> axes;
  for (size_t i = 0; i < tensor.shape.size(); ++i) {
    const auto [step, extent] = tensor.byte_extent(i);
    if (extent > 1) axes.emplace_back(std::llabs(step), extent, step < 0);
  }
  std::sort(axes.begin(), axes.end());
  Runs runs{address, element, 0};
  for (const auto& [step, extent, descends] : axes) {
    if (runs.step == 0 && step <= runs.bytes) {
      const Wide more = static_cast<Wide>(extent - 1) * step;
      runs.bytes += more;
      if (descends) runs.begin -= more;
    } else {
      runs.step = std::gcd(runs.step, step);
    }
  }
  return runs;
}

}  // namespace

const char* name_of(size_t place) {
  constexpr const char* kNames[] = {"a", "b", "c", "d", "a_scale", "b_scale", "offsets", "counts"};
  return place < kPlaces ? kNames[place] : "an argument of the epilogue";
}

bool Tensor::is_empty() const { return std::find(shape.begin(), shape.end(), 0) != shape.end(); }

uint64_t Tensor::element_bytes() const { return static_cast<uint64_t>(std::max(dtype->bits / 8, 1)); }

std::pair<int64_t, int64_t> Tensor::byte_extent(size_t i) const {
  const bool is_packed = dtype->bits < 8 && strides[i] == 1;
  return {is_packed ? 1 : strides[i] * dtype->bits / 8, is_packed ? (shape[i] * dtype->bits + 7) / 8 : shape[i]};
}

std::pair<uint64_t, uint64_t> Tensor::reach() const {
  uint64_t before = 0;
  uint64_t behind = element_bytes();
  for (size_t i = 0; i < shape.size(); ++i) {
    const auto [step, extent] = byte_extent(i);
    const Wide last = static_cast<Wide>(std::max<int64_t>(extent - 1, 0)) * std::llabs(step);
    const uint64_t bytes = last > kFarthest ? kFarthest : static_cast<uint64_t>(last);
    uint64_t& side = step < 0 ? before : behind;
    side = std::min(side + bytes, kFarthest);
  }
  return {before, behind};
}

Tensor read_tensor(const DLTensor& tensor, size_t place, const std::string& name) {
  check_kind(tensor, name);
  const Dtype* dtype = dtype_of_dlpack(tensor.dtype.code, tensor.dtype.bits);
  if (dtype == nullptr || tensor.dtype.lanes != 1) {
    refuse(name + " has the DLPack dtype with code " + std::to_string(tensor.dtype.code) + ", " +
           std::to_string(tensor.dtype.bits) + " bits and " + std::to_string(tensor.dtype.lanes) +
           " lanes; libgemmill supports bf16, f16, f32, f64, e4m3, e5m2, s8, u8 and s32, "
           "e2m1 for a or b, and ue8m0 for its scales: convert it first");
  }
  const uint64_t address = reinterpret_cast<uint64_t>(tensor.data) + tensor.byte_offset;
  Tensor view{place, name, address, {}, {}, {}, dtype, tensor.device.device_id};
  view.shape.assign(tensor.shape, tensor.shape + tensor.ndim);
  view.strides.assign(static_cast<size_t>(tensor.ndim), 0);
  view.given_strides = view.strides;
  int64_t contiguous = 1;
  for (size_t i = view.shape.size(); i-- > 0;) {
    const int64_t extent = view.shape[i];
    if (extent < 0 || extent > kMaxExtent) {
      refuse(name + " has an extent of " + std::to_string(extent) + "; extents must be from 0 to " +
             std::to_string(kMaxExtent) + ": split the problem");
    }
    const int64_t stride = tensor.strides != nullptr ? tensor.strides[i] : contiguous;
    contiguous = contiguous >= kMaxStride / std::max<int64_t>(extent, 1) ? kMaxStride
                                                                         : contiguous * std::max<int64_t>(extent, 1);
    view.given_strides[i] = stride;
    if (extent <= 1) continue;
    if (stride <= -kMaxStride || stride >= kMaxStride) {
      refuse(name + " has a stride of " + std::to_string(stride) + " elements; memory has fewer than 2^48 bytes");
    }
    if (dtype->bits < 8 && stride != 1 && stride % 2 != 0) {
      throw Error(GEMMILL_UNSUPPORTED, name + " has a stride of " + std::to_string(stride) +
                                           " elements of 4 bits; it must be 1 or even, so that rows start at whole "
                                           "bytes: pad them");
    }
    view.strides[i] = stride;
  }
  return view;
}

std::string text_of(const std::vector<int64_t>& shape) {
  std::ostringstream text;
  text << "(";
  for (size_t i = 0; i < shape.size(); ++i) text << (i == 0 ? "" : ", ") << shape[i];
  text << (shape.size() == 1 ? ",)" : ")");
  return text.str();
}

Tensor broadcast(const Tensor& tensor, const std::vector<int64_t>& shape) {
  Tensor result = tensor;
  const size_t own = tensor.shape.size();
  bool fits = own <= shape.size();
  result.strides.assign(shape.size(), 0);
  for (size_t i = 0; fits && i < own; ++i) {
    const size_t at = shape.size() - own + i;
    fits = tensor.shape[i] == 1 || tensor.shape[i] == shape[at];
    result.strides[at] = tensor.shape[i] == shape[at] ? tensor.strides[i] : 0;
  }
  if (!fits) {
    refuse(tensor.name + " has shape " + text_of(tensor.shape) + ", which does not broadcast to " + text_of(shape));
  }
  result.shape = shape;
  return result;
}

bool shares_memory(const Tensor& one, uint64_t address, const Tensor& other, uint64_t other_address) {
  const auto [before, behind] = one.reach();
  const auto [other_before, other_behind] = other.reach();
  const Wide start = address;
  const Wide other_start = other_address;
  if (start + behind <= other_start - other_before || other_start + other_behind <= start - before) return false;
  // Both lie in runs at multiples of a step: columns of one matrix, for example.
  const Runs mine = runs_of(one, address);
  const Runs others = runs_of(other, other_address);
  const Wide step = std::gcd(mine.step, others.step);
  if (step == 0) return true;
  const Wide distance = ((others.begin - mine.begin) % step + step) % step;
  return distance < mine.bytes || step - distance < others.bytes;
}

std::string hex_address(uint64_t address) {
  std::ostringstream text;
  text << "0x" << std::hex << address;
  return text.str();
}

}  // namespace gemmill
