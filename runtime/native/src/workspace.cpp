#include "workspace.h"

#include <map>
#include <memory>
#include <thread>
#include <tuple>

#include "error.h"

namespace gemmill {
namespace {

constexpr uint64_t kGranule = 2 << 20;
constexpr uint64_t kFlagsAlign = 256;
constexpr uintptr_t kPerThreadStream = 2;

uint64_t align_up(uint64_t bytes, uint64_t to) { return (bytes + to - 1) / to * to; }

/// Lets this thread allocate memory while any stream is being captured.
class RelaxedCapture {
 public:
  RelaxedCapture() { check(driver().exchange_capture_mode(&mode_), "relaxing the capture mode"); }
  ~RelaxedCapture() { driver().exchange_capture_mode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  int mode_ = kRelaxedCapture;
};

void allocate(uint64_t& address, uint64_t& has, uint64_t bytes, const std::string& what) {
  if (address != 0) check(driver().memory_free(address), "freeing a workspace");
  address = has = 0;
  bytes = align_up(bytes, kGranule);
  uint64_t made = 0;
  const Status status = driver().memory_allocate(&made, bytes);
  if (status == kOutOfMemory) {
    throw Error(GEMMILL_DEVICE, what + ": " + std::to_string(bytes) +
                                    " bytes of GPU memory for partial sums are not available: use a kernel with fewer "
                                    "slices, or free memory");
  }
  check(status, "allocating a workspace of " + std::to_string(bytes) + " bytes");
  address = made;
  has = bytes;
}

/// Sets a buffer to zeros on a new stream, since the legacy stream may not be used during a capture.
void clear(uint64_t address, uint64_t bytes) {
  Stream stream = nullptr;
  check(driver().stream_create(&stream, kNonBlocking), "creating a stream");
  const Status set = driver().memory_set(address, 0, bytes / 4, stream);
  const Status done = set != 0 ? set : driver().stream_synchronize(stream);
  driver().stream_destroy(stream);
  check(done, "clearing flags");
}

}  // namespace

uint64_t WorkspaceSize::flags_offset() const { return align_up(buffer, kFlagsAlign); }

uint64_t WorkspaceSize::lent_bytes() const { return is_empty() ? 0 : flags_offset() + flags; }

void Workspace::reserve(const WorkspaceSize& needed, const Device& device, Stream stream, const std::string& what) {
  if (needed.buffer <= has_.buffer && needed.flags <= has_.flags) return;
  const Current current(device);
  const RelaxedCapture relaxed;
  if (has_.buffer != 0) check(driver().stream_synchronize(stream), "waiting for work on a stream");
  if (needed.buffer > has_.buffer) allocate(buffer, has_.buffer, needed.buffer, what);
  if (needed.flags > has_.flags) {
    uint64_t bytes = 0;
    has_.flags = 0;
    allocate(flags, bytes, needed.flags, what);
    clear(flags, bytes);
    has_.flags = bytes;
  }
}

Workspace& workspace_of(const Device& device, Stream stream) {
  static std::mutex mutex;
  static std::map<std::tuple<int, Stream, std::thread::id>, std::unique_ptr<Workspace>> workspaces;
  const bool is_per_thread = reinterpret_cast<uintptr_t>(stream) == kPerThreadStream;
  const auto thread = is_per_thread ? std::this_thread::get_id() : std::thread::id();
  const std::lock_guard<std::mutex> lock(mutex);
  auto& workspace = workspaces[{device.ordinal, stream, thread}];
  if (workspace == nullptr) workspace = std::make_unique<Workspace>();
  return *workspace;
}

bool is_capturing(const Device& device, Stream stream) {
  int capturing = 0;
  check(in_context(device, [&] { return driver().stream_is_capturing(stream, &capturing); }),
        "reading whether a stream is captured");
  return capturing != 0;
}

}  // namespace gemmill
