/// Errors inside the library: a status and a sentence. The C functions turn them into both.
#pragma once

#include <stdexcept>
#include <string>

#include "gemmill/gemmill.h"

namespace gemmill {

class Error : public std::runtime_error {
 public:
  Error(gemmill_status status, const std::string& message) : std::runtime_error(message), status_(status) {}
  gemmill_status status() const { return status_; }

 private:
  gemmill_status status_;
};

/// A value of a file that has a wrong type, range or form. Its reader turns it into an Error that names the file.
class Invalid : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace gemmill
