#include "kernel.h"

#include <cstring>
#include <map>
#include <mutex>
#include <tuple>

#include "digest.h"
#include "error.h"

namespace gemmill {
namespace {

struct Arch {
  const char* name;
  const char* nvrtc;
  int major;
  int minor;
};

/// Compilation targets (library/arch.py).
constexpr Arch kArchs[] = {{"sm70", "sm_70", 7, 0},   {"sm80", "sm_80", 8, 0}, {"sm86", "sm_86", 8, 6},
                           {"sm89", "sm_89", 8, 9},   {"sm90", "sm_90", 9, 0}, {"sm90a", "sm_90a", 9, 0},
                           {"sm120", "sm_120", 12, 0}};

bool is_portable(const Arch& arch) { return arch.nvrtc[std::strlen(arch.nvrtc) - 1] != 'a'; }

/// Whether kernels of a target run on a GPU: those of its capability, or else of the next lower one of its major
/// version.
bool serves(const Arch& arch, const Device& device) {
  const Arch* below = nullptr;
  for (const Arch& other : kArchs) {
    if (other.major == device.major && other.minor == device.minor) {
      return arch.major == device.major && arch.minor == device.minor;
    }
    const bool is_lower = other.major == device.major && other.minor < device.minor && is_portable(other);
    if (is_lower && (below == nullptr || other.minor > below->minor)) below = &other;
  }
  return below == &arch;
}

void check_target(const Artifact& artifact, const Device& device) {
  for (const Arch& arch : kArchs) {
    if (artifact.config.arch != arch.name) continue;
    if (serves(arch, device)) return;
    throw Error(GEMMILL_DEVICE, artifact.launch.entry + " was compiled for " + arch.nvrtc + " (compute capability " +
                                    std::to_string(arch.major) + "." + std::to_string(arch.minor) + "); GPU " +
                                    std::to_string(device.ordinal) + ", " + device.name + ", has " +
                                    std::to_string(device.major) + "." + std::to_string(device.minor) +
                                    ": use a kernel for its architecture");
  }
  throw Error(GEMMILL_PACK, artifact.name + " was compiled for " + artifact.config.arch.substr(0, 40) +
                                ", which this version of gemmill does not have");
}

int64_t max_active_clusters(const Kernel& kernel) {
  const LaunchSpec& spec = kernel.spec();
  const std::string on_gpu = " of " + spec.entry + " fit GPU " + std::to_string(kernel.device->ordinal);
  int count = 0;
  if (!kernel.device->overlaps()) {
    check(driver().occupancy_blocks(&count, kernel.function, static_cast<int>(spec.threads),
                                    static_cast<size_t>(spec.shared_bytes)),
          "reading how many CTAs" + on_gpu);
    return int64_t{count} * kernel.device->sms;
  }
  LaunchAttribute cluster{};
  cluster.id = kClusterDimension;
  const auto size = static_cast<unsigned>(spec.cluster_ctas());
  cluster.value.cluster[0] = size;
  cluster.value.cluster[1] = cluster.value.cluster[2] = 1;
  const LaunchConfig config{{size, 1, 1},
                            {static_cast<unsigned>(spec.threads), 1, 1},
                            static_cast<unsigned>(spec.shared_bytes),
                            nullptr,
                            &cluster,
                            1};
  check(driver().occupancy_clusters(&count, kernel.function, &config), "reading how many clusters" + on_gpu);
  return count;
}

Module loaded_module(const Device& device, const Artifact& artifact) {
  static std::map<std::pair<int, Digest>, Module> modules;
  const auto key = std::make_pair(device.ordinal, sha256(artifact.cubin));
  if (const auto found = modules.find(key); found != modules.end()) return found->second;
  Module module = nullptr;
  check(driver().module_load_data(&module, artifact.cubin.data()),
        "loading " + artifact.launch.entry + " on GPU " + std::to_string(device.ordinal));
  modules[key] = module;
  return module;
}

Kernel made(const Device& device, std::shared_ptr<const Artifact> artifact) {
  check_target(*artifact, device);
  Kernel kernel{&device, std::move(artifact)};
  const LaunchSpec& spec = kernel.spec();
  const Current current(device);
  const Module module = loaded_module(device, *kernel.artifact);
  check(driver().module_get_function(&kernel.function, module, spec.entry.c_str()), "finding " + spec.entry);
  check(driver().function_set_attribute(kernel.function, kMaxDynamicSharedBytes, static_cast<int>(spec.shared_bytes)),
        "reserving " + std::to_string(spec.shared_bytes) + " bytes of shared memory for " + spec.entry);
  if (spec.k_decomposition && spec.k_decomposition->reduction) {
    const std::string& entry = spec.k_decomposition->reduction->entry;
    check(driver().module_get_function(&kernel.reduction, module, entry.c_str()), "finding " + entry);
  }
  kernel.max_clusters = max_active_clusters(kernel);
  if (kernel.max_clusters < 1) {
    throw Error(GEMMILL_DEVICE, spec.entry + ": no cluster of " + std::to_string(spec.cluster_ctas()) +
                                    " CTAs fits GPU " + std::to_string(device.ordinal) + ", " + device.name +
                                    ": use a kernel with a smaller cluster");
  }
  return kernel;
}

}  // namespace

const Kernel& load(const Device& device, std::shared_ptr<const Artifact> artifact) {
  static std::mutex mutex;
  static std::map<std::pair<int, std::string>, Kernel> kernels;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto key = std::make_pair(device.ordinal, artifact->digest);
  const auto found = kernels.find(key);
  return found != kernels.end() ? found->second : kernels.emplace(key, made(device, artifact)).first->second;
}

PreparedLaunch::PreparedLaunch(const Device& device, std::string entry, Function function, int64_t ctas,
                               int64_t threads, int64_t shared_bytes, void* parameters)
    : device_(&device), entry_(std::move(entry)), function_(function), arguments_{parameters} {
  config_ = {{static_cast<unsigned>(ctas), 1, 1},
             {static_cast<unsigned>(threads), 1, 1},
             static_cast<unsigned>(shared_bytes),
             nullptr,
             nullptr,
             0};
  overlap_.id = kProgrammaticStreamSerialization;
  overlap_.value.allowed = 1;
}

void PreparedLaunch::launch(Stream stream) {
  config_.stream = stream;
  // Here, so that a copy of this object does not point into the original.
  config_.attributes = &overlap_;
  config_.attribute_count = device_->overlaps() ? 1 : 0;
  Status status = driver().launch_kernel(&config_, function_, arguments_, nullptr);
  if (status == 0) return;
  // Reading the current context before each launch would slow down all of them.
  Context here = nullptr;
  check(driver().context_get_current(&here), "reading the current context");
  if (here != device_->context) {
    const Current current(*device_);
    status = driver().launch_kernel(&config_, function_, arguments_, nullptr);
  }
  check(status, "launching " + entry_ + " on GPU " + std::to_string(device_->ordinal));
}

}  // namespace gemmill
