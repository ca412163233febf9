#include "files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "error.h"

namespace gemmill {

File::File(const std::string& path) {
  handle_ = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (handle_ < 0) throw Invalid(std::strerror(errno));
  struct stat status {};
  const bool known = fstat(handle_, &status) == 0;
  if (!known || !S_ISREG(status.st_mode)) {
    const std::string why = known ? "it is not a regular file" : std::strerror(errno);
    close(handle_);
    throw Invalid(why);
  }
  bytes_ = static_cast<uint64_t>(status.st_size);
  writable_by_all_ = (status.st_mode & S_IWOTH) != 0;
}

File::~File() { close(handle_); }

std::string File::read(uint64_t offset, uint64_t bytes) const {
  const uint64_t available = offset < bytes_ ? std::min(bytes, bytes_ - offset) : 0;
  std::string data(available, '\0');
  size_t done = 0;
  while (done < data.size()) {
    const ssize_t got = pread(handle_, data.data() + done, data.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw Invalid(std::strerror(errno));
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  data.resize(done);
  return data;
}

bool exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

}  // namespace gemmill
