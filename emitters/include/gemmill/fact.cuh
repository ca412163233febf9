/// Facts: values that a kernel exports and the host computes too, so that the compiler can compare both by name.
#pragma once

#include <cuda/std/cstdint>

namespace gemmill {

/// A named value. `name` is the CRC-32 of the fact's name, as zlib computes it (emitters/emit.py).
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
