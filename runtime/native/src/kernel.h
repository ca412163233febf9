/// Kernels loaded on a GPU, and launches that are complete except for the stream (runtime/launch/kernel.py).
#pragma once

#include <memory>
#include <string>

#include "artifact.h"
#include "driver.h"

namespace gemmill {

/// A kernel loaded on one GPU. It stays loaded for the life of the process, since CUDA graphs may refer to it.
struct Kernel {
  const Device* device;
  std::shared_ptr<const Artifact> artifact;
  Function function = nullptr;
  /// The second kernel of split-K.
  Function reduction = nullptr;
  /// Clusters that the whole GPU holds at a time.
  int64_t max_clusters = 0;

  const LaunchSpec& spec() const { return artifact->launch; }
};

/// Loads a kernel on a GPU, once. Error: the GPU cannot run it.
const Kernel& load(const Device& device, std::shared_ptr<const Artifact> artifact);

/// A launch of one kernel, complete except for the stream. Use it from one thread at a time.
class PreparedLaunch {
 public:
  PreparedLaunch(const Device& device, std::string entry, Function function, int64_t ctas, int64_t threads,
                 int64_t shared_bytes, void* parameters);
  void launch(Stream stream);

 private:
  const Device* device_;
  std::string entry_;
  Function function_;
  LaunchConfig config_{};
  LaunchAttribute overlap_{};
  void* arguments_[1];
};

}  // namespace gemmill
