#include "plan.h"

#include <array>
#include <cstring>

#include "error.h"
#include "support.h"

namespace gemmill {
namespace {

/// Most plans that a cache keeps.
constexpr size_t kMostPlans = 1024;
constexpr uint64_t kAlign = 16;

/// What a call launches: a kernel of the pack, the slices of K, and the product as the kernel runs it.
struct Target {
  std::shared_ptr<const Artifact> artifact;
  int64_t slices;
  Gemm gemm;
};

Target named(const Pack& pack, const gemmill_gemm& request, const Gemm& gemm) {
  auto artifact = pack.get(request.kernel);
  const int64_t slices = checked_slices(*artifact, request.slices);
  const Gemm oriented = as_kernel_runs(gemm, *artifact);
  return {std::move(artifact), slices, oriented};
}

Target chosen(const Pack& pack, const gemmill_gemm& request, const Gemm& gemm) {
  if (request.slices != 0) {
    throw Error(GEMMILL_OPERAND, "slices is for a split-K kernel that the call names, and kernel is NULL: set kernel");
  }
  if (pack.choices() == nullptr) {
    throw Error(GEMMILL_UNSUPPORTED, pack.path() +
                                         " has no choice table: make a pack for your problems (gemmill pack "
                                         "--problem), or name a kernel");
  }
  const TableKernel& kernel = pack.choices()->choose(table_problem(gemm), pack.path());
  auto artifact = pack.get(kernel.name);
  const int64_t slices = checked_slices(*artifact, kernel.slices);
  const Gemm oriented = as_chosen(gemm, *artifact, kernel.swap_ab, pack.path());
  return {std::move(artifact), slices, oriented};
}

/// The operands of a product, by place.
std::array<const DLTensor*, kPlaces> tensors_of(const gemmill_gemm& gemm) {
  return {gemm.a, gemm.b, gemm.c, gemm.d, gemm.a_scale, gemm.b_scale, gemm.offsets, gemm.counts};
}

std::vector<Argument> read_arguments(const gemmill_gemm& gemm) {
  std::vector<Argument> arguments;
  if (gemm.argument_count != 0 && (gemm.arguments == nullptr || gemm.epilogue == nullptr)) {
    throw Error(GEMMILL_OPERAND, "argument_count is " + std::to_string(gemm.argument_count) +
                                     ", and arguments or epilogue is NULL: pass both, or set it to 0");
  }
  if (gemm.argument_count > kMostArguments) {
    throw Error(GEMMILL_UNSUPPORTED, "argument_count is " + std::to_string(gemm.argument_count) +
                                         "; libgemmill supports at most " + std::to_string(kMostArguments));
  }
  for (size_t i = 0; i < gemm.argument_count; ++i) {
    const gemmill_argument& given = gemm.arguments[i];
    if (given.name == nullptr) throw Error(GEMMILL_OPERAND, "an argument has no name, which is NULL: set it");
    Argument argument{given.name, std::nullopt, given.value};
    if (given.tensor != nullptr) argument.tensor = read_tensor(*given.tensor, kPlaces + i, given.name);
    arguments.push_back(std::move(argument));
  }
  return arguments;
}

template <typename Value>
void append(std::string& key, const Value& value) {
  key.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void append_tensor(std::string& key, const DLTensor* tensor) {
  append(key, tensor != nullptr);
  if (tensor == nullptr) return;
  // A tensor with more extents is refused when the plan is made.
  const size_t rank = 0 < tensor->ndim && tensor->ndim <= kMaxRank ? static_cast<size_t>(tensor->ndim) : 0;
  append(key, tensor->ndim);
  append(key, tensor->dtype);
  append(key, tensor->device);
  append(key, (reinterpret_cast<uint64_t>(tensor->data) + tensor->byte_offset) % kAlign);
  append(key, tensor->strides != nullptr);
  if (tensor->shape != nullptr) key.append(reinterpret_cast<const char*>(tensor->shape), rank * sizeof(int64_t));
  if (tensor->strides != nullptr) key.append(reinterpret_cast<const char*>(tensor->strides), rank * sizeof(int64_t));
}

/// Everything that a plan depends on. The text lives until the thread's next call, so that a warm call needs no memory.
const std::string& key_of(const gemmill_gemm& gemm) {
  thread_local std::string key;
  key.clear();
  for (const DLTensor* tensor : tensors_of(gemm)) append_tensor(key, tensor);
  append(key, gemm.alpha);
  append(key, gemm.beta);
  append(key, gemm.flags);
  append(key, gemm.slices);
  append(key, gemm.expected_rows);
  for (const char* text : {gemm.kernel, gemm.epilogue}) {
    append(key, text != nullptr);
    if (text != nullptr) key.append(text, std::strlen(text) + 1);
  }
  for (size_t i = 0; i < gemm.argument_count && gemm.arguments != nullptr; ++i) {
    const gemmill_argument& argument = gemm.arguments[i];
    if (argument.name != nullptr) key.append(argument.name, std::strlen(argument.name) + 1);
    append_tensor(key, argument.tensor);
    append(key, argument.value);
  }
  return key;
}

}  // namespace

Call read_call(const gemmill_gemm& gemm) {
  constexpr uint32_t kFlags = GEMMILL_TF32 | GEMMILL_FAST_ACCUMULATION;
  if ((gemm.flags & ~kFlags) != 0) {
    throw Error(GEMMILL_OPERAND, "flags is " + std::to_string(gemm.flags) + ", which has unknown bits");
  }
  Call call{{},
            gemm.alpha,
            gemm.beta,
            (gemm.flags & GEMMILL_TF32) != 0,
            (gemm.flags & GEMMILL_FAST_ACCUMULATION) != 0,
            gemm.expected_rows,
            std::nullopt,
            read_arguments(gemm)};
  const auto tensors = tensors_of(gemm);
  for (size_t place = 0; place < tensors.size(); ++place) {
    if (tensors[place] != nullptr) call.tensors[place] = read_tensor(*tensors[place], place, name_of(place));
  }
  for (const Place place : {kA, kB, kD}) {
    if (!call.tensors[place]) throw Error(GEMMILL_OPERAND, std::string(name_of(place)) + " is NULL: pass a tensor");
  }
  if (gemm.epilogue != nullptr) call.epilogue.emplace(std::string(gemm.epilogue));
  return call;
}

Plan make_plan(const Pack& pack, const gemmill_gemm& request) {
  Plan plan{read_call(request), nullptr};
  const Gemm gemm = Gemm::of(plan.call);
  check_memory(plan.call, plan.call.addresses());
  if (gemm.is_empty()) return plan;
  const Target target = request.kernel == nullptr ? chosen(pack, request, gemm) : named(pack, request, gemm);
  const Kernel& kernel = load(device_at(plan.call.get(kA).device), target.artifact);
  plan.launcher = std::make_unique<Launcher>(plan.call, target.gemm, kernel, target.slices);
  return plan;
}

void Plan::launch(Stream stream, uint64_t lent, const Addresses& addresses) {
  if (!call.tensors[kC] && addresses[kC] != 0) {
    throw Error(GEMMILL_OPERAND, "c: this plan was made without c: make a new plan with c");
  }
  if (launcher == nullptr) {
    check_memory(call, addresses);
  } else {
    launcher->launch(stream, lent, addresses);
  }
}

Addresses addresses_of(const gemmill_gemm& gemm) {
  Addresses addresses{};
  const auto address = [](const DLTensor* x) {
    return x == nullptr ? 0 : reinterpret_cast<uint64_t>(x->data) + x->byte_offset;
  };
  const auto tensors = tensors_of(gemm);
  for (size_t place = 0; place < tensors.size(); ++place) addresses[place] = address(tensors[place]);
  for (size_t i = 0; i < std::min(gemm.argument_count, kMostArguments) && gemm.arguments != nullptr; ++i) {
    addresses[kPlaces + i] = address(gemm.arguments[i].tensor);
  }
  return addresses;
}

std::shared_ptr<Plan> PlanCache::find(const Pack& pack, const gemmill_gemm& gemm) {
  const std::string& key = key_of(gemm);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (const auto found = plans_.find(key); found != plans_.end()) return found->second;
  auto plan = std::make_shared<Plan>(make_plan(pack, gemm));
  if (plans_.size() >= kMostPlans) plans_.clear();
  plans_[key] = plan;
  return plan;
}

}  // namespace gemmill
