#include "mutated_pack.h"

#include <algorithm>
#include <cstring>

#include "digest.h"

namespace {

using nlohmann::json;

constexpr char kPackMagic[] = "gempack\x01";
constexpr char kArtifactMagic[] = "gemmill\x01";
constexpr size_t kMagicBytes = 8;

size_t below(Random& random, size_t count) { return count == 0 ? 0 : random() % count; }

std::string number(uint64_t value) { return std::string(reinterpret_cast<const char*>(&value), sizeof value); }

uint64_t number_at(const std::string& text, size_t place) {
  uint64_t value;
  std::memcpy(&value, text.data() + place, sizeof value);
  return value;
}

std::string digest_of(const std::string& text) {
  const gemmill::Digest digest = gemmill::sha256(text);
  return std::string(reinterpret_cast<const char*>(digest.data()), digest.size());
}

/// Flips, removes, repeats or inserts some bytes.
void mutate_bytes(std::string& text, Random& random) {
  const size_t place = below(random, text.size());
  const size_t count = 1 + below(random, 1 << below(random, 8));
  switch (below(random, 5)) {
    case 0:
      if (!text.empty()) text[place] = static_cast<char>(text[place] ^ (1 << below(random, 8)));
      break;
    case 1:
      text.resize(place);
      break;
    case 2:
      text.erase(place, count);
      break;
    case 3:
      text.insert(place, text.substr(below(random, text.size() + 1), count));
      break;
    default:
      for (size_t i = place; i < std::min(place + count, text.size()); ++i) text[i] = static_cast<char>(random());
  }
}

json odd_value(Random& random) {
  const std::vector<json> values{nullptr,
                                 true,
                                 0,
                                 1,
                                 -1,
                                 7,
                                 63,
                                 64,
                                 255,
                                 65536,
                                 2147483648ULL,
                                 1ULL << 62,
                                 ~0ULL,
                                 -1.5,
                                 1e300,
                                 "",
                                 "x",
                                 "gemmill_x",
                                 "any",
                                 "s4",
                                 "\x01",
                                 json::array(),
                                 json::object(),
                                 json::array({1, 1}),
                                 json::array({0, 4294967296ULL}),
                                 "\xc3\xa9",
                                 std::string(5000, 'a')};
  return values[below(random, values.size())];
}

/// Replaces, removes or copies a value anywhere in a document.
void mutate_json(json& value, Random& random) {
  if (value.is_structured() && !value.empty() && below(random, 8) != 0) {
    auto item = value.begin();
    std::advance(item, below(random, value.size()));
    if (below(random, 16) == 0) {
      value.erase(item);
      return;
    }
    mutate_json(*item, random);
    return;
  }
  if (value.is_object() && below(random, 2) == 0) {
    value["unknown"] = odd_value(random);
  } else if (value.is_array() && !value.empty() && below(random, 2) == 0) {
    value.push_back(value[below(random, value.size())]);
  } else if (value.is_number() && below(random, 2) == 0) {
    value = value.get<int64_t>() + static_cast<int64_t>(below(random, 257)) - 128;
  } else {
    value = odd_value(random);
  }
}

std::string text_of(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

std::string pack_of(const std::string& index, const std::string& members) {
  return kPackMagic + number(index.size()) + digest_of(index) + index + members;
}

}  // namespace

PackParts::PackParts(const std::string& pack) {
  const uint64_t index_bytes = number_at(pack, kMagicBytes);
  index_ = json::parse(pack.substr(48, index_bytes));
  for (const json& member : index_["members"]) {
    const std::string data = pack.substr(48 + index_bytes + member["offset"].get<size_t>(), member["bytes"]);
    const uint64_t header_bytes = number_at(data, kMagicBytes);
    kernels_.push_back({json::parse(data.substr(56, header_bytes)), "", data.substr(56 + header_bytes)});
  }
}

std::string PackParts::file() const {
  json index = index_;
  std::string members;
  for (size_t i = 0; i < kernels_.size(); ++i) {
    const std::string header = kernels_[i].text.empty() ? text_of(kernels_[i].header) : kernels_[i].text;
    const std::string content = header + kernels_[i].body;
    const std::string data =
        kArtifactMagic + number(header.size()) + number(kernels_[i].body.size()) + digest_of(content) + content;
    index["members"][i]["offset"] = members.size();
    index["members"][i]["bytes"] = data.size();
    index["members"][i]["sha256"] = gemmill::hex(gemmill::sha256(data));
    members += data;
  }
  return pack_of(text_of(index), members);
}

std::string PackParts::mutated(Random& random, bool& keeps_code) const {
  PackParts parts = *this;
  Kernel& kernel = parts.kernels_[below(random, kernels_.size())];
  const size_t change = below(random, 6);
  keeps_code = change < 2 || change == 3;
  switch (change) {
    case 0:
      mutate_json(kernel.header, random);
      return parts.file();
    case 1:
      kernel.text = text_of(kernel.header);
      mutate_bytes(kernel.text, random);
      return parts.file();
    case 2:
      mutate_bytes(kernel.body, random);
      return parts.file();
    case 3: {  // the index, with its checksum
      const std::string file = parts.file();
      std::string text = file.substr(48, number_at(file, kMagicBytes));
      const std::string members = file.substr(48 + text.size());
      if (below(random, 2) == 0) {
        mutate_bytes(text, random);
      } else {
        json index = json::parse(text);
        mutate_json(index, random);
        text = text_of(index);
      }
      return pack_of(text, members);
    }
    case 4: {  // the lengths of a prefix
      std::string file = parts.file();
      const size_t starts[] = {0, 48 + static_cast<size_t>(number_at(file, kMagicBytes))};
      const size_t at = starts[below(random, 2)] + kMagicBytes * (1 + below(random, 2));
      const std::string length = number(random() >> below(random, 64));
      return file.replace(at, length.size(), length);
    }
    default: {
      std::string file = parts.file();
      mutate_bytes(file, random);
      return file;
    }
  }
}
