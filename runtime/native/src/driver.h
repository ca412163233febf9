/// The CUDA driver, opened at run time: the types and functions of cuda.h that launches need.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace gemmill {

using Status = int;
using Context = void*;
using Module = void*;
using Function = void*;
using Stream = void*;

/// CUlaunchAttribute.
struct LaunchAttribute {
  int id;
  char padding[4];
  union {
    char bytes[64];
    unsigned cluster[3];
    int allowed;
  } value;
};
static_assert(sizeof(LaunchAttribute) == 72);

/// CUlaunchConfig.
struct LaunchConfig {
  unsigned grid[3];
  unsigned block[3];
  unsigned shared_bytes;
  Stream stream;
  LaunchAttribute* attributes;
  unsigned attribute_count;
};
static_assert(sizeof(LaunchConfig) == 56);

/// Values of cuda.h.
constexpr int kClusterDimension = 4;
constexpr int kProgrammaticStreamSerialization = 6;
constexpr int kMaxDynamicSharedBytes = 8;
constexpr int kMultiprocessorCount = 16;
constexpr int kCapabilityMajor = 75;
constexpr int kCapabilityMinor = 76;
constexpr int kRelaxedCapture = 2;
constexpr unsigned kNonBlocking = 1;
constexpr Status kOutOfMemory = 2;
constexpr Status kInvalidContext = 201;

/// Functions of libcuda.so.1, without their prefix.
struct Driver {
  Status (*init)(unsigned);
  Status (*get_error_name)(Status, const char**);
  Status (*device_get)(int*, int);
  Status (*device_get_count)(int*);
  Status (*device_get_name)(char*, int, int);
  Status (*device_get_attribute)(int*, int, int);
  Status (*primary_context_retain)(Context*, int);
  Status (*context_get_current)(Context*);
  Status (*context_set_current)(Context);
  Status (*module_load_data)(Module*, const void*);
  Status (*module_get_function)(Function*, Module, const char*);
  Status (*function_set_attribute)(Function, int, int);
  Status (*occupancy_blocks)(int*, Function, int, size_t);
  Status (*occupancy_clusters)(int*, Function, const LaunchConfig*);
  Status (*launch_kernel)(const LaunchConfig*, Function, void**, void**);
  Status (*tensor_map_encode)(void*, int, uint32_t, void*, const uint64_t*, const uint64_t*, const uint32_t*,
                              const uint32_t*, int, int, int, int);
  Status (*tensor_map_replace)(void*, void*);
  Status (*memory_allocate)(uint64_t*, size_t);
  Status (*memory_free)(uint64_t);
  Status (*memory_set)(uint64_t, unsigned, size_t, Stream);
  Status (*stream_create)(Stream*, unsigned);
  Status (*stream_destroy)(Stream);
  Status (*stream_synchronize)(Stream);
  Status (*stream_is_capturing)(Stream, int*);
  Status (*exchange_capture_mode)(int*);
};

/// The driver, initialised; Error where there is none.
const Driver& driver();

/// Throws an Error that names the failed operation, unless a call succeeded.
void check(Status status, const std::string& what);

/// A GPU, whose primary context stays retained for the life of the process.
struct Device {
  int ordinal;
  std::string name;
  int major;
  int minor;
  int sms;
  Context context;

  /// Whether it has programmatic dependent launch and clusters: both came with 9.0.
  bool overlaps() const { return major >= 9; }
};

/// A GPU by its ordinal.
const Device& device_at(int ordinal);

/// Makes the primary context of a GPU current in this thread while it exists, and then the previous one. A thread
/// without a context keeps this one.
class Current {
 public:
  explicit Current(const Device& device);
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  Context previous_ = nullptr;
};

/// Runs a call that needs a current context, and again in that of a GPU where there is none.
template <typename Call>
Status in_context(const Device& device, Call&& call) {
  const Status status = call();
  if (status != kInvalidContext) return status;
  const Current current(device);
  return call();
}

}  // namespace gemmill
