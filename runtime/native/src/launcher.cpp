#include "launcher.h"

#include <algorithm>

#include "decomposition.h"
#include "error.h"

namespace gemmill {
namespace {

constexpr uint64_t kLentAlign = 256;
constexpr uint64_t kUnknown = ~uint64_t{0};

template <typename Use>
void for_each_operand(const Gemm& gemm, Use&& use) {
  use("a", gemm.a);
  use("b", gemm.b);
  if (gemm.c) use("c", *gemm.c);
  use("d", gemm.d);
}

}  // namespace

Launcher::Launcher(const Call& call, const Gemm& gemm, const Kernel& kernel, int64_t slices)
    : call_(call),
      gemm_(gemm),
      kernel_(kernel),
      slices_(slices),
      ctas_(grid_ctas(kernel.spec(), gemm, slices, kernel.max_clusters)),
      block_(kernel.spec().params_bytes),
      prepared_(*kernel.device, kernel.spec().entry, kernel.function, ctas_, kernel.spec().threads,
                kernel.spec().shared_bytes, block_.address()),
      addresses_(call.addresses()) {
  const LaunchSpec& spec = kernel.spec();
  descriptors_ = encode_descriptors(gemm, kernel, block_);
  write_scalars(gemm, spec, block_);
  for_each_operand(gemm, [&](const std::string& name, const Operand& operand) {
    const auto found = spec.offsets.find(name + "_pointer");
    if (found != spec.offsets.end()) {
      pointers_.push_back({operand.place, block_.at(found->second, sizeof(uint64_t)), 0});
    }
  });
  follow_others();
  if (spec.k_decomposition) {
    const auto found = spec.offsets.find("splits");
    const int64_t splits = spec.k_decomposition->has_slices() ? slices : 1;
    if (found != spec.offsets.end()) block_.write(found->second, static_cast<int32_t>(splits));
  }
  if (spec.has_workspace()) prepare_workspace();
}

void Launcher::follow_others() {
  const LaunchSpec& spec = kernel_.spec();
  const auto follow = [&](const std::string& name, size_t place) {
    const auto found = spec.offsets.find(name);
    if (found != spec.offsets.end()) pointers_.push_back({place, block_.at(found->second, sizeof(uint64_t)), 0});
  };
  if (gemm_.groups) follow("groups_pointer", gemm_.groups->place);
  if (gemm_.a_scale) follow("a_scale_pointer", gemm_.a_scale->place);
  if (gemm_.b_scale) follow("b_scale_pointer", gemm_.b_scale->place);
  write_arguments(gemm_, spec, block_);
  for (const BoundArgument& argument : gemm_.arguments) {
    if (argument.address != 0) follow("epilogue." + argument.name, argument.place);
  }
}

void Launcher::prepare_workspace() {
  const LaunchSpec& spec = kernel_.spec();
  size_ = workspace_size(spec, gemm_, slices_, ctas_ / spec.cluster_ctas());
  for (const char* name : {"partials", "flags"}) block_.at(spec.offsets.at(name), sizeof(uint64_t));
  if (!spec.k_decomposition->reduction) return;
  const Reduction& reduction = *spec.k_decomposition->reduction;
  const PartialMatrices matrices = partial_matrices(gemm_, slices_);
  const auto box = std::find_if(spec.boxes.begin(), spec.boxes.end(),
                                [](const Box& x) { return x.operand == "partials" && x.is_supported; });
  if (box == spec.boxes.end()) {
    throw Error(GEMMILL_PACK, kernel_.artifact->name +
                                  " has a second kernel, but no descriptor of its partial sums: "
                                  "create the pack again with `gemmill pack make`");
  }
  const Described extents{matrices.contiguous, matrices.strided, matrices.count, matrices.contiguous,
                          matrices.contiguous * matrices.strided};
  partials_ = described(*box, kTmaAlign, extents, "partials");
  partials_at_ = block_.at(box->offset, kDescriptorBytes);
  reduction_.emplace(*kernel_.device, reduction.entry, kernel_.reduction, reduction_ctas(spec, gemm_, slices_),
                     reduction.threads, 0, block_.address());
}

void Launcher::launch(Stream stream, uint64_t lent, const Addresses& addresses) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (addresses != addresses_) move(addresses);
  if (size_.is_empty()) {
    prepared_.launch(stream);
    return;
  }
  if (lent != 0) {
    if (lent % kLentAlign != 0) {
      throw Error(GEMMILL_OPERAND, "workspace is at " + hex_address(lent) + "; it must be a multiple of 256 bytes");
    }
    const uint64_t flags = lent + size_.flags_offset();
    if (size_.flags != 0) {
      const Current current(*kernel_.device);
      check(driver().memory_set(flags, 0, size_.flags / 4, stream), "clearing flags");
    }
    launch_in(stream, lent, flags);
    return;
  }
  if (is_capturing(*kernel_.device, stream)) {
    throw Error(GEMMILL_CAPTURE, kernel_.artifact->name + " needs a workspace of " + std::to_string(workspace_bytes()) +
                                     " bytes, and the graph that the stream is captured into must own it: pass "
                                     "workspace");
  }
  Workspace& own = workspace_of(*kernel_.device, stream);
  const std::lock_guard<std::mutex> held(own.mutex);
  own.reserve(size_, *kernel_.device, stream, kernel_.spec().entry);
  launch_in(stream, own.buffer, own.flags);
}

