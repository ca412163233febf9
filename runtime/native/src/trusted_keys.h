/// Public keys, and the signature of a pack (runtime/storage/trust/).
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace gemmill {

/// The keys whose signatures count.
class TrustedKeys {
 public:
  /// Parses keys and absolute paths of files of keys, separated by commas. Error: a key or file is invalid, or there is
  /// no key.
  static TrustedKeys read(const std::string& text);

  /// Checks that one of the keys signed a pack in PATH.sig; Error where none did.
  void check_signature(const std::string& path, const std::string& digest, uint64_t bytes) const;

 private:
  void add_line(const std::string& line);
  void add_file(const std::string& path);
  std::string opened(const std::string& envelope) const;

  std::vector<std::string> keys_;
  std::set<std::string> revoked_;
};

}  // namespace gemmill
