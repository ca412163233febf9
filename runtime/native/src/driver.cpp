#include "driver.h"

#include <dlfcn.h>

#include <map>
#include <mutex>

#include "error.h"

namespace gemmill {
namespace {

constexpr Status kNotInitialised = 3;
constexpr Status kFirstCaptureError = 900;
constexpr Status kLastCaptureError = 908;

template <typename Pointer>
void find(void* library, const char* name, Pointer& function) {
  function = reinterpret_cast<Pointer>(dlsym(library, name));
  if (function == nullptr) {
    throw Error(GEMMILL_DEVICE,
                std::string("the CUDA driver has no ") + name + ": install a driver for CUDA 12 or newer");
  }
}

Driver opened() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) {
    throw Error(GEMMILL_DEVICE,
                std::string("the CUDA driver cannot be loaded: ") + dlerror() + "; install NVIDIA's driver");
  }
  Driver found{};
  find(library, "cuInit", found.init);
  find(library, "cuGetErrorName", found.get_error_name);
  find(library, "cuDeviceGet", found.device_get);
  find(library, "cuDeviceGetCount", found.device_get_count);
  find(library, "cuDeviceGetName", found.device_get_name);
  find(library, "cuDeviceGetAttribute", found.device_get_attribute);
  find(library, "cuDevicePrimaryCtxRetain", found.primary_context_retain);
  find(library, "cuCtxGetCurrent", found.context_get_current);
  find(library, "cuCtxSetCurrent", found.context_set_current);
  find(library, "cuModuleLoadData", found.module_load_data);
  find(library, "cuModuleGetFunction", found.module_get_function);
  find(library, "cuFuncSetAttribute", found.function_set_attribute);
  find(library, "cuOccupancyMaxActiveBlocksPerMultiprocessor", found.occupancy_blocks);
  find(library, "cuOccupancyMaxActiveClusters", found.occupancy_clusters);
  find(library, "cuLaunchKernelEx", found.launch_kernel);
  find(library, "cuTensorMapEncodeTiled", found.tensor_map_encode);
  find(library, "cuTensorMapReplaceAddress", found.tensor_map_replace);
  find(library, "cuMemAlloc_v2", found.memory_allocate);
  find(library, "cuMemFree_v2", found.memory_free);
  find(library, "cuMemsetD32Async", found.memory_set);
  find(library, "cuStreamCreate", found.stream_create);
  find(library, "cuStreamDestroy_v2", found.stream_destroy);
  find(library, "cuStreamSynchronize", found.stream_synchronize);
  find(library, "cuStreamIsCapturing", found.stream_is_capturing);
  find(library, "cuThreadExchangeStreamCaptureMode", found.exchange_capture_mode);
  if (const Status status = found.init(0); status != 0) {
    const char* name = nullptr;
    found.get_error_name(status, &name);
    throw Error(GEMMILL_DEVICE, std::string("the CUDA driver cannot be initialised: ") +
                                    (name ? name : "unknown error") + "; check with nvidia-smi whether it finds a GPU");
  }
  return found;
}

Device described(int ordinal) {
  const Driver& cuda = driver();
  const std::string gpu = "GPU " + std::to_string(ordinal);
  int count = 0;
  int handle = 0;
  check(cuda.device_get_count(&count), "counting GPUs");
  check(cuda.device_get(&handle, ordinal), "opening " + gpu + " of " + std::to_string(count));
  char name[256] = "";
  check(cuda.device_get_name(name, sizeof name, handle), "reading the name of " + gpu);
  Device device{ordinal, name, 0, 0, 0, nullptr};
  check(cuda.device_get_attribute(&device.major, kCapabilityMajor, handle), "reading the capability of " + gpu);
  check(cuda.device_get_attribute(&device.minor, kCapabilityMinor, handle), "reading the capability of " + gpu);
  check(cuda.device_get_attribute(&device.sms, kMultiprocessorCount, handle), "counting the SMs of " + gpu);
  check(cuda.primary_context_retain(&device.context, handle), "retaining the primary context of " + gpu);
  return device;
}

}  // namespace

const Driver& driver() {
  static const Driver functions = opened();
  return functions;
}

void check(Status status, const std::string& what) {
  if (status == 0) return;
  const char* name = nullptr;
  driver().get_error_name(status, &name);
  const std::string message = what + ": " + (name != nullptr ? name : "driver status " + std::to_string(status));
  if (kFirstCaptureError <= status && status <= kLastCaptureError) {
    throw Error(GEMMILL_CAPTURE, message + "; run it before a stream capture starts");
  }
  const char* fork = "; a process that was forked after CUDA was initialised cannot use CUDA";
  throw Error(GEMMILL_DEVICE, message + (status == kNotInitialised ? fork : ""));
}

const Device& device_at(int ordinal) {
  static std::mutex mutex;
  static std::map<int, Device> devices;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = devices.find(ordinal);
  return found != devices.end() ? found->second : devices.emplace(ordinal, described(ordinal)).first->second;
}

Current::Current(const Device& device) {
  check(driver().context_get_current(&previous_), "reading the current context");
  check(driver().context_set_current(device.context), "entering the context of GPU " + std::to_string(device.ordinal));
}

Current::~Current() {
  if (previous_ != nullptr) driver().context_set_current(previous_);
}

}  // namespace gemmill
