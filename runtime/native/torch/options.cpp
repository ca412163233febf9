#include "options.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <stdexcept>

#include "gemmill/gemmill.h"

namespace gemmill_torch {
namespace {

/// The text between the quotes of a Python literal, which has no escapes in names of kernels.
std::string unquoted(const std::string& literal) {
  return literal.size() < 2 ? literal : literal.substr(1, literal.size() - 2);
}

}  // namespace

Options read_options(const std::string& text) {
  Options options;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ';');) {
    const std::string name = part.substr(0, part.find('='));
    const std::string value = part.substr(std::min(part.size(), name.size() + 1));
    if (part == "tf32=True" || part == "precision='tf32'") {
      options.flags |= GEMMILL_TF32;
    } else if (part == "fast_accumulation=True") {
      options.flags |= GEMMILL_FAST_ACCUMULATION;
    } else if (name == "kernel") {
      options.kernel = unquoted(value);
    } else if (name == "slices") {
      options.slices = std::atoi(value.c_str());
    } else if (name == "expected_rows") {
      options.expected_rows = std::atoll(value.c_str());
    } else if (value != "False" && name != "deterministic") {  // sums of products are always deterministic
      throw std::runtime_error("the option " + part +
                               " needs Python; libgemmill supports tf32, fast_accumulation, kernel, slices and "
                               "expected_rows: compile the model without " + name);
    }
  }
  return options;
}

}  // namespace gemmill_torch
