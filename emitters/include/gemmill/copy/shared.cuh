/// Shared-memory addresses, loads from them, ldmatrix and stmatrix.
#pragma once

#include <gemmill/types.cuh>

namespace gemmill {

__device__ inline uint32_t shared_address(void const* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

/// Loads 4, 8 or 16 bytes.
template <class Value>
__device__ inline Value load_shared(uint32_t address) {
  static_assert(sizeof(Value) == 4 || sizeof(Value) == 8 || sizeof(Value) == 16);
  uint32_t words[sizeof(Value) / 4];
  if constexpr (sizeof(Value) == 4) {
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(words[0]) : "r"(address));
  } else if constexpr (sizeof(Value) == 8) {
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(words[0]), "=r"(words[1]) : "r"(address));
  } else {
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address));
  }
  return reinterpret_cast<Value const&>(words);
}

/// Loads four 8 x 8 matrices of 16-bit elements (PTX ISA, "ldmatrix"). Lanes 8i to 8i + 7 pass the addresses of the
/// rows of matrix i.
template <bool Transposed>
__device__ inline void load_matrices(uint32_t row, uint32_t (&words)[4]) {
  if constexpr (Transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(row));
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(row));
  }
}

/// Stores four such matrices (PTX ISA, "stmatrix": sm_90 and later).
template <bool Transposed>
__device__ inline void store_matrices(void* row, uint32_t const (&words)[4]) {
  if constexpr (Transposed) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)),
                 "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
  } else {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)),
                 "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
  }
}

/// Stores one matrix; lanes 0 to 7 pass the addresses.
template <bool Transposed>
__device__ inline void store_matrices(void* row, uint32_t const (&words)[1]) {
  if constexpr (Transposed) {
    asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(shared_address(row)), "r"(words[0])
                 : "memory");
  } else {
    asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};" ::"r"(shared_address(row)), "r"(words[0])
                 : "memory");
  }
}

/// Stores two matrices; lanes 0 to 15 pass the addresses.
template <bool Transposed>
__device__ inline void store_matrices(void* row, uint32_t const (&words)[2]) {
  if constexpr (Transposed) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(shared_address(row)),
                 "r"(words[0]), "r"(words[1])
                 : "memory");
  } else {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(shared_address(row)), "r"(words[0]),
                 "r"(words[1])
                 : "memory");
  }
}

}  // namespace gemmill
