/// Packs that are broken on purpose, for the fuzz.
#pragma once

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

using Random = std::mt19937_64;

/// A pack in its parts: the JSON of the index, and of each kernel the JSON of the header and the compressed cubin.
class PackParts {
 public:
  explicit PackParts(const std::string& pack);
  /// The file of the parts, whose checksums and lengths are right: only what was changed is wrong.
  std::string file() const;
  /// The file after one random change, of which some leave checksums wrong. `keeps_code`: whether the machine code is
  /// as it was, so that a driver may load it.
  std::string mutated(Random& random, bool& keeps_code) const;

 private:
  struct Kernel {
    nlohmann::json header;
    std::string text;  // that replaces the header where it is not empty
    std::string body;
  };
  nlohmann::json index_;
  std::vector<Kernel> kernels_;
};
