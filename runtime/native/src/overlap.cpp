#include "error.h"
#include "gemm.h"

namespace gemmill {
namespace {

/// No GPU memory has a lower address.
constexpr uint64_t kLeastAddress = uint64_t{1} << 32;

[[noreturn]] void refuse(const std::string& message) { throw Error(GEMMILL_OPERAND, message); }

}  // namespace

void check_memory(const Call& call, const Addresses& addresses) {
  const Tensor& d = call.get(kD);
  if (d.is_empty()) return;
  const std::vector<const Tensor*> all = call.all();
  for (const Tensor* tensor : all) {
    if (tensor->is_empty() || addresses[tensor->place] >= kLeastAddress) continue;
    refuse(tensor->name + " has no memory: its address is " + hex_address(addresses[tensor->place]) +
           ": pass a tensor whose elements are in GPU memory");
  }
  for (const Tensor* tensor : all) {
    if (tensor == &d || tensor->is_empty()) continue;
    const uint64_t other = addresses[tensor->place];
    const bool may_be_d =
        tensor->place == kC && tensor->shape == d.shape && tensor->strides == d.strides && tensor->dtype == d.dtype;
    if (may_be_d && other == addresses[kD]) continue;
    if (shares_memory(d, addresses[kD], *tensor, other)) {
      refuse("d and " + tensor->name + " overlap in memory (at " + hex_address(addresses[kD]) + " and " +
             hex_address(other) + "), and d is written while " + tensor->name + " is read: pass other memory for d");
    }
  }
}

}  // namespace gemmill
