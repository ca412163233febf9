/// The options of an operator.
#pragma once

#include <cstdint>
#include <string>

namespace gemmill_torch {

/// Those that libgemmill has, as members of gemmill_gemm.
struct Options {
  uint32_t flags = 0;
  int32_t slices = 0;
  int64_t expected_rows = 0;
  /// Empty: the kernel that the pack's choice table picks.
  std::string kernel;
};

/// Reads a text such as "tf32=True;kernel='sm90a_…'" (runtime/torch/option_text.py). Throws std::runtime_error for an
/// option that libgemmill lacks.
Options read_options(const std::string& text);

}  // namespace gemmill_torch
