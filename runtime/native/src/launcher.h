/// One kernel bound to one memory layout, with encoded parameters: a launch is only cuLaunchKernelEx
/// (runtime/launch/launcher.py).
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "gemm.h"
#include "kernel.h"
#include "parameters.h"
#include "tensor_map.h"
#include "workspace.h"

namespace gemmill {

/// Addresses may change between launches. Threads may share it.
class Launcher {
 public:
  /// `gemm`: the product as the kernel runs it. `slices`: slices of K, 1 for kernels whose launch does not set them.
  Launcher(const Call& call, const Gemm& gemm, const Kernel& kernel, int64_t slices);

  /// Launches on a stream of the kernel's GPU. `lent`: memory of workspace() bytes, or 0.
  void launch(Stream stream, uint64_t lent, const Addresses& addresses);

  const std::string& kernel_name() const { return kernel_.artifact->name; }
  bool is_transposed() const { return gemm_.is_transposed; }
  int64_t slices() const { return slices_; }
  int64_t ctas() const { return ctas_; }
  uint64_t workspace_bytes() const { return size_.lent_bytes(); }

 private:
  void move(const Addresses& addresses);
  void check_alignment(const Operand& operand, const OperandConfig& of_kernel, const Addresses& addresses) const;
  void follow_others();
  void prepare_workspace();
  void launch_in(Stream stream, uint64_t buffer, uint64_t flags);

  const Call call_;
  const Gemm gemm_;
  const Kernel& kernel_;
  const int64_t slices_;
  const int64_t ctas_;
  ParameterBlock block_;
  std::vector<Following> descriptors_;
  std::vector<Following> pointers_;
  PreparedLaunch prepared_;
  WorkspaceSize size_;
  std::optional<PreparedLaunch> reduction_;
  std::optional<TensorMap> partials_;
  void* partials_at_ = nullptr;
  uint64_t buffer_ = 0;
  Addresses addresses_;
  std::mutex mutex_;
};

/// The number of slices of K of a launch. Error: the kernel does not support the requested one; 0 requests none.
int64_t checked_slices(const Artifact& artifact, int64_t requested);

}  // namespace gemmill
