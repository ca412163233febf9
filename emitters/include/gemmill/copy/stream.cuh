/// Vectors of global memory in registers.
#pragma once

#include <gemmill/types.cuh>

namespace gemmill {

/// `Count` adjacent elements of 8 or 16 bits, packed into words in order.
template <class Element, int Count>
struct alignas(max_of(Count * int(sizeof(Element)), 4)) Vector {
  static constexpr int kBytes = Count * int(sizeof(Element));
  static_assert(kBytes == 2 || kBytes == 4 || kBytes == 8 || kBytes == 16);
  uint32_t words[ceil_div(kBytes, 4)];

  /// Loads data that is read only once and need not stay in L1; zeros if `present` is false. It uses a predicate
  /// instead of a branch, so that the loads of a thread are issued one after the other and are in flight together.
  __device__ void stream(Element const* from, bool present) {
    if constexpr (kBytes == 16) {
      asm volatile(
          "{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\nmov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"
          "@p ld.global.L1::no_allocate.L2::128B.v4.b32 {%0, %1, %2, %3}, [%4];\n}"
          : "=&r"(words[0]), "=&r"(words[1]), "=&r"(words[2]), "=&r"(words[3])
          : "l"(from), "r"(int(present)));
    } else if constexpr (kBytes == 8) {
      asm volatile(
          "{\n.reg .pred p;\nsetp.ne.b32 p, %3, 0;\nmov.b32 %0, 0;\nmov.b32 %1, 0;\n"
          "@p ld.global.L1::no_allocate.L2::128B.v2.b32 {%0, %1}, [%2];\n}"
          : "=&r"(words[0]), "=&r"(words[1])
          : "l"(from), "r"(int(present)));
    } else if constexpr (kBytes == 4) {
      asm volatile(
          "{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\nmov.b32 %0, 0;\n@p ld.global.L2::128B.b32 %0, [%1];\n}"
          : "=&r"(words[0])
          : "l"(from), "r"(int(present)));
    } else {
      asm volatile(
          "{\n.reg .pred p;\n.reg .b16 h;\nsetp.ne.b32 p, %2, 0;\nmov.b16 h, 0;\n@p ld.global.L2::128B.b16 h, [%1];\n"
          "cvt.u32.u16 %0, h;\n}"
          : "=&r"(words[0])
          : "l"(from), "r"(int(present)));
    }
  }
};

/// The bits of an element in memory.
template <class Element>
__device__ uint32_t raw_bits(Element const& element) {
  if constexpr (sizeof(Element) == 1) return reinterpret_cast<uint8_t const&>(element);
  if constexpr (sizeof(Element) == 2) return reinterpret_cast<uint16_t const&>(element);
}

/// Packs element `i` of one vector and element `j` of another, of 16 bits each, into one word.
template <class Element, int Count>
__device__ uint32_t pair(Vector<Element, Count> const& low, int i, Vector<Element, Count> const& high, int j) {
  static_assert(sizeof(Element) == 2);
  return __byte_perm(low.words[i / 2], high.words[j / 2], (i % 2 ? 0x32 : 0x10) | (j % 2 ? 0x7600 : 0x5400));
}

}  // namespace gemmill
