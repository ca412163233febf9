#include "epilogue.h"

#include <algorithm>
#include <array>
#include <utility>

#include "error.h"

namespace gemmill {
namespace {

constexpr size_t kMostBytes = 4096;
constexpr std::array<std::pair<Kind, const char*>, 4> kIndices = {
    {{Kind::kScalar, ""}, {Kind::kRow, "[m]"}, {Kind::kColumn, "[n]"}, {Kind::kBatch, "[batch]"}}};

[[noreturn]] void refuse(const std::string& text, const std::string& why) {
  throw Error(GEMMILL_UNSUPPORTED, "the epilogue '" + text.substr(0, 200) + "' " + why);
}

bool is_one_of(const std::string& word, std::initializer_list<const char*> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

bool is_digit(char c) { return '0' <= c && c <= '9'; }
bool starts_name(char c) { return ('a' <= c && c <= 'z') || c == '_'; }
bool continues_name(char c) { return starts_name(c) || is_digit(c); }

/// Reads a text from left to right.
struct Reader {
  const std::string& text;
  size_t at = 0;

  bool is_at_end() const { return at >= text.size(); }
  char next() const { return is_at_end() ? '\0' : text[at]; }
  std::string name() {
    const size_t start = at;
    while (continues_name(next())) ++at;
    return text.substr(start, at - start);
  }
  /// A number with its exponent, such as 1e-05.
  std::string number() {
    const size_t start = at;
    while (is_digit(next()) || next() == '.' || next() == 'e' ||
           ((next() == '-' || next() == '+') && text[at - 1] == 'e'))
      ++at;
    return text.substr(start, at - start);
  }
  /// The text up to a closing bracket, if an opening one is next.
  std::string index() {
    if (next() != '[') return "";
    const size_t start = at;
    while (!is_at_end() && text[at] != ']') ++at;
    at = std::min(at + 1, text.size());
    return text.substr(start, at - start);
  }
};

Kind kind_of(const std::string& index, const std::string& name, const std::string& text) {
  for (const auto& [kind, word] : kIndices) {
    if (index == word) return kind;
  }
  refuse(text, "has " + name + index +
                   "; libgemmill supports operands with one value for each row [m], column [n] or "
                   "matrix [batch], and scalars: use gemmill from Python");
}

}  // namespace

Epilogue::Epilogue(const std::string& text) {
  if (text == "linear") return;
  if (text.size() > kMostBytes) refuse(text, "has more than 4096 bytes");
  Reader reader{text};
  std::vector<std::string> locals;
  std::string passed;
  bool starts_statement = true;
  while (!reader.is_at_end()) {
    if (is_digit(reader.next())) {
      passed += reader.number();
      continue;
    }
    if (!starts_name(reader.next())) {
      starts_statement = starts_statement ? reader.next() == ' ' : reader.next() == ';';
      passed += text[reader.at++];
      continue;
    }
    const std::string name = reader.name();
    if (starts_statement) {
      starts_statement = false;
      if (reader.next() != ' ') refuse(text, "writes " + name + " besides d, which libgemmill does not support");
      locals.push_back(name);
      passed += name;
      continue;
    }
    if (is_one_of(name, {"gate", "up", "gate8", "up8", "gate_half", "up_half"})) {
      refuse(text, "combines pairs of sums (gate and up), which libgemmill does not support: use gemmill from Python");
    }
    const bool is_local = std::find(locals.begin(), locals.end(), name) != locals.end();
    if (reader.next() == '(' || is_local || is_one_of(name, {"and", "or", "not", "inf", "nan"})) {
      passed += name;
      continue;
    }
    if (is_one_of(name, {"acc", "c", "alpha", "beta"})) {
      given_.push_back(name);
      passed += name;
      continue;
    }
    const Dtype* dtype = dtype_named("f32");
    if (reader.next() == '.') {
      ++reader.at;
      const std::string type = reader.name();
      dtype = dtype_named(type);
      if (dtype == nullptr) refuse(text, "gives " + name + " the type or major " + type + ", which is not supported");
    }
    const Kind kind = kind_of(reader.index(), name, text);
    pieces_.push_back({std::exchange(passed, ""), static_cast<int>(operand_of(name, kind, dtype))});
  }
  pieces_.push_back({passed, -1});
  if (locals.empty() || locals.back() != "d") refuse(text, "must end with d = ...");
  const std::string canonical = this->text();
  if (canonical == "d = alpha * acc" || canonical == "d = alpha * acc + beta * c") *this = Epilogue();
}

size_t Epilogue::operand_of(const std::string& name, Kind kind, const Dtype* dtype) {
  const auto found =
      std::find_if(operands_.begin(), operands_.end(), [&](const EpilogueOperand& x) { return x.name == name; });
  if (found != operands_.end()) {
    if (found->kind == kind && found->dtype == dtype) return static_cast<size_t>(found - operands_.begin());
    throw Error(GEMMILL_OPERAND, "the epilogue has " + name + " with two indices or types: give each operand one");
  }
  operands_.push_back({name, kind, dtype});
  return operands_.size() - 1;
}

bool Epilogue::reads(const std::string& name) const {
  return std::find(given_.begin(), given_.end(), name) != given_.end();
}

Epilogue Epilogue::transposed() const {
  Epilogue result = *this;
  for (EpilogueOperand& x : result.operands_) {
    if (x.kind == Kind::kRow || x.kind == Kind::kColumn) x.kind = x.kind == Kind::kRow ? Kind::kColumn : Kind::kRow;
  }
  return result;
}

std::string Epilogue::text() const {
  if (is_linear()) return "linear";
  std::string text;
  for (const Piece& piece : pieces_) {
    text += piece.text;
    if (piece.operand < 0) continue;
    const EpilogueOperand& x = operands_[static_cast<size_t>(piece.operand)];
    text += x.name + (x.dtype == dtype_named("f32") ? "" : std::string(".") + x.dtype->name);
    for (const auto& [kind, word] : kIndices) text += kind == x.kind ? word : "";
  }
  return text;
}

}  // namespace gemmill
