/// A CUDA driver without a GPU, for tests: libcuda.so.1 of an H200 that runs nothing. It writes each launch, memset and
/// allocation as a line of JSON to the file that RECORDING names. Memory has fixed addresses, which nobody may access.
#include <cuda.h>
#include <dlfcn.h>
#include <elf.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "driver.h"

// What libgemmill declares instead of including cuda.h.
static_assert(sizeof(gemmill::LaunchConfig) == sizeof(CUlaunchConfig));
static_assert(sizeof(gemmill::LaunchAttribute) == sizeof(CUlaunchAttribute));
static_assert(offsetof(gemmill::LaunchConfig, stream) == offsetof(CUlaunchConfig, hStream));
static_assert(offsetof(gemmill::LaunchConfig, attribute_count) == offsetof(CUlaunchConfig, numAttrs));
static_assert(offsetof(gemmill::LaunchAttribute, value) == offsetof(CUlaunchAttribute, value));
static_assert(gemmill::kClusterDimension == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
static_assert(gemmill::kProgrammaticStreamSerialization == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
static_assert(gemmill::kMaxDynamicSharedBytes == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
static_assert(gemmill::kMultiprocessorCount == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
static_assert(gemmill::kCapabilityMajor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
static_assert(gemmill::kCapabilityMinor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
static_assert(gemmill::kRelaxedCapture == CU_STREAM_CAPTURE_MODE_RELAXED);

namespace {

constexpr int kSms = 132;
constexpr size_t kSmSharedBytes = 233472;
constexpr int kSmThreads = 2048;
constexpr size_t kReservedBytes = 1024;
/// Attributes of a kernel in its cubin: the format with a size, and a parameter, whose size is in the third word.
constexpr unsigned char kSized = 0x04;
constexpr unsigned char kParameter = 0x17;
constexpr CUdeviceptr kFirstAddress = 0x7f0000000000;
const CUcontext kContext = reinterpret_cast<CUcontext>(0x1000);
/// A stream that is being captured.
const CUstream kCaptured = reinterpret_cast<CUstream>(0xca);

/// A module: the bytes of parameters by kernel.
struct Loaded {
  std::map<std::string, size_t> parameter_bytes;
};

/// A function.
struct Entry {
  std::string name;
  size_t parameter_bytes;
};

/// What has been loaded, for the life of the process.
std::deque<Loaded> modules;
std::deque<Entry> functions;
std::mutex mutex;
CUdeviceptr next_address = kFirstAddress;
thread_local CUcontext current = nullptr;

void record(const std::string& line) {
  const char* path = std::getenv("RECORDING");
  if (path == nullptr) return;
  std::FILE* file = std::fopen(path, "a");
  if (file == nullptr) std::abort();
  std::fputs((line + "\n").c_str(), file);
  std::fclose(file);
}

std::string hex(const void* data, size_t bytes) {
  std::string text;
  for (size_t i = 0; i < bytes; ++i) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<const unsigned char*>(data)[i]);
    text += digits;
  }
  return text;
}

std::string triple(unsigned x, unsigned y, unsigned z) {
  return "[" + std::to_string(x) + "," + std::to_string(y) + "," + std::to_string(z) + "]";
}

std::string text_of(const CUlaunchAttribute& attribute) {
  const auto& value = attribute.value;
  const bool is_cluster = attribute.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  return "[" + std::to_string(attribute.id) + "," +
         (is_cluster ? triple(value.clusterDim.x, value.clusterDim.y, value.clusterDim.z)
                     : std::to_string(value.programmaticStreamSerializationAllowed)) +
         "]";
}

/// Bytes of the parameters of a kernel, by its attributes.
size_t parameter_bytes(const char* attributes, size_t bytes) {
  size_t sum = 0;
  for (size_t at = 0; at + 4 <= bytes;) {
    uint16_t size = 0;
    std::memcpy(&size, attributes + at + 2, sizeof size);
    const bool is_sized = attributes[at] == kSized;
    if (is_sized && attributes[at + 1] == kParameter) {
      uint32_t word = 0;
      std::memcpy(&word, attributes + at + 12, sizeof word);
      sum += word >> 18;
    }
    at += 4 + (is_sized ? size : 0);
  }
  return sum;
}

/// CTAs of a kernel that an SM holds.
int ctas_of_sm(int threads, size_t shared_bytes) {
  const auto by_memory = static_cast<int>(kSmSharedBytes / (shared_bytes + kReservedBytes));
  return std::min(by_memory, kSmThreads / threads);
}

}  // namespace

extern "C" {

CUresult cuGetProcAddress_v2(const char* name, void** function, int, cuuint64_t,
                             CUdriverProcAddressQueryResult* found) {
  Dl_info own{};
  Dl_info info{};
  dladdr(reinterpret_cast<void*>(&cuInit), &own);
  static void* self = dlopen(own.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  for (const std::string& symbol : {std::string(name) + "_v2", std::string(name)}) {
    *function = dlsym(self, symbol.c_str());
    // Not a function of a library that this one depends on.
    if (*function != nullptr && dladdr(*function, &info) != 0 && info.dli_fbase == own.dli_fbase) break;
    *function = nullptr;
  }
  if (found != nullptr) *found = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *function != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuInit(unsigned) { return CUDA_SUCCESS; }

CUresult cuDriverGetVersion(int* version) {
  *version = 12090;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult status, const char** name) {
  *name = status == CUDA_ERROR_INVALID_VALUE     ? "CUDA_ERROR_INVALID_VALUE"
          : status == CUDA_ERROR_NOT_FOUND       ? "CUDA_ERROR_NOT_FOUND"
          : status == CUDA_ERROR_INVALID_IMAGE   ? "CUDA_ERROR_INVALID_IMAGE"
          : status == CUDA_ERROR_INVALID_CONTEXT ? "CUDA_ERROR_INVALID_CONTEXT"
          : status == CUDA_ERROR_INVALID_DEVICE  ? "CUDA_ERROR_INVALID_DEVICE"
                                                 : "CUDA_ERROR_UNKNOWN";
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  *count = 1;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return ordinal == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetName(char* name, int size, CUdevice) {
  std::snprintf(name, static_cast<size_t>(size), "NVIDIA H200");
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  static const std::map<int, int> values{{CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, kSms},
                                         {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
                                         {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0}};
  const auto found = values.find(attribute);
  if (found == values.end()) return CUDA_ERROR_INVALID_VALUE;
  *value = found->second;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
  *context = kContext;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = current;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  current = context;
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void* value, CUpointer_attribute, CUdeviceptr) {
  *static_cast<int*>(value) = 0;
  return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  if (current == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const auto* bytes = static_cast<const char*>(image);
  if (std::memcmp(bytes, ELFMAG, SELFMAG) != 0) return CUDA_ERROR_INVALID_IMAGE;
  Elf64_Ehdr header;
  std::memcpy(&header, bytes, sizeof header);
  std::vector<Elf64_Shdr> sections(header.e_shnum);
  std::memcpy(sections.data(), bytes + header.e_shoff, header.e_shnum * sizeof(Elf64_Shdr));
  const char* names = bytes + sections.at(header.e_shstrndx).sh_offset;
  const std::string info = ".nv.info.";
  const std::lock_guard<std::mutex> lock(mutex);
  Loaded* loaded = &modules.emplace_back();
  for (const Elf64_Shdr& section : sections) {
    const std::string name = names + section.sh_name;
    if (name.rfind(info, 0) != 0) continue;
    loaded->parameter_bytes[name.substr(info.size())] = parameter_bytes(bytes + section.sh_offset, section.sh_size);
  }
  *module = reinterpret_cast<CUmodule>(loaded);
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  auto* loaded = reinterpret_cast<Loaded*>(module);
  const auto found = loaded->parameter_bytes.find(name);
  if (found == loaded->parameter_bytes.end()) return CUDA_ERROR_NOT_FOUND;
  const std::lock_guard<std::mutex> lock(mutex);
  *function = reinterpret_cast<CUfunction>(&functions.emplace_back(Entry{name, found->second}));
  return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* count, CUfunction, int threads, size_t shared_bytes) {
  *count = ctas_of_sm(threads, shared_bytes);
  return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveClusters(int* count, CUfunction, const CUlaunchConfig* config) {
  if (config->numAttrs != 1 || config->attrs[0].id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const int size = static_cast<int>(config->attrs[0].value.clusterDim.x);
  *count = kSms / size * ctas_of_sm(static_cast<int>(config->blockDimX), config->sharedMemBytes);
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters, void** extra) {
  if (current == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (extra != nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto* entry = reinterpret_cast<const Entry*>(function);
  std::string attributes;
  for (unsigned i = 0; i < config->numAttrs; ++i) attributes += (i == 0 ? "" : ",") + text_of(config->attrs[i]);
  record("{\"launch\":\"" + entry->name +
         "\",\"grid\":" + triple(config->gridDimX, config->gridDimY, config->gridDimZ) +
         ",\"block\":" + triple(config->blockDimX, config->blockDimY, config->blockDimZ) +
         ",\"shared\":" + std::to_string(config->sharedMemBytes) +
         ",\"stream\":" + std::to_string(reinterpret_cast<uintptr_t>(config->hStream)) + ",\"attributes\":[" +
         attributes + "],\"parameters\":\"" + hex(parameters[0], entry->parameter_bytes) + "\"}");
  return CUDA_SUCCESS;
}

/// The 128 bytes of a descriptor: all arguments, with the address first.
CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                const cuuint64_t* extents, const cuuint64_t* strides, const cuuint32_t* box,
                                const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                CUtensorMapFloatOOBfill fill) {
  const auto start = reinterpret_cast<uintptr_t>(address);
  if (reinterpret_cast<uintptr_t>(map) % 64 != 0 || start % 16 != 0 || rank < 3 || rank > 4) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  unsigned char bytes[sizeof(CUtensorMap)] = {};
  unsigned char* end = bytes;
  const auto put = [&](const void* data, size_t size) {
    std::memcpy(end, data, size);
    end += size;
  };
  put(&start, sizeof start);
  for (const int value :
       {int{type}, static_cast<int>(rank), int{interleave}, int{swizzle}, int{promotion}, int{fill}}) {
    *end++ = static_cast<unsigned char>(value);
  }
  put(extents, rank * sizeof *extents);
  put(strides, (rank - 1) * sizeof *strides);
  put(box, rank * sizeof *box);
  put(element_strides, rank * sizeof *element_strides);
  std::memcpy(map, bytes, sizeof bytes);
  return CUDA_SUCCESS;
}

CUresult cuTensorMapReplaceAddress(CUtensorMap* map, void* address) {
  if (reinterpret_cast<uintptr_t>(address) % 16 != 0) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(map, &address, sizeof address);
  return CUDA_SUCCESS;
}

CUresult cuMemAlloc(CUdeviceptr* address, size_t bytes) {
  if (current == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const std::lock_guard<std::mutex> lock(mutex);
  *address = next_address;
  next_address += (bytes + 255) / 256 * 256;
  record("{\"allocate\":" + std::to_string(bytes) + ",\"address\":" + std::to_string(*address) + "}");
  return CUDA_SUCCESS;
}

CUresult cuMemFree(CUdeviceptr address) {
  record("{\"free\":" + std::to_string(address) + "}");
  return CUDA_SUCCESS;
}

CUresult cuMemsetD32Async(CUdeviceptr address, unsigned word, size_t count, CUstream stream) {
  record("{\"set\":" + std::to_string(address) + ",\"word\":" + std::to_string(word) + ",\"count\":" +
         std::to_string(count) + ",\"stream\":" + std::to_string(reinterpret_cast<uintptr_t>(stream)) + "}");
  return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream* stream, unsigned) {
  *stream = reinterpret_cast<CUstream>(0x5000);
  return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream) { return CUDA_SUCCESS; }

CUresult cuStreamSynchronize(CUstream) { return CUDA_SUCCESS; }

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  *status = stream == kCaptured ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  *mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  return CUDA_SUCCESS;
}

}  // extern "C"
