/// Strict JSON for untrusted files: any input gives a value or Invalid, whose message names the place of the fault.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gemmill {

/// Largest integer, so that the sum of two of them can be an offset in a file.
constexpr int64_t kLargest = int64_t{1} << 62;

/// Names of the members of a mapping.
using Names = std::initializer_list<const char*>;

/// A mapping at a place of a document, which must outlive it.
class Row {
 public:
  /// `members`: those that it must have. Others are faults unless it is `open`.
  Row(const nlohmann::json& value, std::string place, Names members, bool open = false);

  size_t size() const;
  bool has(const char* name) const;
  bool is_null(const char* name) const;
  /// A whole number from `least` to `most`.
  int64_t whole(const char* name, int64_t least = 0, int64_t most = kLargest) const;
  bool flag(const char* name) const;
  /// A printable text.
  const std::string& text(const char* name) const;
  /// A text that is one of some words.
  const std::string& word(const char* name, Names words) const;
  /// Two whole numbers.
  std::pair<int64_t, int64_t> pair(const char* name, int64_t least, int64_t most) const;
  Row row(const char* name, Names members, bool open = false) const;
  /// A list of at most `most` mappings.
  std::vector<Row> rows(const char* name, size_t most, Names members) const;
  /// A list of whole numbers.
  std::vector<int64_t> wholes(const char* name, int64_t least, int64_t most) const;
  /// How many numbers a list has, all of which must be in a range.
  size_t numbers_within(const char* name, double least, double most) const;
  /// A mapping of at most `most` names to whole numbers.
  std::map<std::string, int64_t> numbers(const char* name, size_t most) const;
  std::string place(const char* name) const;

 private:
  const nlohmann::json& member(const char* name) const;

  const nlohmann::json* value_;
  std::string place_;
};

/// A JSON text in UTF-8, parsed. The caller limits its size.
class Document {
 public:
  explicit Document(std::string_view text);
  ~Document();
  Row row(Names members, bool open = false) const;

 private:
  std::unique_ptr<nlohmann::json> value_;
};

}  // namespace gemmill
