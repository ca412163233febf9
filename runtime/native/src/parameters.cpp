#include "parameters.h"

#include <cstring>
#include <new>

#include "error.h"
#include "tensor_map.h"

namespace gemmill {
namespace {

constexpr int kUnalignedD = 31;
/// Most rows of D (for B) or columns of D (for A) for which memory bandwidth is the bound.
constexpr int64_t kFewRows = 64;

constexpr int64_t kSector = 32;
constexpr auto kAlignment = std::align_val_t{kDescriptorAlignment};

/// Writes the parameters that a kernel has; others are left out.
class Scalars {
 public:
  Scalars(const LaunchSpec& spec, ParameterBlock& block) : spec_(spec), block_(block) {}

  template <typename Value>
  void put(const std::string& name, Value value) {
    if (const auto found = spec_.offsets.find(name); found != spec_.offsets.end()) block_.write(found->second, value);
  }

 private:
  const LaunchSpec& spec_;
  ParameterBlock& block_;
};

const Operand* operand_of(const Gemm& gemm, const std::string& name) {
  if (name == "a") return &gemm.a;
  if (name == "b") return &gemm.b;
  if (name == "c" && gemm.c) return &*gemm.c;
  if (name == "scale" && gemm.scale) return &*gemm.scale;
  return name == "d" ? &gemm.d : nullptr;
}

int64_t extent_of(const Gemm& gemm, char name) { return name == 'm' ? gemm.m : name == 'n' ? gemm.n : gemm.k; }

/// The bytes that L2 fetches at a time for an operand whose rows are `stride` bytes apart.
int fetched_bytes(const Box& box, const Gemm& gemm, uint64_t stride) {
  const bool is_a = box.operand == "a";
  const bool meets_groups = gemm.batching == (is_a ? "ngrouped" : box.operand == "b" ? "grouped" : "");
  const int64_t met = (is_a ? gemm.n : gemm.m) / (meets_groups ? gemm.batch : 1);
  return box.contiguous == 'k' && met > kFewRows && stride % kSector == 0 ? 2 * kLineBytes : kLineBytes;
}

}  // namespace

void ParameterBlock::Free::operator()(std::byte* memory) const { ::operator delete[](memory, kAlignment); }

// The driver reads as many bytes as the machine code declares, whatever the launch facts say: the block has them all.
ParameterBlock::ParameterBlock(int64_t bytes)
    : memory_(static_cast<std::byte*>(::operator new[](kMaxParameterBytes, kAlignment))), bytes_(bytes) {
  std::memset(memory_.get(), 0, kMaxParameterBytes);
}

void* ParameterBlock::at(int64_t offset, size_t bytes) {
  if (offset < 0 || offset > bytes_ - static_cast<int64_t>(bytes)) {
    throw Error(GEMMILL_PACK, "offset " + std::to_string(offset) + " is outside the " + std::to_string(bytes_) +
                                  " bytes of the parameters: create the pack again with `gemmill pack make`");
  }
  return memory_.get() + offset;
}

void write_scalars(const Gemm& gemm, const LaunchSpec& spec, ParameterBlock& block) {
  Scalars scalars(spec, block);
  scalars.put("m", static_cast<int32_t>(gemm.m));
  scalars.put("n", static_cast<int32_t>(gemm.n));
  scalars.put("k", static_cast<int32_t>(gemm.k));
  scalars.put("batch", static_cast<int32_t>(gemm.batch));
  const uint32_t batched = uint32_t{gemm.a.batch_stride != 0} | uint32_t{gemm.b.batch_stride != 0} << 1 |
                           uint32_t{gemm.c && gemm.c->batch_stride != 0} << 2 |
                           uint32_t{gemm.d.align < kTmaAlign} << kUnalignedD;
  scalars.put("batched", batched);
  const bool is_s32 = gemm.d.dtype == dtype_named("s32");
  const bool is_f64 = gemm.accumulator == dtype_named("f64");
  for (const auto& [name, value] : {std::pair<std::string, double>("alpha", gemm.alpha), {"beta", gemm.beta}}) {
    if (is_s32) {
      scalars.put(name, static_cast<int32_t>(value));
    } else if (is_f64) {
      scalars.put(name, value);
    } else {
      scalars.put(name, static_cast<float>(value));
    }
    scalars.put(name + "64", value);
  }
  for (const std::string name : {"a", "b", "c", "d"}) {
    const Operand* operand = operand_of(gemm, name);
    if (operand == nullptr) continue;
    scalars.put(name + "_pointer", operand->address);
    scalars.put(name + "_row_stride", operand->row_stride);
    scalars.put(name + "_column_stride", operand->column_stride);
    scalars.put(name + "_batch_stride", operand->batch_stride);
    if (name == "c" || name == "d") scalars.put(name + "_stride", operand->stride);
  }
  if (gemm.groups) {
    scalars.put("groups_pointer", gemm.groups->address);
    scalars.put("groups_stride", static_cast<int32_t>(gemm.groups->stride));
  }
  for (const auto& [name, scale] : {std::make_pair(std::string("a_scale"), gemm.a_scale), {"b_scale", gemm.b_scale}}) {
    if (!scale) continue;
    scalars.put(name + "_pointer", scale->address);
    scalars.put(name + "_stride", scale->stride);
    scalars.put(name + "_k_stride", scale->k_stride);
    scalars.put(name + "_batch_stride", scale->batch_stride);
  }
}

void write_arguments(const Gemm& gemm, const LaunchSpec& spec, ParameterBlock& block) {
  for (const BoundArgument& argument : gemm.arguments) {
    const int64_t at = argument_offset(spec, argument.name);
    block.write(at, argument.address);
    const int64_t next = at + static_cast<int64_t>(sizeof argument.address);
    if (!argument.is_scalar) {
      block.write(next, argument.batch_stride);
    } else if (gemm.d.dtype == dtype_named("s32")) {
      block.write(next, static_cast<int32_t>(argument.value));
    } else if (gemm.accumulator == dtype_named("f64")) {
      block.write(next, argument.value);
    } else {
      block.write(next, static_cast<float>(argument.value));
    }
  }
}

int64_t argument_offset(const LaunchSpec& spec, const std::string& name) {
  const auto found = spec.offsets.find("epilogue." + name);
  if (found != spec.offsets.end()) return found->second;
  throw Error(GEMMILL_PACK, spec.entry + " has no parameter for " + name +
                                " of its epilogue: create the pack again with `gemmill pack make`");
}

std::vector<Following> encode_descriptors(const Gemm& gemm, const Kernel& kernel, ParameterBlock& block) {
  std::vector<Following> following;
  for (const Box& box : kernel.spec().boxes) {
    if (box.operand == "partials") continue;  // it has no address before the launch
    const Operand* operand = operand_of(gemm, box.operand);
    if (operand == nullptr || !box.is_supported) {
      throw Error(GEMMILL_UNSUPPORTED, kernel.artifact->name + " has a TMA descriptor of " + box.operand +
                                           " that libgemmill does not encode: use gemmill from Python");
    }
    // Without a K tile, the kernel does not read A and B, and they may have no address.
    const bool is_unread = gemm.k == 0 && box.operand != "c" && box.operand != "d";
    const int64_t strided = (extent_of(gemm, box.strided) + box.group - 1) / box.group;
    if (box.rows_of(strided) == 0 || (box.operand == "d" && gemm.d.align < kTmaAlign)) continue;
    const uint64_t address = is_unread ? gemm.d.address & ~uint64_t{kTmaAlign - 1} : operand->address;
    const Described extents{extent_of(gemm, box.contiguous), strided, operand->batch_stride != 0 ? gemm.batch : 1,
                            operand->stride, operand->batch_stride};
    const TensorMap map = described(box, address, extents, name_of(operand->place));
    void* at = block.at(box.offset, kDescriptorBytes);
    map.encode(at, *kernel.device, fetched_bytes(box, gemm, map.strides[0]));
    if (!is_unread) following.push_back({operand->place, at, static_cast<int64_t>(map.address - address)});
  }
  return following;
}

}  // namespace gemmill
