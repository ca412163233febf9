#include "trusted_keys.h"

#include <algorithm>
#include <sstream>

#include "digest.h"
#include "error.h"
#include "files.h"
#include "strict_json.h"

namespace gemmill {
namespace {

constexpr char kPrefix[] = "ed25519:";
constexpr char kPackType[] = "gemmill.pack/1";
constexpr size_t kMostSignatures = 8;
constexpr uint64_t kMostSealedBytes = 4 << 20;
constexpr uint64_t kMostKeyFileBytes = 1 << 20;
constexpr size_t kKeyBytes = 32;
constexpr size_t kIdDigits = 16;
/// Public keys, without the sign bit, for which anybody can make signatures: points of order 8 or less.
constexpr const char* kSmallOrder[] = {
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0100000000000000000000000000000000000000000000000000000000000000",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
};

[[noreturn]] void refuse(const std::string& message) { throw Error(GEMMILL_TRUST, message); }

std::string stripped(const std::string& text) {
  const auto first = text.find_first_not_of(" \t\r\n");
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

std::string id_of(const std::string& key) { return hex(sha256(key)).substr(0, kIdDigits); }

bool is_id(const std::string& text) {
  return text.size() == kIdDigits && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

std::string read_key(const std::string& text) {
  std::string raw;
  if (text.rfind(kPrefix, 0) == 0) {
    try {
      raw = from_base64(std::string_view(text).substr(sizeof kPrefix - 1));
    } catch (const Invalid&) {
      raw.clear();
    }
  }
  if (raw.size() != kKeyBytes) {
    refuse("'" + text.substr(0, 100) +
           "' is not a public key; expected ed25519:BASE64 with 32 bytes, as `gemmill key "
           "show` prints");
  }
  std::string unsigned_key = raw;
  unsigned_key.back() = static_cast<char>(unsigned_key.back() & 0x7f);
  const std::string digits = hex(reinterpret_cast<const unsigned char*>(unsigned_key.data()), kKeyBytes);
  if (std::find(std::begin(kSmallOrder), std::end(kSmallOrder), digits) != std::end(kSmallOrder)) {
    refuse("'" + text + "' is a public key for which anybody can make signatures; create a key with `gemmill key new`");
  }
  return raw;
}

/// The signed message: lengths first, so that no two pairs of type and payload give the same one.
std::string message_of(const std::string& payload) {
  const std::string type = kPackType;
  return "gemmill " + std::to_string(type.size()) + " " + type + " " + std::to_string(payload.size()) + " " + payload;
}

}  // namespace

TrustedKeys TrustedKeys::read(const std::string& text) {
  TrustedKeys keys;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    part = stripped(part);
    if (part.empty()) continue;
    if (part.rfind(kPrefix, 0) == 0 || part.rfind("revoked ", 0) == 0) {
      keys.add_line(part);
    } else if (part[0] == '/') {
      keys.add_file(part);
    } else {
      refuse("'" + part.substr(0, 100) + "' is neither a key (ed25519:BASE64) nor an absolute path of a file of keys");
    }
  }
  if (keys.keys_.empty()) refuse("'" + text.substr(0, 100) + "' has no key: add at least one public key");
  return keys;
}

void TrustedKeys::add_line(const std::string& line) {
  const std::string content = stripped(line.substr(0, line.find('#')));
  if (content.empty()) return;
  const auto space = content.find(' ');
  const std::string first = content.substr(0, space);
  if (first != "revoked") {
    keys_.push_back(read_key(first));
    return;
  }
  const std::string id = space == std::string::npos ? "" : stripped(content.substr(space));
  if (!is_id(id)) {
    refuse("revoked '" + id.substr(0, 40) + "': expected the id of a key, 16 hex digits as `gemmill key show` prints");
  }
  revoked_.insert(id);
}

void TrustedKeys::add_file(const std::string& path) {
  try {
    const File file(path);
    if (file.is_writable_by_all()) refuse(path + ": anybody may add keys to it; run chmod o-w " + path);
    if (file.bytes() > kMostKeyFileBytes) refuse(path + ": has more than the 1,048,576 bytes it may have");
    std::string text = file.read(0, file.bytes());
    std::replace(text.begin(), text.end(), '\r', '\n');  // a revocation may not be part of a comment before it
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) add_line(line);
  } catch (const Invalid& error) {
    refuse(path + ": " + error.what());
  }
}

std::string TrustedKeys::opened(const std::string& data) const {
  const Document document(data);
  const Row envelope = document.row({"type", "payload", "signatures"});
  const std::string payload = from_base64(envelope.text("payload"));
  if (envelope.text("type") != kPackType) {
    throw Invalid("it is signed as '" + envelope.text("type").substr(0, 80) + "'; it must be '" + kPackType + "'");
  }
  std::string refused = "it is unsigned";
  for (const Row& row : envelope.rows("signatures", kMostSignatures, {"key", "signature"})) {
    const std::string id = row.text("key");
    if (revoked_.count(id) != 0) {
      refused = "signed by the key " + id + ", which is revoked";
      continue;
    }
    const auto key = std::find_if(keys_.begin(), keys_.end(), [&](const std::string& x) { return id_of(x) == id; });
    if (key == keys_.end()) {
      refused = "signed by the key '" + id.substr(0, 40) + "', which is not trusted";
    } else if (verifies(*key, from_base64(row.text("signature")), message_of(payload))) {
      return payload;
    } else {
      refused = "the signature by the key " + id + " is not valid for this content";
    }
  }
  throw Invalid(refused);
}

void TrustedKeys::check_signature(const std::string& path, const std::string& digest, uint64_t bytes) const {
  const std::string place = path + ".sig";
  if (!exists(place)) {
    refuse(path + ": it is unsigned (there is no " + place +
           "), but trusted keys require a signature: sign it with "
           "`gemmill pack sign`");
  }
  try {
    const File file(place);
    if (file.bytes() > kMostSealedBytes) throw Invalid("it has more than 4,194,304 bytes");
    const Document payload(opened(file.read(0, file.bytes())));
    const Row facts = payload.row({"name", "digest", "bytes", "gemmill"});
    if (facts.text("digest") != digest || facts.whole("bytes") != static_cast<int64_t>(bytes)) {
      throw Invalid("the pack differs from the one that was signed as " + facts.text("name"));
    }
  } catch (const Invalid& error) {
    refuse(place + ": " + error.what());
  }
}

}  // namespace gemmill
