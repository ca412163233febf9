/// Shared memory's addresses, and 8 x 8 matrices of 16-bit elements between it and a warp's registers.
#pragma once

#include <gemmill/types.cuh>

namespace gemmill {

__device__ inline uint32_t shared_address(void const* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

/// Four matrices (PTX ISA, "ldmatrix"); lanes 8i to 8i + 7 give the addresses of the rows of matrix i.
template <bool Transposed>
__device__ inline void load_matrices(void const* row, uint32_t (&words)[4]) {
  if constexpr (Transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(shared_address(row)));
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(shared_address(row)));
  }
}

/// The other way round (PTX ISA, "stmatrix": sm_90 and later).
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

/// Two matrices, of lanes 0 to 15.
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
