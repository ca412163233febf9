/// A compiled kernel, and its file format (runtime/storage/artifact.py).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "launch_spec.h"

namespace gemmill {

/// Largest artifact, in bytes.
constexpr uint64_t kMaxArtifactBytes = 32 << 20;

/// One operand of a config; for C and D without a scale.
struct OperandConfig {
  const Dtype* dtype;
  std::string major;
  int64_t align;
  std::string scale = "none";
};

/// What decides which problems a kernel supports.
struct Config {
  std::string arch;
  OperandConfig a;
  OperandConfig b;
  std::optional<OperandConfig> c;
  OperandConfig d;
  const Dtype* accumulator;
  int64_t promote;
  std::string schedule;
  std::string decomposition;
  std::string batching;
  std::string rows;
  std::string symmetry;
  std::string epilogue;

  /// Whether it loads operands by TMA: the WGMMA family.
  bool uses_tma() const { return schedule == "cooperative" || schedule == "pingpong"; }
};

struct Artifact {
  /// Kernel name; for an edited kernel followed by the digest of its source.
  std::string name;
  Config config;
  LaunchSpec launch;
  /// Machine code: an ELF file.
  std::string cubin;
  /// SHA-256 of its file, in hex.
  std::string digest;

  /// Reads an artifact. Invalid: it is truncated, damaged, of another schema, or not an artifact.
  static Artifact read(std::string_view data);
};

}  // namespace gemmill