void Launcher::launch_in(Stream stream, uint64_t buffer, uint64_t flags) {
  const LaunchSpec& spec = kernel_.spec();
  if (buffer != buffer_ && partials_) {
    buffer_ = 0;
    TensorMap map = *partials_;
    map.address = buffer;
    map.encode(partials_at_, *kernel_.device, kLineBytes);
  }
  buffer_ = buffer;
  block_.write(spec.offsets.at("partials"), buffer);
  block_.write(spec.offsets.at("flags"), flags);
  prepared_.launch(stream);
  if (reduction_) reduction_->launch(stream);
}

void Launcher::move(const Addresses& addresses) {
  const Config& config = kernel_.artifact->config;
  check_alignment(gemm_.a, config.a, addresses);
  check_alignment(gemm_.b, config.b, addresses);
  if (gemm_.c) check_alignment(*gemm_.c, *config.c, addresses);
  check_alignment(gemm_.d, config.d, addresses);
  if (gemm_.scale) check_alignment(*gemm_.scale, {gemm_.scale->dtype, "", gemm_.scale->align}, addresses);
  check_memory(call_, addresses);
  const Addresses before = addresses_;
  addresses_.fill(kUnknown);  // in case one is refused
  for (const Following& x : descriptors_) {
    if (addresses[x.place] == before[x.place]) continue;
    replace_address(x.at, addresses[x.place] + static_cast<uint64_t>(x.shift), *kernel_.device);
  }
  for (const Following& x : pointers_) __builtin_memcpy(x.at, &addresses[x.place], sizeof(uint64_t));
  addresses_ = addresses;
}

void Launcher::check_alignment(const Operand& operand, const OperandConfig& of_kernel,
                               const Addresses& addresses) const {
  const bool is_unread = gemm_.k == 0 && operand.place != kC && operand.place != kD;
  const bool is_loose = operand.place == kD && operand.align < of_kernel.align;
  const auto align = static_cast<uint64_t>(is_loose ? of_kernel.dtype->bits / 8 : of_kernel.align);
  const uint64_t address = addresses[operand.place];
  if (is_unread || address % align == 0) return;
  throw Error(GEMMILL_OPERAND, std::string(name_of(operand.place)) + ": its first element is at " +
                                   hex_address(address) + ", but the kernel needs a multiple of " +
                                   std::to_string(align) +
                                   " bytes: start the view at an aligned element, or make a new plan");
}

int64_t checked_slices(const Artifact& artifact, int64_t requested) {
  const auto& shared = artifact.launch.k_decomposition;
  const std::string is = "slices is " + std::to_string(requested) + " for " + artifact.name;
  if (!shared || !shared->has_slices()) {
    if (requested == 0 || requested == 1) return 1;
    throw Error(GEMMILL_UNSUPPORTED, is + "; set slices to 0, or use a split-K kernel (splitk)");
  }
  const int64_t most = shared->name == "splitk" ? 256 : 8;
  const bool fits_tree = shared->name != "tree" || (requested & (requested - 1)) == 0;
  if (1 <= requested && requested <= most && fits_tree) return requested;
  throw Error(GEMMILL_UNSUPPORTED,
              is + "; it must be " + (shared->name == "tree" ? "1, 2, 4 or 8" : "from 1 to " + std::to_string(most)));
}

}  // namespace gemmill
