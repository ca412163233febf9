#include "strict_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "error.h"

namespace gemmill {
namespace {

using Json = nlohmann::json;

constexpr int kMostDepth = 64;
constexpr size_t kMostShown = 80;

[[noreturn]] void refuse(const std::string& place, const Json& value, const std::string& expected) {
  const std::string shown = value.is_array()    ? "a list"
                            : value.is_object() ? "a mapping"
                                                : value.dump(-1, ' ', true, Json::error_handler_t::replace);
  throw Invalid(place + " is " + shown.substr(0, kMostShown) + "; it must be " + expected);
}

int64_t whole_number(const Json& value, const std::string& place, int64_t least, int64_t most) {
  const bool fits = value.is_number_unsigned() ? value.get<uint64_t>() <= kLargest : value.is_number_integer();
  const int64_t number = fits ? value.get<int64_t>() : -1;
  if (!fits || number < least || number > most) {
    refuse(place, value, "a whole number from " + std::to_string(least) + " to " + std::to_string(most));
  }
  return number;
}

}  // namespace

Row::Row(const Json& value, std::string place, Names members, bool open) : value_(&value), place_(std::move(place)) {
  if (!value.is_object()) refuse(place_, value, "a mapping");
  for (const char* name : members) {
    if (!value.contains(name)) throw Invalid(place_ + ": missing '" + name + "'");
  }
  if (open || value.size() == members.size()) return;
  for (const auto& item : value.items()) {
    const bool known = std::any_of(members.begin(), members.end(), [&](const char* x) { return item.key() == x; });
    if (!known) throw Invalid(place_ + ": unknown member '" + item.key().substr(0, kMostShown) + "'");
  }
}

std::string Row::place(const char* name) const { return place_ + "." + name; }

const Json& Row::member(const char* name) const {
  const auto found = value_->find(name);
  if (found == value_->end()) throw Invalid(place_ + ": missing '" + name + "'");
  return *found;
}

size_t Row::size() const { return value_->size(); }

bool Row::has(const char* name) const { return value_->contains(name); }

bool Row::is_null(const char* name) const { return member(name).is_null(); }

int64_t Row::whole(const char* name, int64_t least, int64_t most) const {
  return whole_number(member(name), place(name), least, most);
}

bool Row::flag(const char* name) const {
  const Json& value = member(name);
  if (!value.is_boolean()) refuse(place(name), value, "true or false");
  return value.get<bool>();
}

const std::string& Row::text(const char* name) const {
  const Json& value = member(name);
  if (!value.is_string()) refuse(place(name), value, "a printable text");
  const auto& text = value.get_ref<const std::string&>();
  for (const unsigned char byte : text) {
    if (byte < 0x20 || byte == 0x7f) refuse(place(name), value, "a printable text");
  }
  return text;
}

const std::string& Row::word(const char* name, Names words) const {
  const std::string& value = text(name);
  std::string allowed;
  for (const char* word : words) {
    if (value == word) return value;
    allowed += (allowed.empty() ? "'" : ", '") + std::string(word) + "'";
  }
  refuse(place(name), member(name), "one of " + allowed);
}

std::pair<int64_t, int64_t> Row::pair(const char* name, int64_t least, int64_t most) const {
  const Json& items = member(name);
  if (!items.is_array() || items.size() != 2) refuse(place(name), items, "two whole numbers");
  return {whole_number(items[0], place(name) + "[0]", least, most),
          whole_number(items[1], place(name) + "[1]", least, most)};
}

Row Row::row(const char* name, Names members, bool open) const { return Row(member(name), place(name), members, open); }

std::vector<Row> Row::rows(const char* name, size_t most, Names members) const {
  const Json& items = member(name);
  if (!items.is_array() || items.size() > most) {
    refuse(place(name), items, "a list of at most " + std::to_string(most) + " mappings");
  }
  std::vector<Row> rows;
  rows.reserve(items.size());
  for (const Json& item : items) {
    rows.emplace_back(item, place(name) + "[" + std::to_string(rows.size()) + "]", members);
  }
  return rows;
}

std::vector<int64_t> Row::wholes(const char* name, int64_t least, int64_t most) const {
  const Json& items = member(name);
  if (!items.is_array()) refuse(place(name), items, "a list");
  std::vector<int64_t> values;
  values.reserve(items.size());
  for (const Json& item : items) values.push_back(whole_number(item, place(name), least, most));
  return values;
}

size_t Row::numbers_within(const char* name, double least, double most) const {
  const Json& items = member(name);
  if (!items.is_array()) refuse(place(name), items, "a list");
  for (const Json& item : items) {
    if (!item.is_number() || !(least <= item.get<double>() && item.get<double>() <= most)) {
      refuse(place(name), item, "numbers from " + std::to_string(least) + " to " + std::to_string(most));
    }
  }
  return items.size();
}

std::map<std::string, int64_t> Row::numbers(const char* name, size_t most) const {
  const Json& items = member(name);
  if (!items.is_object() || items.size() > most) {
    refuse(place(name), items, "a mapping of at most " + std::to_string(most) + " names");
  }
  std::map<std::string, int64_t> numbers;
  for (const auto& item : items.items()) {
    const std::string at = place(name) + "." + item.key().substr(0, kMostShown);
    numbers[item.key()] = whole_number(item.value(), at, 0, kLargest);
  }
  return numbers;
}

Document::Document(std::string_view text) {
  const auto limit_depth = [](int depth, Json::parse_event_t, Json&) {
    if (depth > kMostDepth) throw Invalid("lists and mappings are nested too deeply");
    return true;
  };
  try {
    value_ = std::make_unique<Json>(Json::parse(text.begin(), text.end(), limit_depth));
  } catch (const Json::exception& error) {
    throw Invalid(std::string("it is not JSON: ") + error.what());
  }
}

Document::~Document() = default;

Row Document::row(Names members, bool open) const { return Row(*value_, "it", members, open); }

}  // namespace gemmill
