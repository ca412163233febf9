/// Checked reads of regular files.
#pragma once

#include <cstdint>
#include <string>

namespace gemmill {

/// A regular file that is open for reading. Errors are Invalid, without the name of the file.
class File {
 public:
  explicit File(const std::string& path);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  uint64_t bytes() const { return bytes_; }
  /// Whether everybody may write to it.
  bool is_writable_by_all() const { return writable_by_all_; }
  /// The bytes at an offset: fewer where the file ends before.
  std::string read(uint64_t offset, uint64_t bytes) const;

 private:
  int handle_ = -1;
  uint64_t bytes_ = 0;
  bool writable_by_all_ = false;
};

/// Whether a file exists.
bool exists(const std::string& path);

}  // namespace gemmill
