#include "pack.h"

#include <cstdlib>
#include <cstring>
#include <optional>

#include "digest.h"
#include "error.h"
#include "strict_json.h"
#include "trusted_keys.h"

namespace gemmill {
namespace {

constexpr std::string_view kMagic("gempack\x01", 8);
constexpr uint64_t kMaxPackBytes = uint64_t{16} << 30;
constexpr uint64_t kMaxIndexBytes = 32 << 20;
constexpr size_t kMaxMembers = kMaxIndexBytes;  // the bytes of the index limit them

/// Magic, bytes of the index, SHA-256 of the index.
struct Prefix {
  char magic[8];
  uint64_t index_bytes;
  unsigned char digest[32];
};
static_assert(sizeof(Prefix) == 48);

[[noreturn]] void refuse(const std::string& message) { throw Error(GEMMILL_PACK, message); }

std::unique_ptr<File> opened(const std::string& path) {
  try {
    auto file = std::make_unique<File>(path);
    if (file->bytes() > kMaxPackBytes) throw Invalid("it has more bytes than a pack may have");
    return file;
  } catch (const Invalid& error) {
    refuse(path + ": " + error.what() + (exists(path) ? "" : "; create one with `gemmill pack make`"));
  }
}

/// The keys that a caller passes, or those of the environment, or none.
std::optional<TrustedKeys> keys_of(const char* given) {
  const char* text = given != nullptr ? given : std::getenv("GEMMILL_TRUSTED_KEYS");
  if (text == nullptr) return std::nullopt;
  try {
    return TrustedKeys::read(text);
  } catch (const Error& error) {
    throw Error(error.status(),
                std::string(given != nullptr ? "trusted_keys: " : "GEMMILL_TRUSTED_KEYS: ") + error.what());
  }
}

}  // namespace

Pack::Pack(const std::string& path, const char* trusted) : path_(path) {
  const std::optional<TrustedKeys> keys = keys_of(trusted);
  file_ = opened(path);
  Prefix prefix;
  std::string index;
  try {
    const std::string head = file_->read(0, sizeof prefix);
    if (head.size() != sizeof prefix || head.compare(0, kMagic.size(), kMagic) != 0) {
      refuse(path + ": not a pack of this version of gemmill; create one with `gemmill pack make`");
    }
    std::memcpy(&prefix, head.data(), sizeof prefix);
    if (prefix.index_bytes > kMaxIndexBytes) {
      refuse(path + ": its index has " + std::to_string(prefix.index_bytes) + " bytes; the limit is " +
             std::to_string(kMaxIndexBytes));
    }
    index = file_->read(sizeof prefix, prefix.index_bytes);
  } catch (const Invalid& error) {
    refuse(path + ": " + error.what());
  }
  if (index.size() != prefix.index_bytes) {
    refuse(path + ": truncated: the index has " + std::to_string(index.size()) + " of " +
           std::to_string(prefix.index_bytes) + " bytes");
  }
  if (std::memcmp(sha256(index).data(), prefix.digest, sizeof prefix.digest) != 0) {
    refuse(path + ": the index is damaged (checksum mismatch)");
  }
  if (keys) keys->check_signature(path, hex(prefix.digest, sizeof prefix.digest), file_->bytes());
  start_ = sizeof prefix + prefix.index_bytes;
  try {
    read_index(index);
  } catch (const Invalid& error) {
    refuse(path + ": the index is damaged, or written by another version of gemmill: " + error.what());
  }
}

void Pack::read_index(const std::string& text) {
  const Document document(text);
  const Row index = document.row({"gemmill", "signature", "members", "decisions"}, true);
  if (index.size() != 4 + size_t{index.has("choices")}) throw Invalid("it has unknown members");
  if (!index.is_null("signature")) {
    throw Invalid("it has an embedded signature, which this version of gemmill cannot check");
  }
  uint64_t end = 0;
  for (const Row& row : index.rows("members", kMaxMembers, {"name", "offset", "bytes", "sha256"})) {
    const Member member{row.text("name"), static_cast<uint64_t>(row.whole("offset")),
                        static_cast<uint64_t>(row.whole("bytes")), row.text("sha256")};
    if (!places_.emplace(member.name, members_.size()).second || member.offset != end) {
      throw Invalid(row.place("name") +
                    " is that of another member, or the member does not start where the previous one ends");
    }
    if (member.bytes > static_cast<uint64_t>(kLargest) - end) throw Invalid("members have more than 2^62 bytes");
    end += member.bytes;
    members_.push_back(member);
  }
  if (!index.has("choices") || index.is_null("choices")) return;
  const Row table = index.row("choices", {"gpu", "objective", "bits", "formats", "kernels", "layers"});
  choices_ = ChoiceTable::read(table, [&](const std::string& name) { return places_.count(name) != 0; });
}

std::shared_ptr<const Artifact> Pack::get(const std::string& name) const {
  const auto place = places_.find(name);
  if (place == places_.end()) {
    refuse(path_ + ": it has no kernel " + name.substr(0, 400) + " among its " + std::to_string(members_.size()));
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  auto& artifact = read_[name];
  if (artifact == nullptr) artifact = std::make_shared<const Artifact>(read(members_[place->second]));
  return artifact;
}

void Pack::check() const {
  for (const Member& member : members_) read(member);
}

Artifact Pack::read(const Member& member) const {
  if (member.bytes > kMaxArtifactBytes) {
    refuse(path_ + ": " + member.name + " has " + std::to_string(member.bytes) + " bytes; the limit is " +
           std::to_string(kMaxArtifactBytes));
  }
  try {
    const std::string data = file_->read(start_ + member.offset, member.bytes);
    if (data.size() != member.bytes) {
      refuse(path_ + ": truncated: " + member.name + " has " + std::to_string(data.size()) + " of " +
             std::to_string(member.bytes) + " bytes");
    }
    if (hex(sha256(data)) != member.sha256) refuse(path_ + ": " + member.name + " is damaged (checksum mismatch)");
    Artifact artifact = Artifact::read(data);
    artifact.digest = member.sha256;
    if (artifact.name != member.name) refuse(path_ + ": the member " + member.name + " holds " + artifact.name);
    return artifact;
  } catch (const Invalid& error) {
    refuse(path_ + ": " + member.name + ": " + error.what());
  }
}

}  // namespace gemmill
