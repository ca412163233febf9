/// Packs: compiled kernels in one file (runtime/storage/pack.py).
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "artifact.h"
#include "choice_table.h"
#include "files.h"

namespace gemmill {

/// Location of one kernel in a pack.
struct Member {
  std::string name;
  uint64_t offset;
  uint64_t bytes;
  std::string sha256;
};

/// An opened pack. It reads members on demand and checks their checksums; the file stays open.
class Pack {
 public:
  /// Opens a pack and reads its index. `trusted`: as for gemmill_pack_open.
  Pack(const std::string& path, const char* trusted);

  const std::string& path() const { return path_; }
  const std::vector<Member>& members() const { return members_; }
  /// The choice table; null for a pack that was made without problems.
  const ChoiceTable* choices() const { return choices_ ? &*choices_ : nullptr; }
  /// One kernel, read at its first use. Error where the pack has none of this name, or it is damaged.
  std::shared_ptr<const Artifact> get(const std::string& name) const;
  /// Reads every kernel, and keeps none. Error names the first that is damaged.
  void check() const;

 private:
  void read_index(const std::string& text);
  Artifact read(const Member& member) const;

  std::string path_;
  std::unique_ptr<File> file_;
  uint64_t start_ = 0;
  std::vector<Member> members_;
  std::unordered_map<std::string, size_t> places_;
  std::optional<ChoiceTable> choices_;
  mutable std::mutex mutex_;
  mutable std::unordered_map<std::string, std::shared_ptr<const Artifact>> read_;
};

}  // namespace gemmill
