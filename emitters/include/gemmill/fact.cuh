/// What a kernel exports for the host, which computes it as well, to compare: by name, wherever it stands.
#pragma once

#include <cuda/std/cstdint>

namespace gemmill {

/// A fact: the CRC-32 of its name, as zlib has it, and its value (emitters/emit.py).
struct Fact {
  uint32_t name, value;
};

constexpr Fact fact(char const* name, uint32_t value) {
  uint32_t crc = ~0u;
  for (; *name != 0; ++name) {
    crc ^= static_cast<unsigned char>(*name);
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? crc >> 1 ^ 0xEDB88320u : crc >> 1;
  }
  return {~crc, value};
}

}  // namespace gemmill
