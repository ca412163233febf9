/// GPU memory for partial sums, one for each stream (runtime/launch/workspace.py). Launches on one stream run in
/// sequence, so they share it; it grows on demand and is never freed.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include "driver.h"

namespace gemmill {

/// Bytes for partial sums and for flags.
struct WorkspaceSize {
  uint64_t buffer = 0;
  uint64_t flags = 0;

  bool is_empty() const { return buffer == 0 && flags == 0; }
  /// Bytes of memory to lend: flags follow the buffer at a multiple of 256.
  uint64_t lent_bytes() const;
  uint64_t flags_offset() const;
};

/// Two buffers on one GPU. Hold `mutex` from reserve() until after the launch that uses the addresses.
class Workspace {
 public:
  std::mutex mutex;
  uint64_t buffer = 0;
  /// Flags are 0 between launches; kernels reset them.
  uint64_t flags = 0;

  /// Makes it large enough, after waiting for earlier launches on the stream. `what`: the kernel, for errors.
  void reserve(const WorkspaceSize& needed, const Device& device, Stream stream, const std::string& what);

 private:
  WorkspaceSize has_;
};

/// The workspace of a stream.
Workspace& workspace_of(const Device& device, Stream stream);

/// Whether work on a stream goes into a CUDA graph.
bool is_capturing(const Device& device, Stream stream);

}  // namespace gemmill
